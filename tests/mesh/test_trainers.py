"""MeshAutoencoderTrainer and MeshTransformerTrainer: the mesh room for Python users."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quintet
from harness import assert_same, lines, tensors
from quintet.engine.errors import RunError
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.geometry import face_neighbours
from quintet.mesh.transformer.config import GenerationConfig

FIELDS = ["vertices", "faces", "face_edges", "texts"]
SMALL = MeshDataConfig(max_faces=12, builtin_count=16, valid_limit=2)
SHARED: dict[str, Any] = {
    "steps": 4,
    "batch_size": 4,
    "warmup_steps": 2,
    "evaluate_every": 4,
    "save_every": 2,
    "log_every": 1,
    "valid_fraction": 0.25,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "trackers": (),
    "progress": False,
}


def autoencoder(**changes: Any) -> quintet.MeshAutoencoder:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"dim": 32, "message_dim": 16, "levels": (12, 12, 12)}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    return quintet.MeshAutoencoder(**settings | layers | changes)


def transformer(inside: Any = None, **changes: Any) -> quintet.MeshTransformer:
    held = inside if inside is not None else autoencoder()
    torch.manual_seed(0)
    settings: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16}
    fine = {"fine_layers": 1, "fine_heads": 2, "fine_head_dim": 16}
    text = {"text_layers": 1, "text_length": 48, "max_faces": 12}
    return quintet.MeshTransformer(held, **settings | fine | text | changes)


def first_stage(run: Path, model: Any = None, **changes: Any) -> quintet.MeshAutoencoderTrainer:
    keywords = {**SHARED, "run": run, **changes}
    if "meshes" not in keywords:
        keywords.setdefault("max_faces", 12)
    return quintet.MeshAutoencoderTrainer(model if model is not None else autoencoder(), **keywords)


def second_stage(run: Path, model: Any = None, **changes: Any) -> quintet.MeshTransformerTrainer:
    generation = GenerationConfig(count=1, reference_count=4)
    keywords = {**SHARED, "run": run, "generation": generation, **changes}
    return quintet.MeshTransformerTrainer(model if model is not None else transformer(), **keywords)


ALONE = {"valid_fraction": 0.0}  # nothing is held out, so nothing is measured and the test is quick
STAGES = pytest.mark.parametrize("stage", [first_stage, second_stage])


class Shapes:
    """Twelve meshes, as a person might hand them over."""

    def __init__(self, kind: str = "dict", **wrong: Any):
        from quintet.mesh.data import BuiltinMeshes

        self.kind, self.wrong = kind, wrong
        self.data = BuiltinMeshes(MeshDataConfig(max_faces=12, builtin_count=12), "train")
        if kind == "named":
            self.data_kwargs = FIELDS

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        sample = self.data.keyed(index, None)
        vertices, faces, text = sample["vertices"], sample["faces"], sample["text"]
        edges = torch.zeros(1, 2, dtype=torch.int64)
        match self.kind:
            case "dict":
                actual = {"vertices": vertices, "faces": faces, "text": text}
            case "arrays":
                actual = {"vertices": vertices.numpy(), "faces": faces.int().numpy()}
            case "padded":
                more = torch.full((3, 3), -1)
                actual = {"vertices": vertices, "faces": torch.cat([faces, more]), "texts": text}
            case "pair":
                return vertices, faces
            case "triple":
                return vertices, faces, text
            case "edges":
                return vertices, faces, edges
            case "strange":
                return vertices, faces, text, edges
            case _:
                return vertices, faces, edges, text
        return {**actual, **self.wrong}


# -- data -------------------------------------------------------------------------------------


@pytest.mark.by_default("*-first_stage", "dict-second_stage")
@STAGES
@pytest.mark.parametrize("kind", ["dict", "arrays", "padded", "triple", "named"])
def test_a_data_set_of_any_kind_trains(stage: Callable, kind: str, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=Shapes(kind), steps=1, **ALONE)
    assert actual.train() == 1
    assert actual.recipe.data == "python:dataset"
    assert lines(tmp_path / "run")[0]["data/damaged"] == 0


@pytest.mark.by_default("first_stage")
@STAGES
def test_tuples_are_named_by_data_kwargs(stage: Callable, tmp_path: Path) -> None:
    """Both stages share one data set: the autoencoder has no use for texts."""
    by_name, by_dict = tmp_path / "names", tmp_path / "dicts"
    stage(by_name, dataset=Shapes("tuple"), data_kwargs=FIELDS, **ALONE).train()
    stage(by_dict, dataset=Shapes("dict"), **ALONE).train()
    assert_same(tensors(by_name, 4), tensors(by_dict, 4))


@pytest.mark.by_default("first_stage")
@STAGES
def test_built_in_shapes_are_there_without_any_data(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", meshes=SMALL)
    assert actual.recipe.data is None
    assert actual.train() == 4
    last = [r for r in lines(tmp_path / "run") if "val/loss" in r][-1]
    assert last["step"] == 4
    assert ("val/agrees" in last) == (stage is second_stage)


@pytest.mark.parametrize(
    "stage",
    # test_stages.py evaluates and resumes a run of the second stage as well.
    [first_stage, pytest.param(second_stage, marks=pytest.mark.slow)],
)
def test_a_folder_trains_and_the_command_line_knows_the_run(
    stage: Callable, chairs: Path, tmp_path: Path, cli: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    actual = stage(tmp_path / "run", data=chairs.name, steps=2)
    assert actual.recipe.data == str(chairs)
    assert actual.train() == 2
    monkeypatch.chdir("/")
    measured = json.loads(cli("evaluate", tmp_path / "run").out.splitlines()[-1])
    last = [r for r in lines(tmp_path / "run") if "val/loss" in r][-1]
    assert measured["loss"] == pytest.approx(last["val/loss"], rel=1e-6)
    result = cli("resume", tmp_path / "run", "--steps", 3)
    assert result.status == 0, result.err


@pytest.mark.by_default("second_stage")
@STAGES
def test_held_out_meshes_of_the_users_own_are_measured(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=Shapes(), val_dataset=Shapes("triple"), steps=1)
    assert actual.train() == 1
    assert actual.sets is not None
    assert [len(side) for side in actual.sets.values()] == [12, 12]
    assert "val/loss" in lines(tmp_path / "run")[-1]


@STAGES
def test_nothing_held_out_is_a_choice(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=Shapes(), steps=1, **ALONE)
    assert actual.train() == 1
    assert not any("val/loss" in line for line in lines(tmp_path / "run"))


@STAGES
def test_data_is_given_once(stage: Callable, chairs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"data \(a folder\) or dataset"):
        stage(tmp_path / "run", dataset=Shapes(), data=chairs)
    with pytest.raises(RunError, match="val_dataset goes with dataset"):
        stage(tmp_path / "run", data=chairs, val_dataset=Shapes())


class Damaged(Shapes):
    """One of the meshes cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise OSError("the disk says no to mesh 5")
        return super().__getitem__(index)


