"""Retopology: a clean mesh for a surface, from points on it.

After Meshtron (arXiv 2412.09548): the mesh is a sequence of faces, sorted, each nine coordinates,
which a transformer continues while it attends to the points. Here the transformer is that of
mesh/transformer: one position for each face, and a small decoder for its coordinates.

    points (b, p, 6) ─ encoder ─> latents (b, n, d) ┐
    wished faces, start of the window ─> a token   ─┴ attended to by ┐
    codes (b, f, 9) ─────────────────────────────── face transformer ┴─> losses, or further faces

A mesh of more than `max_faces` faces is learned in windows of its sequence, and generated with the
second half of the last window as the beginning of the next.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from quintet.engine.keys import fold
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.mesh.geometry import EXTENT, Floats, fourier_features, num_octaves
from quintet.mesh.retopology.codes import codes_of, mesh_of
from quintet.mesh.retopology.config import RetopologyConfig
from quintet.mesh.transformer.generator import precedes
from quintet.mesh.transformer.model import MeshLosses, MeshTransformer
from quintet.nn.attention import Block, Context, linear
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import residual_stream
from quintet.shared.conditioning import CONTEXT_ROWS, in_blocks

OCTAVES = 8
"""Of the wished number of faces and the place of a window."""
SPARE = 1.3
"""Generation stops at this many times the wished number of faces."""
WINDOWS = 8
"""Windows of the longest mesh that may be wished."""
UNTOLD = 4
"""Windows after which generation stops without a wish."""


class Surface(NamedTuple):
    """Points in -1..1, and the box of the user that they were in."""

    points: Tensor
    """(p, 6), float32: points and normals."""
    centre: Floats
    half: float
    """Half of the longest side, in the user's units; EXTENT here."""

    def place(self, vertices: Floats) -> Floats:
        """Into the user's units."""
        return vertices * (self.half / EXTENT) + self.centre

    def fit(self, vertices: Floats) -> Floats:
        return (vertices - self.centre) * (EXTENT / self.half)


class PointEncoder(nn.Module):
    """Points with normals (b, p, 6) in random order -> latents (b, n, d): the first n points, which
    attend to all once, and then to one another."""

    def __init__(self, config: RetopologyConfig) -> None:
        super().__init__()
        dim, self.latents, self.octaves = config.dim, config.latents, num_octaves(config.bins)
        features = 3 * (1 + 2 * self.octaves) + 3
        self.embed = nn.Sequential(linear(features, dim), RMSNorm(dim))
        self.blocks = nn.ModuleList(
            Block(dim, config.heads, config.head_dim, cross=not i, dropout=config.dropout)
            for i in range(config.point_layers)
        )

    def forward(self, points: Tensor) -> Tensor:
        places, normals = points.split(3, -1)
        features = self.embed(torch.cat((fourier_features(places, self.octaves), normals), -1))
        every = torch.ones(features.shape[:2], dtype=torch.bool, device=points.device)
        x = residual_stream(features[:, : self.latents])
        for block in self.blocks:
            x = block(x, context=Context(features, every))
        return x


