"""Beside other people's trainers: the jobs of other tools, and a Hugging Face Trainer."""