@pytest.mark.by_default("first_stage")
@STAGES
def test_an_item_that_cannot_be_read_is_skipped_by_name(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=Damaged(), steps=3, **ALONE)
    assert actual.train() == 3
    output = [r["message"] for r in lines(tmp_path / "run", "events") if "message" in r]
    assert [line for line in output if "mesh 5" in line or "sample 5" in line], output


def test_an_item_that_cannot_be_read_has_no_caption_to_read_either(
    encoder: Path, tmp_path: Path
) -> None:
    frozen = {"text": "frozen", "text_path": str(encoder), "text_dim": 12, "text_length": 10}
    model = transformer(**frozen)
    actual = second_stage(tmp_path / "run", model, dataset=Damaged(), steps=1, **ALONE)
    assert actual.train() == 1


# -- what a person gets wrong -----------------------------------------------------------------

WRONG = {
    "an unknown field": ({"colour": torch.zeros(3)}, "colour"),
    "a missing field": ({"faces": None}, "faces"),
    "vertices too far out": ({"vertices": torch.full((30, 3), 3.0)}, "-1 to 1"),
    "vertices that are no numbers": ({"vertices": torch.full((30, 3), torch.nan)}, "-1 to 1"),
    "vertices in a plane": ({"vertices": torch.zeros(8, 2)}, r"\(8, 2\)"),
    "faces in a row": ({"faces": torch.arange(9)}, r"\(9,\)"),
    "faces of five corners": ({"faces": torch.arange(5)[None]}, r"corners|\(f, 3"),
    "faces of quads for triangles": ({"faces": torch.arange(4)[None]}, "corners"),
    "a vertex that is not there": ({"faces": torch.tensor([[0, 1, 99]])}, "vertex 99"),
    "too many faces": ({"faces": torch.tensor([[0, 1, 2]] * 17)}, "max_faces"),
    "no faces": ({"faces": torch.zeros(0, 3, dtype=torch.int64)}, "no faces"),
    "lists": ({"vertices": [[0, 0, 0]]}, "list"),
    "numbers as faces": ({"faces": torch.rand(4, 3)}, "faces"),
}


