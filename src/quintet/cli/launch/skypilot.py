"""A task of SkyPilot."""

import dataclasses
from collections.abc import Sequence

from quintet.cli.launch.job import PORT, Job, header, indented, mounts, quoted


@dataclasses.dataclass(kw_only=True)
class SkyPilot(Job):
    """Print a task for SkyPilot. As a managed job it is started elsewhere when its nodes are taken
    away, and goes on from the last checkpoint. Settings of the recipe follow `--`."""

    gpu: str = "H100"
    """Kind of GPU, as `sky show-gpus` lists it."""
    volumes: tuple[str, ...] = ()
    """Volumes or buckets and where they are mounted, e.g. s3://photos=/data runs=/runs."""
    setup: str | None = None
    """Shell command that prepares a node, e.g. one that installs Quintet."""
    spot: bool = False
    """Use spot instances."""

    def text(self, arguments: Sequence[str]) -> str:
        places = mounts(self.volumes, self.run)
        resources = {"cpus": quoted(f"{self.cpus * self.processes}+")}
        if self.gpus:
            resources["accelerators"] = quoted(f"{self.gpu}:{self.gpus}")
        if self.spot:
            resources["use_spot"] = "true"
        volumes = [f"{quoted(p)}: {quoted(n)}" for n, p in places.items() if "://" not in n]
        buckets = [
            f"{quoted(path)}: {{source: {quoted(name)}, mode: MOUNT}}"
            for name, path in places.items()
            if "://" in name
        ]
        exports = "\n".join(f"export {name}={value}" for name, value in self.environment.items())
        run = f'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n{exports}\n'
        run += self.script(f"$head:{PORT}", "$SKYPILOT_TASK_ID")
        sections = [
            header(arguments, "Start it: sky jobs launch FILE"),
            f"name: {self.title}",
            f"num_nodes: {self.nodes}",
            section("resources", [f"{name}: {value}" for name, value in resources.items()]),
            section("volumes", volumes),
            section("file_mounts", buckets),
            section("setup", (self.setup or "").splitlines(), " |"),
            section("run", run.splitlines(), " |"),
        ]
        return "".join(f"{text}\n" for text in sections if text)


def section(name: str, lines: Sequence[str], mark: str = "") -> str:
    return f"{name}:{mark}\n{indented(chr(10).join(lines), 2)}" if lines else ""
