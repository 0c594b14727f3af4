"""docs/scaling.md: its table is that of the script, and its Kubernetes example is valid."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from adopting import adopts
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
def output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Output of the script for some arguments."""

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["scaling.py", *arguments])
        script().main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def rows(output: Any) -> Any:
    def call(*arguments: str) -> Rows:
        parsed = map(json.loads, output("--json", *arguments).splitlines())
        return {(row["trainer"], row["gpus"]): row for row in parsed}

    return call


def test_the_table_of_the_page_is_that_of_the_script(output: Any) -> None:
    assert output().strip() in PAGE


def test_every_trainer_is_predicted(rows: Any) -> None:
    names = (name for name in rooms.names() if "_tiny" not in name and "_large" not in name)
    full = {name for name in names if not adopts(rooms.recipe_function(name)())}
    assert {name for name, _ in rows()} == full - script().NOT_MEASURED


def test_efficiency_is_1_on_one_gpu_and_never_rises(rows: Any) -> None:
    predictions = rows()
    for name in {name for name, _ in predictions}:
        for metric in ("ddp_efficiency", "shard_efficiency"):
            values = [predictions[name, gpus][metric] for gpus in (1, 8, 64, 256, 1024)]
            assert values[0] == 1
            assert values == sorted(values, reverse=True)


def test_a_slow_network_costs_most_without_fsdp_blocks(rows: Any) -> None:
    fast, slow = rows("--gpus", "64"), rows("--gpus", "64", "--network", "5")
    for key, row in slow.items():
        if key[1] == 1:
            continue
        for metric in ("ddp_efficiency", "shard_efficiency"):
            assert row[metric] < fast[key][metric]
        assert row["in_blocks"] > 0 or row["shard_ms"] > row["ddp_ms"]
        assert row["shard_state_gb"] < row["ddp_state_gb"]


# -- Kubernetes ------------------------------------------------------------------------------------


@pytest.fixture
def launch() -> Any:
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    return get_args_parser().parse_args(container["args"])


def test_the_job_runs_a_recipe_and_resumes_it(launch: Any) -> None:
    assert (launch.module, launch.training_script) == (True, "quintet")
    arguments = [word for word in launch.training_script_args if word != "--"]
    assert arguments[0] == "train"
    assert arguments[1] in rooms.names()
    assert "--resume" in arguments
    fields = vars(rooms.recipe_function(arguments[1])())
    flags = [word.removeprefix("--").partition("=")[0] for word in arguments if word[:2] == "--"]
    assert {flag.replace("-", "_") for flag in flags} <= {*fields, "run", "resume"}
    nodes, each = int(launch.nnodes), int(launch.nproc_per_node)
    assert f"--processes={nodes * each}" in arguments


def test_the_pods_share_a_rendezvous(launch: Any) -> None:
    spec, name = JOB["spec"], JOB["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(launch.nnodes)
    assert spec["template"]["spec"]["subdomain"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert SERVICE["spec"]["clusterIP"] == "None"
    host = f"{name}-0.{SERVICE['metadata']['name']}"
    assert launch.rdzv_endpoint.partition(":")[0] == host


def test_every_mounted_volume_is_defined() -> None:
    pod = JOB["spec"]["template"]["spec"]
    mounted = {mount["name"] for box in pod["containers"] for mount in box["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