@pytest.mark.by_default("*-first_stage", "a vertex that is not there-second_stage")
@STAGES
@pytest.mark.parametrize("what", WRONG)
def test_wrong_items_are_refused_with_what_is_wrong(
    stage: Callable, what: str, tmp_path: Path
) -> None:
    wrong, message = WRONG[what]
    with pytest.raises((TypeError, ValueError, RunError), match=message):
        stage(tmp_path / "run", dataset=Shapes(**wrong), **ALONE).train()
    assert not (tmp_path / "run").exists()


@STAGES
def test_items_of_another_kind_are_refused_by_their_number(stage: Callable, tmp_path: Path) -> None:
    class Names(Shapes):
        def __getitem__(self, index: int) -> Any:
            return f"{index}.obj"

    with pytest.raises(TypeError, match=r"sample \d+ is str"):
        stage(tmp_path / "run", dataset=Names()).train()
    with pytest.raises(TypeError, match="data_kwargs names 2"):
        stage(tmp_path / "run", dataset=Shapes("tuple"), data_kwargs=["vertices", "faces"]).train()
    with pytest.raises(TypeError, match="is a tuple of 4"):
        stage(tmp_path / "run", dataset=Shapes("strange")).train()


@pytest.mark.by_default("first_stage")
@STAGES
def test_tuples_in_the_order_of_meshgpt_need_no_names(stage: Callable, tmp_path: Path) -> None:
    plain, old = tmp_path / "plain", tmp_path / "old"
    stage(plain, dataset=Shapes("dict"), steps=1, **ALONE).train()
    stage(old, dataset=Shapes("tuple"), data_kwargs=None, steps=1, **ALONE).train()
    assert_same(tensors(old, 1), tensors(plain, 1))


@STAGES
def test_adjacency_is_never_a_caption(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=Shapes("edges"), steps=1, **ALONE)
    assert actual.sets["train"].keyed(0, None)["text"] == ""
    assert actual.train() == 1


@STAGES
def test_a_caption_that_is_no_string_is_refused(stage: Callable, tmp_path: Path) -> None:
    for wrong in (torch.zeros(4, 2), ["a box"], 7):
        with pytest.raises(TypeError, match=r"caption of sample \d+ is .* data_kwargs"):
            stage(tmp_path / "run", dataset=Shapes(text=wrong), **ALONE).train()


def test_embeddings_of_captions_are_dropped_or_refused(tmp_path: Path) -> None:
    data = Shapes(text_embeds=torch.zeros(4, 8))
    assert first_stage(tmp_path / "first", dataset=data, steps=1, **ALONE).train() == 1
    with pytest.raises(TypeError, match="text='frozen'"):
        second_stage(tmp_path / "second", dataset=data, **ALONE).train()


