"""What a reader types to get the same run: exact versions, the resolved recipe, and what must be
equal.
"""

from fixture_types import MakeRun

from brimful.report.page.reproduce import identity_table, steps_to_reproduce
from brimful.runs.folder import read_run


def test_a_plain_build_of_torch_has_no_index_and_hostile_names_are_quoted(new_run: MakeRun) -> None:
    environment = {"packages": {"torch": "2.13.0", "x; rm -rf": "1"}}
    install = steps_to_reproduce(read_run(new_run(environment=environment)))[0]
    assert install.text.splitlines() == ["pip install torch==2.13.0", "pip install 'x; rm -rf==1'"]


def test_what_is_not_known_is_left_out(new_run: MakeRun) -> None:
    run = read_run(new_run(environment=None, recipe=None, data=None))
    assert steps_to_reproduce(run) == []
    assert identity_table(run) is None