class Retopology(Pretrained, nn.Module):
    """Meshes from points, built from a configuration or its fields as keywords."""

    Config = RetopologyConfig
    compiles_whole = True

    def __init__(self, config: RetopologyConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = updated(config or RetopologyConfig(), keywords)
        dim = self.config.dim
        self.encoder = PointEncoder(self.config)
        self.wish = nn.Sequential(
            linear(2 * (1 + 2 * OCTAVES) + 2, dim), nn.SiLU(), linear(dim, dim)
        )
        self.transformer = MeshTransformer(self.config.transformer)

    @property
    def max_faces(self) -> int:
        return self.config.max_faces

    def regions(self) -> list[nn.Module]:
        return [*self.encoder.blocks, *self.transformer.regions()]

    # -- training -----------------------------------------------------------------------------

    def forward(
        self, codes: Tensor, lengths: Tensor, points: Tensor, faces: Tensor, first: Tensor
    ) -> MeshLosses:
        """Losses of packed codes, as MeshTransformer takes them, of meshes with these points.

        `faces` (b,): of the whole mesh, 0 where they are not told; `first` (b,): the first face of
        the window.
        """
        context = self.encode(points, faces, first)
        every = torch.ones(context.shape[:2], dtype=torch.bool, device=context.device)
        return self.transformer(codes, context, every, None, lengths)

    def encode(self, points: Tensor, faces: Tensor, first: Tensor) -> Tensor:
        """(b, n + 1, d): what the transformer attends to."""
        told, begun = faces > 0, first > 0
        total = faces.clamp_min(1).float()
        size = total.log2() / 8 - 1  # 1 to 65,536 faces: -1 to 1
        place = first / total * 2 - 1
        features = fourier_features(torch.stack((size, place), -1), OCTAVES) * told[:, None]
        features = torch.cat((features, torch.stack((told, begun), -1)), -1)
        wish = self.wish(features.to(points.dtype))[:, None]
        return torch.cat((self.encoder(points), wish), 1)

    # -- generation ---------------------------------------------------------------------------

    @torch.no_grad()
    def generate_codes(
        self,
        points: Tensor,
        faces: Tensor,
        *,
        kept: Tensor | None = None,
        seed: int = 0,
        **sampling: Any,
    ) -> Tensor:
        """Codes (b, f, 9), padded with -1, for points (b, p, 6) in -1..1 and wished numbers of
        faces (b,), 0 for any. `kept` (b, n, 9) are faces in order that the meshes will have.
        `sampling` are fields of `Sampling`.
        """
        width = self.config.max_faces
        half = width // 2
        ends = limits(faces, width)
        most = int(ends.max())
        codes = self._window(points, faces, 0, most, None, kept, seed, sampling)
        while codes.shape[1] < most and (codes[:, -1, 0] >= 0).any():
            length, prompt = codes.shape[1], codes[:, -half:]
            left = None if kept is None else _after(codes[:, -1], kept)
            start = length - half
            more = most - start
            new = self._window(
                points, faces, start, more, prompt, left, fold(seed, length), sampling
            )[:, half:]
            ended = codes[:, -1, 0] < 0
            codes = torch.cat((codes, new.masked_fill(ended[:, None, None], -1)), 1)
        number = torch.arange(codes.shape[1], device=codes.device)
        codes = codes.masked_fill((number >= ends[:, None])[..., None], -1)
        return codes[:, : max(1, int((codes[..., 0] >= 0).sum(1).max()))]

    def _window(
        self,
        points: Tensor,
        faces: Tensor,
        first: int,
        most: int,
        prompt: Tensor | None,
        kept: Tensor | None,
        seed: int,
        sampling: dict[str, Any],
    ) -> Tensor:
        rows = CONTEXT_ROWS if points.is_cuda else 1
        start = torch.full_like(faces, first)
        context = in_blocks(self.encode, rows, points, faces, start)
        return self.transformer.generate_codes(
            self.transformer.encode_inputs(context),
            len(points),
            max_faces=min(most, self.config.max_faces),
            prompt=prompt,
            kept=kept,
            seed=seed,
            ordered=True,
            **sampling,
        )

    @torch.no_grad()
    def retopologise(
        self,
        points: Any,
        faces: int | None = None,
        *,
        count: int = 1,
        keep: Any = None,
        mend: bool = True,
        temperature: float = 0.5,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[tuple[Floats, Any]]:
        """Clean meshes (vertices, faces) for a surface, in the units of its points, the best first:
        near to the points, and with few open edges.

        `points` (n, 3), or (n, 6) with normals; `faces`: the wished number; `count`: tries; `keep`:
        a mesh (vertices, faces) in the same units, whose faces the result has, rounded to the grid;
        `mend`: close cracks of up to two cells of the grid, unless a part is kept.
        """
        from quintet.mesh.retopology.ranking import best_first
        from quintet.mesh.retopology.seams import mended

        most = WINDOWS * self.config.max_faces
        if faces is not None and not 4 <= faces <= most:
            raise ValueError(f"{faces} faces are wished; give 4 to {most:,}")
        surface = self.surface(points, seed)
        device = next(self.parameters()).device
        kept = None if keep is None else self.kept(surface, keep).to(device).expand(count, -1, -1)
        wished = torch.full((count,), faces or 0, device=device)
        codes = self.generate_codes(
            surface.points.to(device).expand(count, -1, -1),
            wished,
            kept=kept,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        meshes = [mesh_of(rows, self.config.bins) for rows in codes.cpu()]
        pairs = [(mesh.vertices.double().numpy(), mesh.faces.numpy()) for mesh in meshes]
        places = surface.points[:, :3].double().numpy()
        if mend and keep is None:
            pairs = [mended(*pair, places, self.config.bins) for pair in pairs]
        return [(surface.place(at), rows) for at, rows in best_first(pairs, places)]

    def surface(self, points: Any, seed: int = 0) -> Surface:
        """The model's view of points (n, 3) or (n, 6): as many as it takes, in -1..1."""
        from quintet.media.meshes.points import estimate_normals

        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] not in (3, 6) or not len(points):
            raise ValueError(f"points are (n, 3), or (n, 6) with normals, not {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("points have values that are not finite: remove them")
        low, high = points[:, :3].min(0), points[:, :3].max(0)
        half = float((high - low).max()) / 2
        if half <= 0:
            raise ValueError("all points are at one place: there is no surface")
        rng = np.random.default_rng(fold(seed, "points"))
        size = self.config.points
        chosen = rng.permutation(len(points))
        if len(points) < size:  # all of them, and some twice
            chosen = np.concatenate((chosen, rng.integers(len(points), size=size - len(points))))
        surface = Surface(torch.empty(0), (low + high) / 2, half)
        places = surface.fit(points[:, :3]).astype(np.float32)
        normals = points[:, 3:] if points.shape[1] == 6 else estimate_normals(places)
        rows = np.concatenate((places, normals), 1)[chosen[:size]].astype(np.float32)
        return surface._replace(points=torch.from_numpy(rows))

    def kept(self, surface: Surface, mesh: Sequence[Any]) -> Tensor:
        """Codes (1, n, 9) of a part that is kept."""
        vertices, faces = np.asarray(mesh[0], np.float64), np.asarray(mesh[1])
        places = surface.fit(vertices)
        if np.abs(places).max(initial=0) > 1:
            raise ValueError("the part to keep lies outside of the surface: give the same units")
        return torch.from_numpy(codes_of(places, faces, self.config.bins))[None]


def limits(faces: Tensor, window: int) -> Tensor:
    """Where generation stops for wished numbers of faces, 0 for any."""
    return torch.where(faces > 0, (faces * SPARE).long() + 16, UNTOLD * window)


def _after(last: Tensor, kept: Tensor) -> Tensor:
    """Those of the kept faces (b, n, 9) that come after faces (b, 9)."""
    rows = torch.full_like(kept, -1)
    for row, (face, faces) in enumerate(zip(last, kept)):
        faces = faces[faces[:, 0] >= 0]
        left = faces[precedes(face.expand_as(faces), faces)]
        rows[row, : len(left)] = left
    return rows


Model = Retopology
