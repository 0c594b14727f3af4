"""Mesh exhibits: contact sheets, and files that open in Blender."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from quintet.media.errors import printable
from quintet.media.meshes.files import write_mesh
from quintet.media.meshes.render import render
from quintet.media.pixels import write_png
from quintet.media.sheets import contact_sheet

Arrays = tuple[np.ndarray, np.ndarray]
"""Vertices (v, 3) and faces (f, k)."""
SIDE = 256
"""Pixels of a picture on a sheet."""


def mesh_of_corners(corners: Tensor, mask: Tensor) -> Arrays:
    """Mesh of corner coordinates (f, k, 3); equal corners become one vertex."""
    coordinates = corners[mask].float().cpu().numpy()
    vertices, index = np.unique(coordinates.reshape(-1, 3), axis=0, return_inverse=True)
    return vertices, index.reshape(coordinates.shape[:2])


@dataclass
class MeshSheet:
    """Contact sheet with one row per text; with `files`, each mesh is also saved."""

    name: str
    rows: Sequence[Sequence[Arrays]]
    titles: Sequence[str]
    texts: Sequence[str]
    files: bool = True

    def write(self, folder: Path) -> list[Path]:
        pictures = [[render(*mesh, SIDE) for mesh in row] for row in self.rows]
        sheet = folder / f"{self.name}.png"
        write_png(sheet, contact_sheet(pictures, self.titles, self.texts))
        return [*self._meshes(folder), self._texts(folder), sheet] if self.files else [sheet]

    def _texts(self, folder: Path) -> Path:
        """Captions, keyed by the file prefix of their row."""
        path = folder / f"{self.name}-texts.txt"
        blocks = [f"{self.name}-{n}\n  {printable(text)}\n" for n, text in enumerate(self.texts)]
        path.write_text("\n".join(blocks), encoding="utf-8")
        return path

    def _meshes(self, folder: Path) -> list[Path]:
        paths = []
        for number, row in enumerate(self.rows):
            for title, (vertices, faces) in zip(self.titles, row):
                path = folder / f"{self.name}-{number}-{title.replace(' ', '-')}.glb"
                write_mesh(path, vertices, faces)
                paths.append(path)
        return paths
