"""`quintet launch`: the script of a cluster for a training run."""

import dataclasses

from quintet import rooms
from quintet.cli.common import ASKING, examples, parse
from quintet.cli.launch.job import Job
from quintet.cli.launch.kubernetes import Kubernetes
from quintet.cli.launch.skypilot import SkyPilot
from quintet.cli.launch.slurm import Slurm
from quintet.cli.train import flags_of, spell_out
from quintet.engine.errors import RunError
from quintet.suggest import among, command

TARGETS = {"slurm": Slurm, "kubernetes": Kubernetes, "skypilot": SkyPilot}
ABOUT = f"""\
Print what a cluster needs to train a recipe on one or several nodes: the run is started or, after
a stop, resumed. Nothing is started here: write it into a file and submit that.

usage: quintet launch {{{",".join(TARGETS)}}} RECIPE --run DIR [FLAGS] [-- SETTINGS]
"""


def launch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ASKING:
        print(f"{examples('launch')}\n\n{ABOUT}\nFlags: {command('launch', 'slurm', '--help')}")
        if not arguments:
            raise RunError(f"name a cluster first: {', '.join(TARGETS)}")
        return
    target, *rest = arguments
    if target not in TARGETS:
        raise RunError(f"there is no launcher '{target}'; {among(target, list(TARGETS))}")
    end = rest.index("--") if "--" in rest else len(rest)
    own, settings = rest[:end], rest[end + 1 :]
    job: Job = parse(TARGETS[target], own, f"launch {target}")
    job = dataclasses.replace(job, settings=tuple(settings))
    job.check()
    check_training(job)
    print(job.text(arguments), end="")


def check_training(job: Job) -> None:
    """Refuse what would be an error on the cluster."""
    default = rooms.recipe_function(job.recipe)()
    given = spell_out(job.training[2:], default.stages)
    parse(flags_of(job.recipe, default), given, f"train {job.recipe}")
