import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.engine.health import PlateauMonitor, above, below, below_baselines, default_monitors


def fired(monitor, values, metric="m"):
    return [i for i, value in enumerate(values) if monitor({metric: value})]


def test_it_fires_once_after_its_patience_and_again_only_after_leaving_the_band():
    monitor = PlateauMonitor("m", "why", low=0, high=1, patience=3)
    assert fired(monitor, [0.5] * 10) == [2]
    assert fired(monitor, [2.0, 0.5, 0.5, 0.5, 0.5]) == [3]


def test_a_short_visit_does_not_count():
    assert fired(below("m", 1, "why", patience=3), [0, 0, 2, 0, 0, 2, 0, 0]) == []


def test_reports_without_the_metric_are_passed_over():
    monitor = below("m", 1, "why", patience=3)
    said = [monitor(r) for r in ({"m": 0}, {"x": 5}, {"m": 0}, {}, {"m": 0})]
    assert [bool(s) for s in said] == [False, False, False, False, True]


def test_the_message_names_metric_value_and_cause():
    said = below("codes/perplexity", 3, "codes have collapsed", patience=1)(
        {"codes/perplexity": 1.25}
    )
    assert "codes/perplexity" in said
    assert "1.25" in said
    assert "codes have collapsed" in said


def test_not_a_number_rests_nowhere():
    assert fired(PlateauMonitor("m", "why", patience=2), [math.nan] * 5) == []


def test_the_ends_of_the_band_belong_to_it():
    assert fired(below("m", 1.0, "why", patience=1), [1.0]) == [0]
    assert fired(above("m", 1.0, "why", patience=1), [1.0]) == [0]
    assert fired(above("m", 1.0, "why", patience=1), [0.999]) == []


def test_reports_of_the_warm_up_do_not_count():
    monitor = below("m", 1, "why", patience=2, after=10)
    spoken = [step for step in range(8, 14) if monitor({"m": 0, "step": step})]
    assert spoken == [12]


def test_more_workers_than_cores_are_not_recommended():
    (waiting,) = default_monitors([], workers=10_000)
    (sentence,) = [s for _ in range(10) if (s := waiting({"waiting": 0.9}))]
    assert "--workers" not in sentence


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_it_fires_once_for_each_visit_that_is_long_enough(inside, patience):
    monitor = below("m", 1, "why", patience=patience)
    visits = "".join("x" if here else " " for here in inside).split()
    found = fired(monitor, [0 if here else 2 for here in inside])
    assert len(found) == sum(len(visit) >= patience for visit in visits)


@pytest.mark.parametrize(
    ("metric", "value", "remedy"),
    [
        ("waiting", 0.9, "--workers"),
        ("net/update_ratio", 0.5, "lower the learning rate"),
        ("net/update_ratio", 1e-12, "raise the learning rate"),
    ],
)
def test_every_run_is_watched_for_the_common_causes(metric, value, remedy):
    monitors = default_monitors(["net"])
    said = [s for _ in range(20) for m in monitors if (s := m({metric: value}))]
    assert len(said) == 1
    assert remedy in said[0]


@pytest.mark.parametrize(
    ("metrics", "best", "named"),
    [
        ({"psnr": 12.0, "psnr_mean": 13.0, "psnr_cubic": 11.0}, ("psnr", "max"), "psnr_mean 13:"),
        ({"psnr": 14.0, "psnr_mean": 13.0}, ("psnr", "max"), None),
        ({"error": 2.0, "error_copied": 1.5}, ("error", "min"), "error_copied 1.5:"),
        ({"error": 1.0, "error_copied": 1.5}, ("error", "min"), None),
        ({"psnr_mean": 13.0}, ("psnr", "max"), None),
        ({"psnr": 12.0, "psnr_mean": 13.0}, None, None),
    ],
)
def test_a_run_is_compared_with_the_baselines_of_its_metric(metrics, best, named):
    sentence = below_baselines(metrics, best)
    assert (sentence is None) == (named is None)
    assert named is None or f"no better than {named} resume with more steps" in sentence
