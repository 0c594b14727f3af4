"""The batch script under a real Slurm of three nodes on this machine: stopped at its time limit,
moved off a drained node, it ends as a run that was left alone."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import assert_same, free_port, tensors, trajectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))),
        reason="needs root and the packages slurmctld, slurmd and munge",
    ),
]
STEPS = 300
TINY = [
    *("--steps", STEPS, "--save-every", 10, "--log-every", 10, "--evaluate-every", 0),
    *("--workers", 0, "--batch-size", 2, "--device", "cpu", "--images.size", 32, 32),
    *("--model.dim", 16, "--discriminator.dim", 8, "--images.valid-limit", 4),
]
CONFIGURATION = """\
ClusterName=quintet
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
KillWait=10
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    def __init__(self, folder: Path):
        self.folder = folder
        ports, host = [free_port() for _ in range(4)], socket.gethostname()
        nodes = "\n".join(
            f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n]} CPUs=1"
            for n in (1, 2, 3)
        )
        text = CONFIGURATION.format(host=host, ports=ports, folder=folder, nodes=nodes)
        (folder / "slurm.conf").write_text(text)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        here = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path, "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **here}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Every daemon in the foreground, so that it ends with this test."""
        files = [f"--{k}-file={self.folder}/munge.{k}" for k in ("key", "pid", "log", "seed")]
        self.start(
            "munged", "--foreground", "--force", f"--socket={self.folder}/munge.sock", *files
        )
        self.start("slurmctld", "-D", "-c")
        for node in (1, 2, 3):
            self.start("slurmd", "-D", "-N", f"n{node}")
        self.wait_for("three idle nodes", lambda: self.ask("sinfo", "-ho%A") == "0/3", 30)

    def start(self, *words: str) -> None:
        with open(self.folder / "daemons.log", "ab") as log:
            daemon = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)
        self.daemons.append(daemon)
        time.sleep(0.5)

    def ask(self, *words: object) -> str:
        ended = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return (ended.stdout if ended.returncode == 0 else ended.stderr).strip()

    def wait_for(self, what: str, holds: object, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not holds():  # type: ignore[operator]
            assert time.monotonic() < deadline, f"no {what}:\n{self.said()}"
            time.sleep(0.2)

    def said(self) -> str:
        return "\n".join(f"{f.name}:\n{f.read_text()}" for f in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        self.ask("scancel", "--user", "root")
        deadline = time.monotonic() + 30
        while self.ask("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


class Job:
    """A script of `quintet launch slurm`, submitted."""

    def __init__(self, cluster: Cluster, run: Path):
        self.cluster, self.run = cluster, run
        flags = ["--run", run, "--nodes", 2, "--gpus", 0, "--cpus", 1, "--grace", 55]
        words = ["slurm", "image/vqgan_tiny", *flags, "--time", 10, "--", *TINY]
        script = cluster.ask(sys.executable, "-m", "quintet", "launch", *words)
        (cluster.folder / f"{run.name}.sh").write_text(f"{script}\n")
        self.number = cluster.ask("sbatch", "--parsable", f"{run.name}.sh")
        assert self.number.isdigit(), self.number

    def now(self, field: str) -> str:
        """A field of what scontrol shows."""
        words = self.cluster.ask("scontrol", "show", "job", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)[field]

    def wait(self, state: str, restarts: int) -> None:
        reached = lambda: (self.now("JobState"), self.now("Restarts")) == (state, str(restarts))
        self.cluster.wait_for(f"{state} of {self.run.name} after {restarts} restarts", reached)

    def wait_for_checkpoint_after(self, step: int) -> None:
        new = lambda: self.steps()[-1:] > [step]
        self.cluster.wait_for(f"checkpoint after step {step}", new)

    def steps(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.run / "checkpoints").glob("step-*"))

    def change(self, **fields: object) -> None:
        words = [f"{name}={value}" for name, value in fields.items()]
        assert self.cluster.ask("scontrol", "update", f"JobId={self.number}", *words) == ""

    def said(self) -> str:
        return (self.cluster.folder / f"{self.run.name}-{self.number}.log").read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.stop()


def test_a_job_outlives_its_time_limit_and_a_drained_node(cluster: Cluster) -> None:
    job = Job(cluster, cluster.folder / "interrupted")
    job.wait_for_checkpoint_after(0)
    job.change(TimeLimit=1)  # that is now, or soon
    job.wait("PENDING", 1)
    assert "by SIGTERM; the state is saved" in job.said()
    first = job.steps()[-1]
    assert 0 < first < STEPS

    job.change(TimeLimit=10)
    job.wait_for_checkpoint_after(first)
    assert f"resuming at step {first}" in job.said()
    node = "n1" if job.now("NodeList") == "n[1-2]" else job.now("NodeList")[2:4].strip("[")
    assert cluster.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test") == ""
    assert job.now("JobState") == "RUNNING"  # until somebody moves it
    assert cluster.ask("scontrol", "requeue", job.number) == ""
    job.wait("COMPLETED", 2)
    assert job.steps()[-1] == STEPS
    assert node not in cluster.ask("scontrol", "show", "hostnames", job.now("NodeList")).split()

    alone = Job(cluster, cluster.folder / "alone")
    alone.wait("COMPLETED", 0)
    assert_same(tensors(alone.run, STEPS), tensors(job.run, STEPS))
    assert trajectory(alone.run)[-1] == trajectory(job.run)[-1]


def test_an_error_is_not_tried_again(cluster: Cluster) -> None:
    (cluster.folder / "broken").mkdir()
    (cluster.folder / "broken/config.json").write_text("{")
    job = Job(cluster, cluster.folder / "broken")
    job.wait("FAILED", 0)
