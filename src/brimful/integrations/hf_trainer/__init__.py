"""Other people's trainers: a Hugging Face Trainer's own step is planned for and its micro-batch
set; any training loop is measured; predicted stands beside measured on one page.
"""
