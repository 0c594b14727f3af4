from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError
from quintet.engine.keys import keyed_normal
from quintet.mesh import geometry
from quintet.mesh.autoencoder.bottleneck import average_equal_codes, logistic_loss
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.graph import Adjacency, NeighbourSum, adjacency
from quintet.mesh.autoencoder.model import MeshAutoencoder, Reconstruction
from quintet.mesh.data import Collate
from quintet.mesh.shapes import build, compose

SMALL: dict[str, Any] = {
    "dim": 24,
    "message_dim": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "codebook_bits": 6,
    "latent_dim": 12,
}
QUANTISERS = pytest.mark.parametrize("quantiser", ["fsq", "lfq", "vq"])
EXACT = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(autouse=True)
def _single() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Batch(NamedTuple):
    vertices: Tensor
    faces: Tensor
    neighbours: Tensor


def small(**changes: object) -> MeshAutoencoder:
    """A model whose branches are awake: at the start many of them end in zeros."""
    torch.manual_seed(0)
    model = MeshAutoencoder(**(SMALL | changes))
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return model


def padded(meshes: list[tuple[Any, Any]], count: int, corners: int = 3) -> Batch:
    vertices = torch.zeros(len(meshes), count * corners, 3)
    faces = torch.full((len(meshes), count, corners), -1)
    for index, (points, triples) in enumerate(meshes):
        vertices[index, : len(points)] = torch.as_tensor(points)
        faces[index, : len(triples)] = torch.as_tensor(triples)
    return Batch(vertices, faces, geometry.face_neighbours(faces))


def shapes(numbers: range, count: int = 200) -> Batch:
    built = (geometry.canonical(*build(compose(number))) for number in numbers)
    return padded([(v, f) for v, f in built if len(f) <= count], count)


def quads(count: int = 16) -> Batch:
    """A band of n quads, and one of half as many."""

    def band(n: int) -> tuple[Tensor, Tensor]:
        turn = torch.arange(n) * (2 * torch.pi / n)
        ring = torch.stack((turn.cos(), turn.sin()), 1) * 0.8
        flat = torch.cat((ring, ring)), torch.tensor([-0.5, 0.5]).repeat_interleave(n)
        i, j = torch.arange(n), torch.arange(1, n + 1) % n
        return torch.cat((flat[0], flat[1][:, None]), 1), torch.stack((i, j, j + n, i + n), 1)

    return padded([band(12), band(6)], count, 4)


def run(model: MeshAutoencoder, batch: Batch) -> Reconstruction:
    return model(batch.vertices, batch.faces, neighbours=batch.neighbours)


@QUANTISERS
def test_shapes_ranges_and_padding(quantiser: str) -> None:
    model, batch = small(quantiser=quantiser), shapes(range(4))
    out = run(model, batch)
    b, f = batch.faces.shape[:2]
    assert out.loss.shape == out.quantiser_loss.shape == ()
    assert out.coordinate_loss.shape == (b,)
    assert out.bins.shape == out.target.shape == (b, f, 3, 3)
    assert out.codes.shape == (b, f, 6)
    assert {out.bins.dtype, out.target.dtype, out.codes.dtype} == {torch.int64}
    assert torch.equal(out.mask, batch.faces[..., 0] >= 0)
    for field, size in ((out.bins, 128), (out.target, 128), (out.codes, model.codebook_size)):
        assert (field[~out.mask] == -1).all()
        assert field[out.mask].min() >= 0
        assert field[out.mask].max() < size
    assert torch.allclose(out.loss, out.coordinate_loss.mean() + out.quantiser_loss)


def corners_of(batch: Any) -> Tensor:
    """(b, f, k, 3): coordinates of each corner; zero in padding."""
    rows = torch.arange(len(batch.faces))[:, None, None]
    corners = batch.vertices[rows, batch.faces.clamp_min(0)]
    return torch.where((batch.faces >= 0)[..., None], corners, 0)


