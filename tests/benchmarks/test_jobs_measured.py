"""A record of jobs keeps the rows of jobs that were not asked for again."""

from jobs_measured import SYSTEMS, kept
from tables import record


def test_a_row_that_is_not_measured_again_says_when_and_on_what_it_was() -> None:
    told = record("jobs_measured")
    older = {**told["jobs"][1], "date": "2020-01-01"}

    jobs = kept({**told, "jobs": [told["jobs"][0], older]})

    first, second = jobs.values()
    assert (first["date"], first["device"]) == (told["date"], told["device"])
    assert second["date"] == "2020-01-01"
    assert jobs.keys() <= SYSTEMS.keys()
