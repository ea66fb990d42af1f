"""Which names may be files of other tools. This is asked of every recipe's name, so nothing that
takes time is imported here.
"""

from pathlib import Path

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
SUFFIXES = (".yaml", ".yml", ".json", ".py", ".ipynb")


def is_candidate(name: str) -> bool:
    """Return whether a name given for a recipe may be a file of another tool."""
    path = Path(name)
    return path.suffix in (*SUFFIXES, *PICKLES) and path.is_file()
