"""What a shell can complete: names of recipes, runs and devices. Where no name fits, the shell
completes files.
"""


def recipe_names(incomplete: str) -> list[str]:
    """Return the shipped recipes that begin like this."""
    from brimful.base.discover import names_in

    return [name for name in names_in("brimful.recipes", ".yaml") if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """Return the folders of runs, and of members of studies, that begin like this."""
    from brimful.base.env import runs_folder

    root = runs_folder()
    folders = [path.parent for path in [*root.glob("*/recipe.*"), *root.glob("*/*/recipe.*")]]
    names = {folder.relative_to(root).as_posix() for folder in folders}
    return sorted(name for name in names if name.startswith(incomplete))


def device_names(incomplete: str) -> list[str]:
    """Return the short names of devices that begin like the last of a list with commas."""
    from brimful.hardware.catalog import names
    from brimful.hardware.naming import short_name

    before, comma, last = incomplete.rpartition(",")
    known = ["here", "all", *map(short_name, names())]
    return [before + comma + name for name in known if name.startswith(last.casefold())]
