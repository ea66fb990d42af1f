"""What a reader types to get the same run: exact versions, the resolved recipe, and what must be
equal.
"""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.reproduce import identity_table, steps_to_reproduce
from brimful.runs.folder import read_run


def test_versions_are_pinned_with_torch_from_where_its_build_is(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    install, run = steps_to_reproduce(read_run(new_run()))
    assert install.purpose == snapshot
    assert install.text.splitlines() == [
        "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
        "pip install . transformers==5.23.0 tokenizers==0.23.1",
    ]
    assert run.text == "brimful plan recipe.yaml\nbrimful run recipe.yaml run.name=quickstart-again"


def test_a_plain_build_of_torch_has_no_index_and_hostile_names_are_quoted(new_run: MakeRun) -> None:
    environment = {"packages": {"torch": "2.13.0", "x; rm -rf": "1"}}
    install = steps_to_reproduce(read_run(new_run(environment=environment)))[0]
    assert install.text.splitlines() == ["pip install torch==2.13.0", "pip install 'x; rm -rf==1'"]


def test_what_is_not_known_is_left_out(new_run: MakeRun) -> None:
    run = read_run(new_run(environment=None, recipe=None, data=None))
    assert steps_to_reproduce(run) == []
    assert identity_table(run) is None


def test_seed_and_fingerprints_are_what_must_be_equal(new_run: MakeRun) -> None:
    table = identity_table(
        read_run(new_run(data={"fingerprints": {"data": "d1", "tokenizer": "t1"}}))
    )
    assert table is not None
    rows = dict(table.text_rows)
    assert (
        rows["Seed"],
        rows["Fingerprint of the data"],
        rows["Fingerprint of the tokenizer"],
    ) == ("1234", "d1", "t1")
    assert rows["Command"] == "brimful run quickstart"
