"""docs/examples/train.yaml, the Kubernetes example of docs/scaling.md, is valid."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from quintet import rooms

ROOT = Path(__file__).parent.parent
SERVICE, JOB = yaml.safe_load_all((ROOT / "docs/examples/train.yaml").read_text(encoding="utf-8"))


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
