"""A batch script of Slurm."""

import dataclasses
import re
from collections.abc import Sequence

from quintet.cli.launch.job import Job, header
from quintet.engine.errors import RunError

TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")


@dataclasses.dataclass(kw_only=True)
class Slurm(Job):
    """Print a batch script for Slurm. It stops the run before the time limit and queues itself
    again until the run is at its last step. Settings of the recipe follow `--`."""

    time: str = "12:00:00"
    """Time limit, as sbatch takes it."""
    partition: str | None = None
    """Partition to run in."""
    account: str | None = None
    """Account to charge."""
    setup: str | None = None
    """Shell command before the training, e.g. one that activates an environment."""

    def text(self, arguments: Sequence[str]) -> str:
        if not TIME.fullmatch(self.time):
            raise RunError(f"--time is {self.time}; give minutes, H:MM:SS or D-HH:MM:SS")
        options = {
            "job-name": self.title,
            "partition": self.partition,
            "account": self.account,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "gpus-per-node": self.gpus or None,
            "cpus-per-task": self.cpus * self.processes,
            "time": self.time,
            "signal": f"B:USR1@{self.grace}",
            "open-mode": "append",
            "output": f"{self.title}-%j.log",
        }
        return SCRIPT.format(
            header=header(arguments, "Submit it: sbatch FILE. Run and data must be shared disks."),
            options="\n".join(f"#SBATCH --{k}={v}" for k, v in options.items() if v is not None),
            setup=f"{self.setup}\n" if self.setup else "",
            exports=" ".join(f"{name}={value}" for name, value in self.environment.items()),
            # A requeued job keeps its number.
            torchrun=self.script("$head:$port", "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"),
        )


SCRIPT = """\
#!/bin/bash
{header}

{options}
#SBATCH --requeue

{setup}export {exports}
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun would give each node one core
head=$(hostname) # this script runs on the first node
port=$((20000 + SLURM_JOB_ID % 10000))

# Before the time limit Slurm signals this script, which tells all processes to save and stop.
trap 'stopping=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

srun --kill-on-bad-exit=0 {torchrun} &
wait $!
status=$?
while kill -0 $! 2> /dev/null; do # a signal ends `wait`, not srun
    wait $!
    status=$?
done

if [ -n "$stopping" ] && [ $status -ne 0 ]; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit $status # of an error: it would come again
"""
