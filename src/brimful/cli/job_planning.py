"""`brimful plan` of a file of another tool. Nothing heavy is imported before one is there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from brimful.base.console import waiting
from brimful.base.errors import RequestError
from brimful.cli.inputs import say_family_notes
from brimful.cli.output import open_console, print_json, say
from brimful.integrations.other_tools.candidates import is_candidate


@dataclass(frozen=True)
class JobRequest:
    """What the user asked of `brimful plan`.

    Attributes:
        name: The file, or a recipe's name.
        changes: Changes as key=value; None for none.
        tool: Tool whose file it is, where the user says so.
        on: Devices.
        as_recipe: The recipe is to be printed.
        trusts_custom_code: Code that comes with a model may run.
        as_json: JSON is to be printed.
        for_recipes_only: Options that make sense for recipes only, and their values.
    """

    name: str
    changes: list[str] | None
    tool: str | None
    on: str
    as_recipe: bool
    trusts_custom_code: bool
    as_json: bool
    for_recipes_only: Mapping[str, object]

    def answer_and_exit(self) -> None:
        """Answer it and exit, where the file is of another tool; return for a recipe.

        Raises:
            typer.Exit: it is answered.
            BrimfulError: the file cannot be read, or is asked what only a recipe can be.
        """
        tool = self._tool()
        if tool is None:
            if self.as_recipe:
                raise RequestError(
                    f"--as-recipe is for files of other tools; {self.name} is a recipe already."
                )
            return
        for option, value in self.for_recipes_only.items():
            if not value:
                continue
            raise RequestError(
                f"{option} is for brimful's recipes, and the file is one of"
                f" {tool}. `brimful plan FILE --as-recipe` prints the recipe for it."
            )
        raise typer.Exit(self._print_recipe(tool) if self.as_recipe else self._plan(tool))

    def _tool(self) -> str | None:
        """Return the name of the tool whose file it is; None for a recipe."""
        if self.tool is None and not is_candidate(self.name):
            return None
        from brimful.integrations.other_tools.file import tool_of

        return tool_of(self.name, self.changes or (), self.tool)

    def _print_recipe(self, tool: str) -> int:
        from brimful.integrations.other_tools.as_recipe import recipe_text
        from brimful.integrations.other_tools.file import read_file

        path = Path(self.name)
        say(recipe_text(path, read_file(path, tool, self.changes or ())).rstrip())
        return 0

    def _plan(self, tool: str) -> int:
        with waiting(open_console(stderr=True)) as show:
            from brimful.chains.job_plans import plan_file
            from brimful.report.plan.jobs import exit_code, job_blocks
            from brimful.report.terminal import told

            plans = plan_file(
                Path(self.name),
                tool,
                self.changes or (),
                self.on,
                trust_custom_code=self.trusts_custom_code,
                progress=show,
            )
        say_family_notes(self.on)
        if self.as_json:
            print_json(plans.to_json())
        else:
            console = open_console(least_width=120)
            blocks = job_blocks(plans.name, plans.read, plans.entries)
            console.print(told(blocks, console.width), soft_wrap=True, end="")
        return exit_code(plans.entries)
