"""Which names may be files of other tools. This is asked of every recipe's name, so nothing that
takes time is imported here.
"""

from pathlib import Path

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
SCRIPT = ".sh"
SUFFIXES = (".yaml", ".yml", ".json", ".py", ".ipynb", SCRIPT)


def is_command(name: str) -> bool:
    """Return whether a name is a command line in quotes."""
    return " --" in name


def is_candidate(name: str) -> bool:
    """Return whether a name given for a recipe may be a file of another tool, or a command."""
    if is_command(name):
        return True
    path = Path(name)
    return path.suffix in (*SUFFIXES, *PICKLES) and path.is_file()
