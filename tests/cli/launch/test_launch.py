"""`quintet launch`: what it prints is valid for its cluster, and starts the run that was meant."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from torch.distributed.run import get_args_parser

from harness import Said

SCHEMAS = {
    name: json.loads((Path(__file__).parent / f"{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("jobset", "skypilot")
}
RUN = ["image/vqgan", "--data", "/data/my photos", "--run", "/runs/It's 1", "--nodes", 2]
VOLUMES = ["--volumes", "photos=/data", "runs=/runs"]
FLAGS = {
    "slurm": ["--time", "4:00:00", "--setup", ". /opt/venv/bin/activate", "--account", "lab"],
    "kubernetes": [*VOLUMES, "--image", "registry.example/quintet:1"],
    "skypilot": ["--volumes", "s3://photos=/data", "runs=/runs", "--spot", "--setup", "make .venv"],
}
SETTINGS = ["--", "--batch-size", 16, "--images.min-crop", "0.5"]
Cli = Callable[..., Said]


PRINTED: dict[tuple[object, ...], str] = {}


def printed(cli: Cli, target: str, *settings: object) -> str:
    words = (target, *RUN, *FLAGS[target], *settings)
    if words not in PRINTED:
        said = cli("launch", *words)
        assert said.status == 0, said.err
        PRINTED[words] = said.out
    return PRINTED[words]


def arguments(target: str, text: str) -> list[str]:
    """The words of torchrun, as its cluster would pass them."""
    if target == "kubernetes":
        (job,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
        (box,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert box["command"][0] == "torchrun"
        return box["command"][1:]
    text = yaml.safe_load(text)["run"] if target == "skypilot" else text
    (command,) = re.findall(r"torchrun (.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    return shlex.split(command.replace("\\\n", "").removesuffix("&"))


@pytest.mark.parametrize("target", FLAGS)
def test_every_node_starts_or_resumes_the_run_with_all_processes(target: str, cli: Cli) -> None:
    launch = get_args_parser().parse_args(arguments(target, printed(cli, target, *SETTINGS)))
    assert (launch.nnodes, launch.nproc_per_node) == ("2", "8")
    assert (launch.module, launch.training_script) == (True, "quintet")
    assert [word for word in launch.training_script_args if word != "--"] == [
        *("train", "image/vqgan", "/data/my photos", "--run", "/runs/It's 1", "--resume"),
        *("--processes", "16", "--batch-size", "16", "--images.min-crop", "0.5"),
    ]


@pytest.mark.parametrize("target", FLAGS)
def test_what_is_printed_begins_with_the_command_that_printed_it(target: str, cli: Cli) -> None:
    text = printed(cli, target)
    (line,) = re.findall("^# (quintet launch .*)", text, re.MULTILINE)
    assert cli(*shlex.split(line)[1:]).out == text


def test_a_jobset_has_only_fields_of_its_schema(cli: Cli) -> None:
    manifest = yaml.safe_load(printed(cli, "kubernetes"))
    jsonschema.validate(manifest, SCHEMAS["jobset"])
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 2
    with pytest.raises(jsonschema.ValidationError, match="'completion' was unexpected"):
        jsonschema.validate(manifest, SCHEMAS["jobset"])


def test_the_pods_of_a_jobset_find_the_first_and_the_volumes(cli: Cli) -> None:
    text = printed(cli, "kubernetes")
    manifest = yaml.safe_load(text)
    (job,) = manifest["spec"]["replicatedJobs"]
    spec, name = job["template"]["spec"], manifest["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    launch = get_args_parser().parse_args(arguments("kubernetes", text))
    assert launch.rdzv_endpoint == f"{name}-{job['name']}-0-0.{name}:29500"
    pod = spec["template"]["spec"]
    (box,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in box["volumeMounts"]}
    assert mounted == {"photos": "/data", "runs": "/runs", "shared-memory": "/dev/shm"}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    waited = {each["name"]: each["value"] for each in box["env"]}["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert int(waited) < pod["terminationGracePeriodSeconds"]


def test_a_task_of_skypilot_has_only_fields_of_its_schema(cli: Cli) -> None:
    task = yaml.safe_load(printed(cli, "skypilot"))
    jsonschema.validate(task, SCHEMAS["skypilot"])
    assert task["file_mounts"] == {"/data": {"source": "s3://photos", "mode": "MOUNT"}}
    assert task["volumes"] == {"/runs": "runs"}
    task["resources"]["gpus"] = 8
    with pytest.raises(jsonschema.ValidationError, match="'gpus' was unexpected"):
        jsonschema.validate(task, SCHEMAS["skypilot"])


def test_a_batch_script_is_valid_and_stops_in_time(cli: Cli) -> None:
    text = printed(cli, "slurm")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)", text, re.MULTILINE))
    assert (options["nodes"], options["gpus-per-node"], options["time"]) == ("2", "8", "4:00:00")
    assert (options["signal"], options["account"]) == ("B:USR1@180", "lab")
    assert {"requeue", "open-mode"} <= set(options)
    assert ". /opt/venv/bin/activate\n" in text


def test_no_line_of_the_command_is_run_by_the_script(cli: Cli) -> None:
    text = cli("launch", "slurm", *RUN, "--setup", "module load cuda\nexport A=1").out
    assert "\n# export A=1" in text
    assert text.count("\nexport A=1\n") == 1


def test_without_gpus_none_are_asked_for(cli: Cli) -> None:
    texts = [printed(cli, target, "--gpus", 0) for target in FLAGS]
    assert not [text for text in texts if re.search("gpus-per-node|nvidia|accelerators", text)]
    assert all(arguments(*each)[3] == "1" for each in zip(FLAGS, texts))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pbs"], "there is no launcher 'pbs'; there are slurm, kubernetes, skypilot"),
        (["slurm", "image/vqgn", "--run", "a"], "image/vqgan"),
        (["slurm", "image/vqgan", "--run", "a", "--time", "soon"], "--time is soon; give minutes"),
        (["slurm", "image/vqgan", "--run", "a", "--nodes", 0], "--nodes is 0"),
        (["slurm", "image/vqgan", "--run", "a", "--grace", 30], "--grace is 30; give more than"),
        (
            ["kubernetes", "image/vqgan", "--run", "runs/a", "--image", "i"],
            "--run is runs/a, which no volume keeps",
        ),
        (
            ["skypilot", "image/vqgan", "--run", "/runs/a", "--volumes", "runs"],
            "--volumes has 'runs'; give NAME=/path",
        ),
        (
            ["kubernetes", *RUN, "--image", "i", "--volumes", "s3://runs=/runs"],
            "Kubernetes mounts claims, not buckets",
        ),
    ],
)
def test_what_would_fail_on_the_cluster_is_refused(words: Any, said: str, cli: Cli) -> None:
    assert said in cli("launch", *words).sentence


def test_a_mistyped_setting_is_found_before_it_is_submitted(cli: Cli) -> None:
    answer = cli("launch", "slurm", *RUN, "--", "--batch-sice", 16)
    assert answer.status == 2
    assert "--batch-sice" in answer.err
    assert "#SBATCH" not in answer.out


@pytest.mark.parametrize(
    ("name", "title"),
    [("Photos_2!", "photos-2"), ("7", "run-7"), ("ä" * 9, "run"), ("a" * 99, "a" * 30)],
)
def test_the_name_of_a_job_is_one_that_every_cluster_accepts(
    name: str, title: str, cli: Cli
) -> None:
    said = cli("launch", "slurm", "image/vqgan_tiny", "--run", "/runs/a", "--name", name)
    assert f"#SBATCH --job-name={title}\n" in said.out
