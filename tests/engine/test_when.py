import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quintet.engine.when import When

NEVER = When(every=0)

cadences = st.builds(When, every=st.integers(0, 12), start=st.integers(0, 12))


@given(cadences, st.integers(0, 60))
def test_count_counts_the_steps_that_were_due(when, step):
    assert when.count(step) == sum(when.due(s) for s in range(step))


@given(cadences, st.integers(0, 60))
def test_a_step_is_due_at_the_start_and_every_so_often(when, step):
    series = range(when.start, 61, when.every) if when.every else ()
    assert when.due(step) == (step in series)


@given(cadences, cadences)
@settings(max_examples=300)
def test_inside_refuses_exactly_the_pairs_that_never_meet(inner, outer):
    assume(inner.every and outer.every)
    meet = any(inner.due(s) and outer.due(s) for s in range(12 + 12 * 12 + 1))
    if meet:
        assert inner.inside(outer) == inner
    else:
        with pytest.raises(ValueError, match="is never due"):
            inner.inside(outer)


def test_never_is_allowed_inside_and_outside():
    assert NEVER.inside(When(every=3)) == NEVER
    assert When(every=3).inside(NEVER) == When(every=3)
    assert not any(NEVER.due(s) for s in range(10))
    assert NEVER.count(10**9) == 0


def test_the_refusal_advises_only_what_helps():
    with pytest.raises(ValueError) as refused:
        When(every=4, start=1).inside(When(every=2))
    assert "same start" in str(refused.value)
    assert "every a multiple" not in str(refused.value)  # 4 is one of 2, and they never meet
    When(every=4, start=0).inside(When(every=2))


@pytest.mark.parametrize("wrong", [{"every": -1}, {"start": -1}])
def test_negative_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="0 or more"):
        When(**wrong)
