"""Outputs of a mesh autoencoder: reconstructions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.engine.task import Batch
from quintet.media.meshes.files import Mesh
from quintet.mesh.autoencoder.sample import through_codes
from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.geometry import discretise, undiscretise
from quintet.mesh.outputs import MeshOutputs, mesh_of
from quintet.shared.outputs import Group


class Reconstructions(MeshOutputs):
    """Each mesh from its own codes."""

    task: AutoencoderTask
    compares = "pairs"

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        originals = [mesh_of(item) for item in items]
        model, bins = self.nets["autoencoder"], self.task.config.bins
        meshes = [Mesh(*through_codes(model, mesh)) for mesh in originals]
        # No autoencoder of these bins can be better.
        rounded = [
            Mesh(undiscretise(discretise(vertices, bins), bins).astype(np.float64), faces)
            for vertices, faces in originals
        ]
        return Group(originals, meshes, {"rounded_to_bins": rounded})


outputs = Reconstructions
