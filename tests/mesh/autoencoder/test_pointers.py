"""Codes with pointers: what they say is decoded, whatever the mesh, the batch and the reach."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quintet
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.pointers import PointerCodes, Sizes, refine
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import BuiltinMeshes, Collate
from quintet.mesh.geometry import discretise, points_of, vertex_ranks
from quintet.mesh.recipes import autoencoder, autoencoder_compact, autoencoder_compact_tiny

SMALL: dict[str, Any] = {"dim": 32, "message_dim": 16, "decoder_layers": 1}
SCARCE: dict[str, Any] = {"cell_bits": 2, "pointers": (2, 16, 64)}


def meshes(count: int, max_faces: int = 96) -> list[dict[str, Any]]:
    data = BuiltinMeshes(MeshDataConfig(max_faces=max_faces, builtin_count=100), "train")
    return [data.keyed(index, None) for index in range(count)]


def model_of(**settings: Any) -> quintet.MeshAutoencoder:
    """With a head that prefers some offsets: an untrained one prefers none."""
    torch.manual_seed(0)
    model = quintet.MeshAutoencoder(quantiser="pointer", depth=1, **SMALL, **settings)
    assert model.compact is not None
    torch.nn.init.normal_(model.compact.head.weight)
    return model.eval()


def decoded_bins(model: quintet.MeshAutoencoder, codes: Tensor) -> Tensor:
    return discretise(model.decode_codes(codes).coordinates, model.config.bins)


@pytest.mark.parametrize("reach", [1, 4, 1000])
def test_ranks_name_vertices_and_nothing_else(reach: int) -> None:
    rng = np.random.default_rng(reach)
    faces = np.stack([rng.permutation(40)[:3] for _ in range(200)])
    points = points_of(vertex_ranks(faces, reach)).ravel()
    pairs = {*zip(points.tolist(), faces.ravel().tolist())}
    assert len(pairs) == len({point for point, _ in pairs}), "a point is of one vertex"
    assert (len(pairs) == 40) == (reach == 1000)


def test_a_code_is_split_into_what_it_was_joined_from() -> None:
    for config in (autoencoder_compact().model, autoencoder_compact_tiny().model):
        codebook, codes = PointerCodes(config), torch.arange(config.codebook_size)
        fields = codebook.split(codes)
        assert torch.equal(codebook.join(fields), codes)
        assert torch.equal(codebook.room(fields.rank), fields.room)
        assert int(fields.rank.max()) == config.reach - 1
        assert (fields.digits < (1 << fields.room)[:, None]).all()


def test_room_that_a_vertex_does_not_need_goes_to_those_that_lack_bits() -> None:
    """Two meshes: a vertex of four corners with a poor one beside it, and a poor one alone."""
    vertex = torch.tensor([0, 1, 0, 0, 0, 2])
    owner = torch.tensor([0, 0, 0, 0, 0, 1])
    room = torch.tensor([3, 3, 2, 2, 2, 3])
    refined = refine(vertex, torch.zeros(6, dtype=torch.bool), room, owner, Sizes(7, 2))
    assert refined.own_bits.tolist() == [3, 3, 2, 2, 0, 3]
    assert refined.level[4].tolist() == [4, 3]
    assert refined.helped[4].tolist() == [1, 1]
    assert (refined.level[[0, 1, 2, 3, 5]] == 0).all()
    assert refined.missing.tolist() == [0, 2, 0, 0, 0, 4]


@pytest.mark.by_default("settings0", "settings2")
@pytest.mark.parametrize("settings", [{}, SCARCE, {"pointers": (1, 2)}, {"pointers": (2,)}])
def test_codes_say_what_the_network_was_told(settings: dict[str, Any]) -> None:
    """Reconstruction in training is that of the codes alone; packed, padded or single."""
    model, items = model_of(**settings), meshes(6)
    batch = Collate(96, reach=model.config.reach)(items)
    inputs = {name: batch[name] for name in ("neighbours", "lengths", "ranks")}
    with torch.no_grad():
        packed = model(batch["vertices"], batch["faces"], **inputs)
    assert torch.equal(model.tokenize(batch["vertices"], batch["faces"], **inputs), packed.codes)
    rows = packed.codes[0].split(batch["lengths"][:, 0].tolist())
    expected = packed.bins[0].split(batch["lengths"][:, 0].tolist())
    padded = torch.nn.utils.rnn.pad_sequence(list(rows), True, -1)
    together = decoded_bins(model, padded)
    for item, codes, bins, padded_bins in zip(items, rows, expected, together):
        assert torch.equal(model.tokenize(item["vertices"], item["faces"]), codes)
        assert torch.equal(decoded_bins(model, codes[None])[0], bins)
        assert torch.equal(padded_bins[: len(bins)], bins)


def test_with_enough_room_nothing_is_left_to_learn() -> None:
    model = model_of()
    for item in meshes(6):
        codes = model.tokenize(item["vertices"], item["faces"])
        bins = discretise(item["vertices"][item["faces"]], 128)
        assert torch.equal(decoded_bins(model, codes[None])[0], bins)


def test_scarce_codes_err_inside_of_their_cells_only() -> None:
    model, item = model_of(**SCARCE), meshes(3)[2]
    with torch.no_grad():
        output = model(item["vertices"][None], item["faces"][None])
    assert model.compact is not None
    owner = torch.zeros(output.mask.shape, dtype=torch.long)
    cells = model.compact.cells(output.codes, owner)
    offset = output.target - cells.low
    assert ((offset >= 0) & (offset < (1 << cells.missing)[..., None])).all()
    assert (cells.missing > 0).any()
    assert (cells.missing == 0).any()


@pytest.mark.parametrize("settings", [{}, SCARCE])
def test_any_codes_are_a_mesh(settings: dict[str, Any]) -> None:
    """A transformer may write ranks beyond all vertices, or start with one."""
    model = model_of(**settings)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(model.codebook_size, (4, 20, 3), generator=generator)
    codes[0] = model.codebook_size - 1
    decoded = model.decode_codes(codes)
    assert decoded.mask.all()
    assert (decoded.coordinates.abs() < 1).all()
    transformer = quintet.MeshTransformer(model, dim=32, layers=1, heads=2, head_dim=16)
    for mesh in transformer.decode_meshes(codes):
        assert len(mesh.vertices.unique(dim=0)) == len(mesh.vertices)


def test_a_transformer_decodes_codes_to_the_mesh_they_are_of() -> None:
    """Vertices are told apart by position: corners of one code may be of different ones."""
    model = model_of()
    transformer = quintet.MeshTransformer(model, dim=32, layers=1, heads=2, head_dim=16)
    assert transformer.config.pointers
    assert transformer.config.tokens_per_face == 3
    items = meshes(8)
    repeated = False
    for item in items:
        codes = model.tokenize(item["vertices"], item["faces"])
        ordered = codes.sort(1).values
        repeated = repeated or bool((ordered[:, 1:] == ordered[:, :-1]).any())
        [mesh] = transformer.decode_meshes(codes[None])
        corners = discretise(mesh.vertices[mesh.faces], 128)
        assert torch.equal(corners, discretise(item["vertices"][item["faces"]], 128))
        assert len(mesh.vertices) == len(item["vertices"])
    assert repeated
    generated: Any = transformer.generate(batch_size=1, max_faces=4)
    assert generated[0].faces.shape[1] == 3


def test_compact_recipes_have_far_fewer_bits() -> None:
    assert autoencoder().model.bits_per_face > 2.3 * autoencoder_compact().model.bits_per_face
    default = MeshAutoencoderConfig(quantiser="pointer", depth=1)
    assert autoencoder().model.bits_per_face > 2.5 * default.bits_per_face


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 2}, "depth"),
        ({"bins": 100}, "bins"),
        ({"cell_bits": 8}, "cell_bits"),
        ({"pointers": (8, 8)}, "pointers"),
        ({"pointers": ()}, "pointers"),
    ],
)
def test_pointers_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {"quantiser": "pointer", "depth": 1}
    with pytest.raises(ValueError, match=message):
        MeshAutoencoderConfig(**(base | settings))