class OneLong(Shapes):
    """One mesh has more faces than the model takes."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == 7:
            sample["faces"] = sample["faces"][:1].repeat(40, 1)
        return sample


@pytest.mark.by_default("second_stage")
@STAGES
def test_a_mesh_that_is_too_long_is_skipped_by_name(stage: Callable, tmp_path: Path) -> None:
    actual = stage(tmp_path / "run", dataset=OneLong(), steps=6, **ALONE)
    assert actual.train() == 6
    events = [r["message"] for r in lines(tmp_path / "run", "events") if "message" in r]
    (named,) = [line for line in events if "sample 7" in line]
    owner = "max_faces of the MeshTransformer" if stage is second_stage else "max_faces"
    assert f"has 40 faces, more than max_faces = 12: raise {owner}" in named


def test_a_transformer_without_an_autoencoder_is_refused(tmp_path: Path) -> None:
    model = quintet.MeshTransformer(dim=32, layers=1, heads=2, head_dim=16, max_faces=16)
    with pytest.raises(RunError, match="autoencoder"):
        second_stage(tmp_path / "run", model, dataset=Shapes())


def test_meshes_longer_than_the_model_are_refused_by_name(tmp_path: Path) -> None:
    longer = MeshDataConfig(max_faces=40, builtin_count=16, valid_limit=2)
    with pytest.raises((RunError, ValueError), match="max_faces"):
        second_stage(tmp_path / "run", meshes=longer).train()


@STAGES
def test_old_spellings_work_and_name_the_new_ones(stage: Callable, tmp_path: Path) -> None:
    settings = {"steps": None, "save_every": None, "warmup_steps": None}
    kept = {k: v for k, v in SHARED.items() if k not in (*settings, "evaluate_every")}
    kind, model = (
        (quintet.MeshAutoencoderTrainer, autoencoder())
        if stage is first_stage
        else (quintet.MeshTransformerTrainer, transformer())
    )
    with pytest.warns(FutureWarning) as caught:
        actual = kind(
            model,
            Shapes(),
            run=tmp_path / "run",
            num_steps=2,
            lr=1e-3,
            warmup=1,
            checkpoint_every_step=5,
            validate_every_step=7,
            **kept,
        )
    output = {str(warning.message) for warning in caught}
    assert "lr is now called learning_rate" in output
    assert "checkpoint_every_step is now called save_every" in output
    assert all(warning.filename == __file__ for warning in caught)
    assert (actual.recipe.steps, actual.recipe.save_every, actual.recipe.evaluate_every) == (
        2,
        5,
        7,
    )


@STAGES
def test_an_unknown_keyword_is_refused(stage: Callable, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown keyword 'max_face'"):
        stage(tmp_path / "run", dataset=Shapes(), max_face=16)


# -- going on, and afterwards -----------------------------------------------------------------


def test_a_resumed_transformer_keeps_the_autoencoder_it_began_with(tmp_path: Path) -> None:
    """Codes mean what the run's own autoencoder says, whatever is handed over later."""
    data = {"dataset": Shapes(), "steps": 2, **ALONE}
    first = second_stage(tmp_path / "run", **data)
    first.train()
    kept = {k: v.clone() for k, v in first.model.autoencoder.state_dict().items()}
    other = autoencoder()
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    again = second_stage(tmp_path / "run", transformer(other), **data)
    again.train(resume=True)
    assert_same(again.model.autoencoder.state_dict(), kept)


def test_tokens_come_from_the_averaged_weights(tmp_path: Path) -> None:
    actual = first_stage(tmp_path / "run", dataset=Shapes(), learning_rate=0.05)
    actual.train()
    sample = Shapes()[3]
    vertices, faces = sample["vertices"][None], sample["faces"][None]
    codes = actual.tokenize(vertices, faces)
    edges = face_edges_of(faces)
    assert torch.equal(codes, actual.tokenize(vertices, faces, face_edges=edges))
    assert codes.shape == (1, faces.shape[1], 6)
    assert 0 <= codes.min() <= codes.max() < 12**3
    assert torch.equal(codes, quintet.load(tmp_path / "run").tokenize(vertices, faces))
    assert not codes.requires_grad


