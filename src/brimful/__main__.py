"""`python -m brimful` is the command `brimful`."""

from brimful.cli import main

if __name__ == "__main__":
    main()
