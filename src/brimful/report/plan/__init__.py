"""What a plan says, for the terminal and as pictures."""
