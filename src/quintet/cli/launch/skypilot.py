"""A task of SkyPilot."""

import dataclasses
import json
from collections.abc import Sequence
from textwrap import indent
from typing import Any

from quintet.cli.launch.job import PORT, Job, header, mounts


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
        resources: dict[str, Any] = {"cpus": f"{self.cpus * self.processes}+"}
        if self.gpus:
            resources["accelerators"] = f"{self.gpu}:{self.gpus}"
        if self.spot:
            resources["use_spot"] = True
        sections: dict[str, Any] = {
            "name": self.title,
            "num_nodes": self.nodes,
            "resources": resources,
            "volumes": {path: name for name, path in places.items() if "://" not in name},
            "file_mounts": {
                path: {"source": name, "mode": "MOUNT"}
                for name, path in places.items()
                if "://" in name
            },
        }
        lines = [f"{name}: {json.dumps(value)}" for name, value in sections.items() if value]
        exports = [f"export {name}={value}" for name, value in self.environment.items()]
        head = 'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
        train = self.script(f"$head:{PORT}", "$SKYPILOT_TASK_ID")
        scripts = {"setup": self.setup, "run": "\n".join([head, *exports, train])}
        lines += [f"{name}: |\n{indent(text, '  ')}" for name, text in scripts.items() if text]
        return "\n".join([header(arguments, "Start it: sky jobs launch FILE"), *lines, ""])