def face_edges_of(faces: Tensor) -> Tensor:
    """Pairs of adjacent faces (1, e, 2), as data sets of meshgpt-pytorch have them."""
    pairs = [
        (i, int(j))
        for i, row in enumerate(face_neighbours(faces)[0])
        for j in row.tolist()
        if j >= 0
    ]
    return torch.tensor([pairs])


def test_a_single_mesh_is_tokenized_without_a_batch() -> None:
    model, sample = autoencoder(), Shapes()[3]
    vertices, faces = sample["vertices"], sample["faces"]
    codes = model.tokenize(vertices[None], faces[None])[0]
    edges = face_edges_of(faces[None])[0]
    assert torch.equal(codes, model.tokenize(vertices, faces))
    assert torch.equal(codes, model.tokenize(vertices, faces, face_edges=edges))


def same_meshes(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.vertices, b.vertices) and torch.equal(a.faces, b.faces)
        for a, b in zip(one, other)
    )


def test_meshes_are_generated_from_texts(tmp_path: Path) -> None:
    trained = autoencoder()
    first_stage(tmp_path / "first", trained, dataset=Shapes(), **ALONE).train()
    actual = second_stage(tmp_path / "run", transformer(trained), dataset=Shapes(), **ALONE)
    actual.train()
    texts = ["a tall box", "a pyramid"]
    meshes = actual.generate(texts, temperature=0.8, cond_scale=2.0, seed=4)
    assert len(meshes) == 2
    for vertices, faces in meshes:
        assert isinstance(vertices, Tensor)
        assert vertices.shape[1:] == faces.shape[1:] == (3,)
        assert len(faces) <= 12
        assert not len(faces) or int(faces.max()) == len(vertices) - 1
        assert not len(vertices) or vertices.abs().max() <= 1
    again = actual.generate(texts, temperature=0.8, cond_scale=2.0, seed=4)
    assert same_meshes(meshes, again)
    assert not same_meshes(meshes, actual.generate(texts, temperature=0.8, cond_scale=2.0, seed=5))
    loaded = quintet.load(tmp_path / "run")
    assert same_meshes(meshes, loaded.generate(texts, temperature=0.8, cond_scale=2.0, seed=4))
    assert len(actual.generate(batch_size=3, max_faces=4)) == 3


@pytest.mark.by_default("vq")
@pytest.mark.parametrize("quantiser", ["lfq", "vq"])
def test_other_quantisers_go_through_both_stages(quantiser: str, tmp_path: Path) -> None:
    model = autoencoder(quantiser=quantiser, codebook_bits=6, latent_dim=12)
    few = {"dataset": Shapes(), "steps": 2, **ALONE}
    assert first_stage(tmp_path / "first", model, **few).train() == 2
    actual = second_stage(tmp_path / "second", transformer(model), **few)
    assert actual.train() == 2
    assert actual.model.config.codebook_size == 64
    assert np.isfinite(lines(tmp_path / "second")[0]["transformer/loss"])


def test_quads_go_through_both_stages(tmp_path: Path) -> None:
    class Cubes:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            sides = torch.tensor([0.4 + index / 20, 0.5, 0.9])
            points = torch.tensor([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
            quads = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4]]
            return {"vertices": points * sides, "faces": torch.tensor([*quads, [1, 5, 7, 3]])}

    few = {"dataset": Cubes(), "steps": 2}
    model = autoencoder(corners=4)
    assert first_stage(tmp_path / "first", model, **few).train() == 2
    actual = second_stage(tmp_path / "second", transformer(model), **few)
    assert actual.train() == 2
    assert actual.model.config.tokens_per_face == 8
