"""Print what a recipe takes on this machine and on other devices, as pages: `python -m
brimful.notebook.device_plans DEVICES RECIPE [KEY=VALUE]...`

It is a process of its own because planning may look at the device.
"""

import sys

from brimful.chains.plans import survey
from brimful.notebook.pages import print_pages
from brimful.recipe import load
from brimful.report.plan.answer import answer_lines
from brimful.report.plan.fit_view import fit_view
from brimful.report.plan.table import Entries
from brimful.report.views import Paragraph, View


def views(recipe: str, overrides: list[str], on: str) -> tuple[View, View]:
    """Return the plans for all devices, and that for this machine closely.

    Args:
        recipe: a shipped recipe's name or a .yaml file.
        overrides: `key=value` changes.
        on: devices, of which the first is this machine; it is not shown once more.

    Raises:
        BrimfulError: no plan can be made.
    """
    resolved = load(recipe, overrides)
    here, *others = survey(resolved, on)
    name = here.device.name
    everywhere = [here, *(each for each in others if each.device.name != name)]
    alone = fit_view(f"{resolved.name} on {name}", [here], _answer([here]))
    told = [*_answer([here]), *_answer(everywhere)] if len(everywhere) > 1 else _answer([here])
    return fit_view(f"{resolved.name} on {name}, this machine, and others", everywhere, told), alone


def _answer(surveyed: Entries) -> list[Paragraph]:
    return [Paragraph(line, "verdict") for line in answer_lines(surveyed, sys.maxsize)]


if __name__ == "__main__":
    print_pages(lambda: views(sys.argv[2], sys.argv[3:], sys.argv[1]))
