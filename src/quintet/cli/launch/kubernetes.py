"""A JobSet of Kubernetes: jobset.sigs.k8s.io."""

import dataclasses
import json
from collections.abc import Sequence

from quintet.cli.launch.job import PORT, Job, header, mounts
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Kubernetes(Job):
    """Print a JobSet for Kubernetes. A pod that fails or is evicted is started again, and all go on
    from the last checkpoint. Settings of the recipe follow `--`."""

    image: str
    """Container image with Quintet."""
    volumes: tuple[str, ...] = ()
    """Claims and where they are mounted, e.g. photos=/data runs=/runs."""
    shared_memory: str = "32Gi"
    """Size of /dev/shm, through which data workers hand over batches."""

    def text(self, arguments: Sequence[str]) -> str:
        claims = mounts(self.volumes, self.run)
        if named := [name for name in claims if "://" in name]:
            raise RunError(f"--volumes has {named[0]}; Kubernetes mounts claims, not buckets")
        # The name of a pod in the network of its JobSet.
        endpoint = f"{self.title}-node-0-0.{self.title}:{PORT}"
        rendezvous = ["--rdzv-endpoint", endpoint, "--rdzv-id", self.title]
        command = [*self.torchrun, *rendezvous, "-m", "quintet", "--", *self.training]
        memory = {"medium": "Memory", "sizeLimit": self.shared_memory}
        limits = {"cpu": self.cpus * self.processes}
        if self.gpus:
            limits["nvidia.com/gpu"] = self.gpus
        return MANIFEST.format(
            header=header(arguments, USE),
            name=self.title,
            nodes=self.nodes,
            grace=self.grace,
            image=json.dumps(self.image),
            environment=json.dumps(
                [{"name": name, "value": value} for name, value in self.environment.items()]
            ),
            # Kubernetes would take $(NAME) for a variable.
            command="\n".join(
                f"{' ' * 20}- {json.dumps(word.replace('$(', '$$('))}" for word in command
            ),
            limits=json.dumps(limits),
            mounts=json.dumps(
                [{"name": name, "mountPath": path} for name, path in {**claims, **SHARED}.items()]
            ),
            volumes=json.dumps(
                [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in claims]
                + [{"name": n, "emptyDir": memory} for n in SHARED]
            ),
        )


SHARED = {"shared-memory": "/dev/shm"}
USE = "Start it, where the controller of JobSet is installed: kubectl apply -f FILE"
MANIFEST = """\
{header}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "{name}"
spec:
  failurePolicy:
    maxRestarts: 10 # of all pods together, should one fail too often
  replicatedJobs:
    - name: node
      template:
        spec:
          completionMode: Indexed
          completions: {nodes}
          parallelism: {nodes}
          backoffLimit: 100
          template:
            spec:
              restartPolicy: OnFailure
              terminationGracePeriodSeconds: {grace}
              containers:
                - name: train
                  image: {image}
                  env: {environment}
                  command:
{command}
                  resources:
                    limits: {limits}
                  volumeMounts: {mounts}
              volumes: {volumes}
"""