def test_targets_are_the_bins_of_the_corners() -> None:
    batch = shapes(range(2))
    out = run(small(), batch)
    corners = corners_of(batch)
    assert torch.equal(out.target[out.mask], geometry.discretise(corners)[out.mask])


def test_without_any_training_every_bin_comes_back_exactly() -> None:
    """The straight way: what is learned later can only move things by less than a bin."""
    torch.manual_seed(0)
    everywhere = geometry.undiscretise(torch.arange(128))[:, None].expand(-1, 3).roll(1, 0)
    batch = padded([(everywhere, torch.arange(126).view(-1, 3))], 50)
    for model in (MeshAutoencoder(**SMALL), small()):
        out = run(model, batch)
        assert torch.equal(out.bins, out.target)
        output = model.reconstruct(batch.vertices, batch.faces)
        corners = corners_of(batch)
        assert torch.allclose(output.coordinates, corners, **EXACT)


def test_the_straight_way_reaches_the_first_and_the_last_code() -> None:
    ends = torch.tensor([[-1.0, -1, -1], [1, 1, 1], [-1, 1, 0.3]])
    codes = run(MeshAutoencoder(**SMALL), padded([(ends, [[0, 1, 2]])], 1)).codes
    assert codes[0, 0, :4].tolist() == [0, 0, 13823, 13823]


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_tokens_are_those_of_forward_and_decode_to_its_prediction(quantiser: str) -> None:
    model, batch = small(quantiser=quantiser).eval(), shapes(range(4))
    out = run(model, batch)
    codes = model.tokenize(batch.vertices, batch.faces)
    assert torch.equal(codes, out.codes)
    output = model.decode_codes(codes)
    assert torch.equal(output.mask, out.mask)
    positions, _ = model.decode(
        model.bottleneck.ids_to_values(ids_of(codes), torch.float32),
        torch.where(out.mask, 0, -1),
    )
    merged = by_code(codes, positions, out.mask)
    actual = geometry.discretise(output.coordinates)
    assert torch.equal(actual[out.mask], model.nearest_bin(merged)[out.mask])
    assert torch.equal(model.nearest_bin(positions)[out.mask], out.bins[out.mask])
    assert (output.coordinates[~out.mask] == 0).all()


def ids_of(codes: Tensor) -> Tensor:
    return codes.clamp_min(0).unflatten(-1, (3, 2))


