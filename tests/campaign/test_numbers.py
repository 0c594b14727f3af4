"""The short campaign of bad numbers, and that it would notice if the guard were not there."""

import pytest

from campaign import numbers, subjects
from campaign.numbers import NAN, Attempt, Fault
from campaign.table import Case

# Left to the slow tests: engine/machine/test_fsdp.py skips a step that is bad on one process, and
# gradients are as bad as the data that they come from.
ELSEWHERE = (
    "bad numbers in one step: inf in loss of vae of process 1",
    "bad numbers in one step: nan in gradient of vae",
    "weights lost: nan in weights of voicebox",  # with a rollback those of another recipe
)
SHORT = [
    pytest.param(
        case, id=case.name, marks=pytest.mark.slow if case.name.startswith(ELSEWHERE) else ()
    )
    for case in numbers.cases(False, 0)
]


@pytest.mark.parametrize("case", SHORT)
def test_it_survives(case: Case) -> None:
    result = case.run()
    assert result.survived, result.note


def test_a_fault_that_was_not_injected_counts_as_a_failure() -> None:
    """The judges can fail: a run in which nothing went wrong has nothing to name."""
    nothing = Attempt("image/vqgan_tiny", 1, Fault("none", NAN, "vae", 3))
    for kind in ("bad numbers in one step", "weights lost"):
        assert not numbers.case(kind, nothing).run().survived


def test_the_full_campaign_reaches_every_part_of_every_recipe() -> None:
    names = [case.name for case in numbers.cases(True, 0)]
    assert len(names) == len(set(names)) > 150
    assert sorted(numbers.PARTS) == sorted(subjects.names())
    for recipe, parts in numbers.PARTS.items():
        for part in parts:
            for size in (1, 2):
                mine = [n for n in names if f" of {part}" in n and f"({recipe}, {size})" in n]
                assert len({n.partition(":")[0] for n in mine}) == len(numbers.JUDGES)
