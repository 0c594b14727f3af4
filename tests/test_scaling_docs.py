"""The page on scaling says what its script predicts, and its example for Kubernetes is sound."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from quintet import rooms

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
SERVICE, JOB = yaml.safe_load_all((ROOT / "docs/examples/train.yaml").read_text(encoding="utf-8"))


@cache
def script() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import scaling  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return scaling


Rows = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the script says to some words."""

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["scaling.py", *words])
        script().main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def rows(said: Any) -> Any:
    def call(*words: str) -> Rows:
        read = map(json.loads, said("--json", *words).splitlines())
        return {(row["trainer"], row["gpus"]): row for row in read}

    return call


def test_the_table_on_the_page_is_the_scripts(said: Any) -> None:
    assert said().strip() in PAGE


def test_every_trainer_is_predicted(rows: Any) -> None:
    full = {name for name in rooms.names() if not name.endswith("_tiny")}
    assert {name for name, _ in rows()} == full


def test_one_gpu_is_the_measure_and_more_are_never_better(rows: Any) -> None:
    found = rows()
    for name in {name for name, _ in found}:
        for way in ("ddp_efficiency", "shard_efficiency"):
            values = [found[name, gpus][way] for gpus in (1, 8, 64, 256, 1024)]
            assert values[0] == 1
            assert values == sorted(values, reverse=True)


def test_a_slow_network_costs_most_where_shards_have_no_blocks(rows: Any) -> None:
    fast, slow = rows("--gpus", "64"), rows("--gpus", "64", "--network", "5")
    for place, row in slow.items():
        if place[1] == 1:
            continue
        for way in ("ddp_efficiency", "shard_efficiency"):
            assert row[way] < fast[place][way]
        assert row["in_blocks"] > 0 or row["shard_ms"] > row["ddp_ms"]
        assert row["shard_state_gb"] < row["ddp_state_gb"]


# -- Kubernetes ------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> Any:
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    return get_args_parser().parse_args(container["args"])


def test_the_job_runs_a_recipe_and_goes_on_with_it(asked: Any) -> None:
    assert (asked.module, asked.training_script) == (True, "quintet")
    words = [word for word in asked.training_script_args if word != "--"]
    assert words[0] == "train"
    assert words[1] in rooms.names()
    assert "--continue" in words
    fields = vars(rooms.recipe_function(words[1])())
    flags = [word.removeprefix("--").partition("=")[0] for word in words if word[:2] == "--"]
    assert {flag.replace("-", "_") for flag in flags} <= {*fields, "run", "continue"}
    nodes, each = int(asked.nnodes), int(asked.nproc_per_node)
    assert f"--processes={nodes * each}" in words


def test_the_pods_find_one_another(asked: Any) -> None:
    spec, name = JOB["spec"], JOB["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(asked.nnodes)
    assert spec["template"]["spec"]["subdomain"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert SERVICE["spec"]["clusterIP"] == "None"
    host = f"{name}-0.{SERVICE['metadata']['name']}"
    assert asked.rdzv_endpoint.partition(":")[0] == host


def test_every_volume_that_is_mounted_is_there() -> None:
    pod = JOB["spec"]["template"]["spec"]
    mounted = {mount["name"] for box in pod["containers"] for mount in box["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
