"""A JobSet of Kubernetes: jobset.sigs.k8s.io."""

import dataclasses
from collections.abc import Sequence

from quintet.cli.launch.job import PORT, Job, header, indented, mounts, quoted
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
        every = [*self.torchrun, *rendezvous, "-m", "quintet", "--", *self.training]
        limits = {"cpu": str(self.cpus * self.processes)}
        if self.gpus:
            limits["nvidia.com/gpu"] = str(self.gpus)
        volumes = [
            f"- name: {quoted(name)}\n  persistentVolumeClaim: {{claimName: {quoted(name)}}}"
            for name in claims
        ]
        places = [
            f"- {{name: {quoted(name)}, mountPath: {quoted(path)}}}"
            for name, path in claims.items()
        ]
        return MANIFEST.format(
            header=header(arguments, USE),
            name=self.title,
            nodes=self.nodes,
            grace=self.grace,
            image=quoted(self.image),
            environment=indented(
                "\n".join(
                    f"- {{name: {n}, value: {quoted(v)}}}" for n, v in self.environment.items()
                ),
                20,
            ),
            # Kubernetes would take $(NAME) for a variable.
            command=indented("\n".join(f"- {quoted(w.replace('$(', '$$('))}" for w in every), 20),
            limits=indented("\n".join(f"{n}: {quoted(v)}" for n, v in limits.items()), 22),
            places=indented("\n".join(places), 20),
            volumes=indented("\n".join(volumes), 16),
            shared_memory=quoted(self.shared_memory),
        )


USE = "Start it, where the controller of JobSet is installed: kubectl apply -f FILE"
MANIFEST = """\
{header}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
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
                  env:
{environment}
                  command:
{command}
                  resources:
                    limits:
{limits}
                  volumeMounts:
{places}
                    - {{name: shared-memory, mountPath: /dev/shm}}
              volumes:
{volumes}
                - name: shared-memory
                  emptyDir: {{medium: Memory, sizeLimit: {shared_memory}}}
"""