def by_code(codes: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """The mean over corners with equal codes, the slow way."""
    out = positions.clone()
    for b in range(len(codes)):
        rows, values = codes[b][mask[b]].view(-1, 2), positions[b][mask[b]].view(-1, 3)
        means = torch.stack([values[(rows == row).all(1)].mean(0) for row in rows])
        out[b][mask[b]] = means.view(-1, 3, 3)
    return out


@QUANTISERS
def test_corners_with_equal_codes_come_out_equal(quantiser: str) -> None:
    torch.manual_seed(0)
    model = small(quantiser=quantiser).eval()
    nn.init.normal_(model.head.weight, std=3.0)
    codes = torch.randint(0, 3, (2, 40, 6))
    codes[1, 30:] = -1
    output = model.decode_codes(codes)
    assert output.mask.sum(1).tolist() == [40, 30]
    for index in range(2):
        keys = codes[index][output.mask[index]].view(-1, 2)
        points = output.coordinates[index][output.mask[index]].view(-1, 3)
        assert torch.cat((keys, points), 1).unique(dim=0).shape[0] == keys.unique(dim=0).shape[0]


def test_merging_averages_within_a_mesh_and_never_across() -> None:
    codes = torch.tensor([[[5, 1], [2, 2], [5, 1]], [[5, 1], [1, 5], [0, 0]]])
    values = torch.arange(6.0).view(2, 3, 1)
    expected = torch.tensor([[1.0, 1, 1], [3, 4, 5]])
    assert torch.equal(average_equal_codes(codes, values, 6)[..., 0], expected)


def test_codes_of_any_source_decode_to_finite_places_inside() -> None:
    model = small().eval()
    codes = torch.randint(0, 20_000, (2, 30, 6))
    codes[0, 3, 2] = -1
    output = model.decode_codes(codes)
    assert output.coordinates.isfinite().all()
    assert output.coordinates.abs().max() <= 1
    assert output.mask.sum(1).tolist() == [29, 30]


def test_codes_of_no_face_decode_to_no_face() -> None:
    output = small().decode_codes(torch.zeros(2, 0, 6, dtype=torch.long))
    assert output.coordinates.shape == (2, 0, 3, 3)


def test_the_older_call_takes_both_layouts_and_a_mask() -> None:
    model, batch = small().eval(), shapes(range(2))
    codes = model.tokenize(**batch._asdict())
    ours = model.decode_codes(codes)
    theirs = model.decode_from_codes_to_faces(codes.reshape(len(codes), -1, 2))
    assert torch.equal(theirs.coordinates, ours.coordinates)
    half = ours.mask.clone()
    half[:, 10:] = False
    kept = model.decode_from_codes_to_faces(codes, face_mask=half)
    assert torch.equal(kept.mask, half)


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_padding_never_leaks(quantiser: str) -> None:
    model, batch = small(quantiser=quantiser).double().eval(), shapes(range(4), 150)
    vertices, faces, neighbours = batch
    out = run(model, batch)
    garbage = vertices.clone()
    used = torch.zeros(vertices.shape[:2], dtype=torch.bool)
    for index, rows in enumerate(faces):
        used[index, rows[rows >= 0]] = True
    garbage[~used] = 77.0
    ragged, wild = faces.clone(), neighbours.clone()
    ragged[~out.mask] = torch.tensor([3, -1, 5])
    wild[~out.mask] = 0
    other = model(garbage, ragged, neighbours=wild)
    more = (
        torch.cat((vertices, torch.rand(len(vertices), 60, 3)), 1),
        torch.cat((faces, torch.full((len(faces), 20, 3), -1)), 1),
    )
    longer = model(*more)
    for name in ("coordinate_loss", "bins", "target", "codes", "mask"):
        expected = getattr(out, name)
        assert torch.allclose(getattr(other, name), expected, **EXACT), name
        actual = getattr(longer, name)
        actual = actual[:, :150] if actual.ndim > 1 else actual
        assert torch.allclose(actual, expected, **EXACT), name
    if quantiser == "fsq":
        assert torch.allclose(longer.loss, out.loss, **EXACT)
        assert torch.allclose(other.loss, out.loss, **EXACT)
    padded_codes = model.decode_codes(longer.codes).coordinates[:, :150]
    assert torch.allclose(padded_codes, model.decode_codes(out.codes).coordinates, **EXACT)


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_a_mesh_does_not_depend_on_its_batch(quantiser: str) -> None:
    model, batch = small(quantiser=quantiser).double().eval(), shapes(range(3))
    whole = run(model, batch)
    for index in range(3):
        alone = run(model, Batch(*(field[index : index + 1] for field in batch)))
        assert torch.allclose(alone.coordinate_loss[0], whole.coordinate_loss[index], atol=1e-9)
        assert torch.equal(alone.codes[0], whole.codes[index])


@pytest.mark.by_default("fsq-1", "vq-500")
@pytest.mark.parametrize("unit", [1, 500])
@QUANTISERS
def test_packed_meshes_are_reconstructed_like_meshes_alone(quantiser: str, unit: int) -> None:
    """So are loss and gradients, where no statistics of a batch enter."""
    model = small(quantiser=quantiser).double().eval()
    meshes = [build(compose(number)) for number in range(4)]
    batch = Collate(250, 3, unit)([{"vertices": v, "faces": f} for v, f in meshes])
    tables = {name: batch[name] for name in ("neighbours", "lengths")}
    out = model(batch["vertices"].double(), batch["faces"], **tables)
    assert (out.mask.shape[1] == out.mask.sum()) == (unit == 1)
    expected, end = torch.zeros((), dtype=torch.float64), 0
    for index, (vertices, faces) in enumerate(meshes):
        alone = run(model, padded([(vertices, faces)], len(faces)))
        begin, end = end, end + len(faces)
        assert torch.allclose(out.coordinate_loss[index], alone.coordinate_loss[0], atol=1e-9)
        for name in ("bins", "target", "codes", "mask"):
            assert torch.equal(getattr(out, name)[0, begin:end], getattr(alone, name)[0]), name
        expected = expected + alone.loss / len(meshes)
    assert not out.mask[0, end:].any()
    if quantiser != "fsq":
        return
    assert torch.allclose(out.loss, expected, atol=1e-9)
    parameters = list(model.parameters())
    actual, wanted = (torch.autograd.grad(loss, parameters) for loss in (out.loss, expected))
    for a, b in zip(actual, wanted):
        assert torch.allclose(a, b, atol=1e-9)


def test_the_loss_of_a_batch_is_the_mean_of_its_micro_batches() -> None:
    model, batch = small().double(), shapes(range(4))
    parts = [run(model, Batch(*(field[i : i + 1] for field in batch))).loss for i in range(4)]
    assert torch.allclose(torch.stack(parts).mean(), run(model, batch).loss, atol=1e-9)


def test_a_mesh_without_faces_costs_nothing_and_harms_nobody() -> None:
    model, batch = small(), shapes(range(2))
    batch.faces[0], batch.neighbours[0] = -1, -1
    out = run(model, batch)
    out.loss.backward()
    assert out.coordinate_loss[0] == 0
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_neighbours_edges_and_neither_agree() -> None:
    model, batch = small().eval(), shapes(range(3))
    neighbours = [geometry.face_neighbours(faces, 99) for faces in batch.faces]
    faces_of = [(table >= 0).nonzero()[:, 0] for table in neighbours]
    edges = [torch.stack((f, table[table >= 0]), 1) for f, table in zip(faces_of, neighbours)]
    longest = max(len(pairs) for pairs in edges)
    table = torch.full((3, longest, 2), -1)
    for index, pairs in enumerate(edges):
        table[index, : len(pairs)] = pairs
    expected = run(model, batch)
    for other in ({}, {"face_edges": table}):
        actual = model(batch.vertices, batch.faces, **other)
        assert torch.equal(actual.loss, expected.loss)


def test_neighbours_change_the_encoding() -> None:
    model, batch = small().double(), shapes(range(2))
    alone = batch._replace(neighbours=torch.full_like(batch.neighbours, -1))
    connected, isolated = (
        model.encode(model.prepare(b.vertices, b.faces, None, b.neighbours))[0]
        for b in (batch, alone)
    )
    assert (connected - isolated).abs().max() > 1e-3


def random_links(seed: int) -> Adjacency:
    """Of a table that names itself, names twice, and names without being named."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-1, 7, (2, 7, 5), generator=generator)
    mask = torch.rand(2, 7, generator=generator) > 0.2
    return adjacency(table, mask)


@pytest.mark.by_default("0", "3")
@pytest.mark.parametrize("seed", range(5))
def test_links_are_symmetric_so_the_backward_is_exact(seed: int) -> None:
    edges = random_links(seed)
    dense = torch.zeros(14, 14)
    rows = torch.arange(14).view(2, 7, 1).expand_as(edges.rows)
    dense.index_put_((rows[edges.mask], edges.rows[edges.mask]), torch.ones(()), True)
    assert torch.equal(dense, dense.T)
    assert dense.max() <= 1
    assert dense.diagonal().sum() == 0
    messages = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    out = NeighbourSum.apply(messages, edges.rows, edges.mask)
    assert torch.allclose(out.flatten(0, 1), dense.double() @ messages.flatten(0, 1))
    assert torch.autograd.gradcheck(NeighbourSum.apply, (messages, edges.rows, edges.mask))


def test_logistic_loss_is_the_log_of_the_mass_in_each_bin() -> None:
    mean = torch.tensor([-3.0, 0.2, 7.4, 15.0, 40.0], dtype=torch.float64)
    scale = torch.tensor([0.06, 0.5, 1.0, 3.0, 20.0], dtype=torch.float64)
    ids = torch.arange(16)[:, None]
    mass = torch.exp(-logistic_loss(ids, mean, scale.log(), 16))
    assert torch.allclose(mass.sum(0), torch.ones(5, dtype=torch.float64))
    middle = torch.sigmoid((7.5 - mean) / scale) - torch.sigmoid((6.5 - mean) / scale)
    assert torch.allclose(mass[7], middle)
    far = logistic_loss(
        torch.tensor([0, 64, 127]), torch.tensor([127.0, 0, 0]), torch.tensor(-3.0), 128
    )
    assert far.isfinite().all()


@pytest.mark.by_default("3-fsq", "4-vq")
@QUANTISERS
@pytest.mark.parametrize("corners", [3, 4])
def test_every_parameter_receives_a_gradient(quantiser: str, corners: int) -> None:
    model = small(quantiser=quantiser, corners=corners).train()
    out = run(model, shapes(range(3)) if corners == 3 else quads())
    out.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_quads_go_through_their_codes() -> None:
    model, batch = small(corners=4).eval(), quads()
    out = run(model, batch)
    assert out.codes.shape == (2, 16, 8)
    assert torch.equal(out.bins, out.target)
    output = model.reconstruct(batch.vertices, batch.faces)
    assert output.coordinates.shape == (2, 16, 4, 3)
    assert output.mask.sum(1).tolist() == [12, 6]


class Step:
    skipped = torch.zeros(())

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def noise(self, like: Tensor, name: str) -> Tensor:
        return keyed_normal(like, 1)


def train(model: MeshAutoencoder, batch: Batch, steps: int, rate: float) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    losses: list[float] = []
    for _ in range(steps):
        out = run(model, batch)
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.commit(Step())
        losses.append(out.coordinate_loss.mean().item())
    return losses


@pytest.mark.by_default("vq")
@pytest.mark.parametrize("quantiser", ["lfq", "vq"])
def test_learned_codes_learn(quantiser: str) -> None:
    torch.manual_seed(0)
    model = MeshAutoencoder(**(SMALL | {"quantiser": quantiser}))
    losses = train(model, shapes(range(4)), 25, 1e-2)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.5


@pytest.fixture(scope="module")
def trained() -> tuple[MeshAutoencoder, Batch, Reconstruction]:
    """A model after 25 steps, shapes that it has not seen, and what it made of them before."""
    torch.manual_seed(0)
    model, unseen = MeshAutoencoder(**SMALL), shapes(range(1000, 1016))
    before = run(model, unseen)
    train(model, shapes(range(16)), 25, 5e-3)
    return model.eval(), unseen, before


def test_training_sharpens_unseen_shapes_and_keeps_them_exact(trained: Any) -> None:
    model, unseen, before = trained
    after = run(model, unseen)
    error = (after.bins - after.target).abs()[after.mask]
    assert (error <= 1).double().mean() > 0.999
    assert (error == 0).double().mean() > 0.99
    assert after.coordinate_loss.mean() < 0.2 * before.coordinate_loss.mean()


def test_after_training_a_place_still_has_one_code_nearly_everywhere(trained: Any) -> None:
    """The model that writes codes later must not guess what the graph added to them."""
    model, unseen, _ = trained
    fixed = MeshAutoencoder(model.config, max_offset=0.0)
    codes, positions = model.tokenize(**unseen._asdict()), fixed.tokenize(**unseen._asdict())
    assert (codes == positions).double().mean() > 0.97


def test_the_same_seed_trains_bit_for_bit_with_deterministic_algorithms() -> None:
    batch, ends = shapes(range(4)), []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            torch.manual_seed(0)
            model = MeshAutoencoder(**SMALL)
            train(model, batch, 3, 1e-3)
            ends.append(model)
            model.reconstruct(batch.vertices, batch.faces)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(ends[0].parameters(), ends[1].parameters()):
        assert torch.equal(a, b)


@QUANTISERS
def test_it_trains_under_bf16_autocast_and_answers_in_fp32(quantiser: str) -> None:
    model, batch = small(quantiser=quantiser), shapes(range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run(model, batch)
        codes = model.tokenize(**batch._asdict())
    assert out.loss.dtype == out.coordinate_loss.dtype == torch.float32
    assert torch.equal(codes, out.codes)
    out.loss.backward()


OTHER_GRAPHS = [("vq", True), ("fsq", True), ("lfq", True), ("fsq", False)]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize(
    ("quantiser", "training", "backend"),
    [
        # With statistics of its own. Graphs of the gradients take ten seconds each.
        ("vq", True, "eager"),
        *(pytest.param(*case, "aot_eager", marks=pytest.mark.slow) for case in OTHER_GRAPHS),
    ],
)
def test_forward_and_backward_are_one_graph(quantiser: str, training: bool, backend: str) -> None:
    torch.compiler.reset()
    model = small(quantiser=quantiser, encoder_layers=1, decoder_layers=1).train(training)
    batch = shapes(range(2), 100)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    out = compiled(batch.vertices, batch.faces, neighbours=batch.neighbours)
    out.loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected = run(model, batch)
    expected.loss.backward()
    assert torch.allclose(out.loss, expected.loss, atol=1e-5)
    assert torch.equal(out.codes, expected.codes)
    for grad, parameter in zip(grads, model.parameters()):
        assert torch.allclose(grad, parameter.grad, atol=1e-4)


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_a_saved_model_comes_back(quantiser: str, tmp_path: Path) -> None:
    model, batch = small(quantiser=quantiser).eval(), shapes(range(2))
    model.save_pretrained(tmp_path / "model")
    again = MeshAutoencoder.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(run(again, batch).loss, run(model, batch).loss)
    assert MeshAutoencoder.label() == "mesh/autoencoder"


def test_another_model_s_folder_is_refused(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    about = (tmp_path / "config.json").read_text().replace("mesh/autoencoder", "mesh/Other")
    (tmp_path / "config.json").write_text(about)
    with pytest.raises(RunError, match="mesh/Other"):
        MeshAutoencoder.from_pretrained(tmp_path)


def test_keywords_build_the_same_configuration() -> None:
    assert MeshAutoencoder(**SMALL).config == MeshAutoencoderConfig(**SMALL)
    with pytest.warns(FutureWarning) as caught:
        older = MeshAutoencoder(**SMALL, num_discrete_coors=64, num_quantizers=1)
    assert "num_discrete_coors is now called bins" in {str(w.message) for w in caught}
    assert (older.config.bins, older.config.depth) == (64, 1)
    assert MeshAutoencoder(older.config, bins=32).config.bins == 32


@pytest.mark.parametrize(
    "wrong",
    [{"bins": 1}, {"levels": (24, 24)}, {"levels": (1, 2, 3)}, {"depth": 0}, {"depth": 5}],
)
def test_contradictions_are_refused_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MeshAutoencoderConfig(**wrong)


def test_inputs_of_another_shape_are_refused_with_the_remedy() -> None:
    model, batch = small(), quads()
    with pytest.raises(ValueError, match="corners"):
        model(batch.vertices, batch.faces)
    with pytest.raises(ValueError, match="expected vertices"):
        model(batch.vertices[0], batch.faces)
    triangles = shapes(range(2))
    with pytest.raises(ValueError, match="pass a neighbour table as neighbours="):
        model(*triangles)
    with pytest.raises(ValueError, match="expected neighbours"):
        model(triangles.vertices, triangles.faces, neighbours=triangles.neighbours[:, :3])


def test_the_full_model_has_about_nine_million_parameters() -> None:
    with torch.device("meta"):
        model = MeshAutoencoder()
    assert 8e6 < sum(parameter.numel() for parameter in model.parameters()) < 10e6
