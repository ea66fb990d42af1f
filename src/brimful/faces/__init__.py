"""What is looked at in a browser: the studio, and the atlas of plans."""
