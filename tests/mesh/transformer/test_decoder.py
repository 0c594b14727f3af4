"""Generation by kernels against the plain generator.

On a GPU the kernels run as they are. Without one they run in Triton's interpreter, in another
process: see tests/nn/test_kernels.py.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.mesh.transformer.config import MeshTransformerConfig
from quintet.mesh.transformer.generator import FaceGenerator, Sampling
from quintet.mesh.transformer.model import MeshTransformer
from quintet.nn.attention import Context
from quintet.shared.generation.generator import sample_keys
from quintet.triton import HAS_TRITON

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1"
SMALL: dict[str, Any] = {
    "dim": 32,
    "layers": 2 if CUDA else 1,
    "heads": 2 if CUDA else 1,
    "head_dim": 12,
    "fine_layers": 1,
    "fine_heads": 2 if CUDA else 1,
    "fine_head_dim": 8,
    "codebook_size": 15,
    "levels": (3, 5),
    "max_faces": 150 if CUDA else 2,
    "text_length": 12,
    "text_layers": 1,
}

runs_kernels = pytest.mark.skipif(
    not HAS_TRITON or not (CUDA or INTERPRETED), reason="needs Triton, and a CUDA device"
)
on_gpu = pytest.mark.skipif(not CUDA or not HAS_TRITON, reason="needs a CUDA device")


@pytest.mark.slow
@pytest.mark.skipif(CUDA, reason="the kernels run on the GPU")
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
def test_generation_holds_in_the_interpreter() -> None:
    if tuple(int(part) for part in version("triton").split(".")[:2]) < (3, 7):
        pytest.skip("the interpreter of Triton before 3.7 fails with NumPy 2.4")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    command += ["-W", "ignore::RuntimeWarning", "-W", "ignore::UserWarning:triton"]
    result = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(autouse=True)
def _single() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def awake(config: MeshTransformerConfig, end_bias: float) -> MeshTransformer:
    """A model whose branches are not zero."""
    torch.manual_seed(0)
    model = MeshTransformer(config)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
        elif parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    nn.init.constant_(model.end_head.bias, end_bias)
    return model.to(DEVICE)


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """A run in bf16 allows TF32 for the rest of its process; the kernels do not use it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def small(end_bias: float = -2.0, **changes: Any) -> MeshTransformer:
    return awake(MeshTransformerConfig(**(SMALL | changes)), end_bias)


@torch.no_grad()
def plain(
    model: MeshTransformer, context: Context | None, count: int, prompt: Any = None, **options: Any
) -> Tensor:
    faces = model.config.max_faces
    table, sampling = model.code_embed(), Sampling(**options)
    copy = model.cast_copy(torch.float32)
    keys = sample_keys(sampling.seed, range(count), "mesh")
    return FaceGenerator(copy, table, context, keys, faces, sampling, prompt).run()


@torch.no_grad()
def by_kernels(
    model: MeshTransformer,
    context: Context | None,
    count: int,
    prompt: Any = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Tensor:
    from quintet.mesh.transformer.decoder import generate

    faces, sampling = model.config.max_faces, Sampling(**options)
    keys = sample_keys(sampling.seed, range(count), "mesh")
    return generate(model, context, keys, faces, sampling, prompt, dtype)


@runs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"seed": 1, "temperature": 0.7},
        {"seed": 2, "cond_scale": 2.5, "distinct": False},
        {"seed": 3, "top_k": 2},
        {"seed": 4, "top_p": 0.6},
    ],
    ids=lambda options: "-".join(options),
)
def test_kernels_generate_the_codes_of_the_plain_generator(options: dict[str, Any]) -> None:
    model = small()
    context = model.encode_captions(["box", "a cone"])
    expected = plain(model, context, 2, **options)
    assert torch.equal(by_kernels(model, context, 2, **options), expected)
    assert len(expected.unique()) > 5


@runs_kernels
def test_kernels_keep_the_order_of_faces_as_the_plain_generator() -> None:
    from quintet.mesh.transformer.generator import precedes

    faces = {"max_faces": 40 if CUDA else 4, "depth": 3, "codebook_size": 20, "levels": (20,)}
    model = small(end_bias=-50.0, text="none", **faces)
    options: dict[str, Any] = {"seed": 3, "temperature": 0.3, "ordered": True}
    expected = plain(model, None, 2, **options)
    assert torch.equal(by_kernels(model, None, 2, **options), expected)
    assert precedes(expected[:, 0], expected[:, 1]).all()
    free = plain(model, None, 2, **options | {"ordered": False})
    assert not torch.equal(free, expected)


@runs_kernels
def test_a_prompt_is_continued_by_kernels_with_any_face() -> None:
    model = small(text="none", corners=4, depth=1)
    prompt = torch.randint(15, (3, 2, 4), device=DEVICE)
    prompt[1, 1] = -1
    expected = plain(model, None, 3, prompt, seed=5)
    assert torch.equal(by_kernels(model, None, 3, prompt, seed=5), expected)
    assert torch.equal(expected[0, :2], prompt[0])


@runs_kernels
def test_a_later_call_sees_new_weights_and_new_captions() -> None:
    from quintet.mesh.transformer import decoder

    model = small(end_bias=-50.0)
    context = model.encode_captions(["box"])
    by_kernels(model, context, 1, seed=1)
    kept = dict(decoder.DECODERS[model].decoders)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    context = model.encode_captions(["a cone"])
    assert torch.equal(by_kernels(model, context, 1, seed=2), plain(model, context, 1, seed=2))
    model.load_state_dict(small().state_dict(), assign=True)
    context = model.encode_captions(["a cone"])
    assert torch.equal(by_kernels(model, context, 1, seed=2), plain(model, context, 1, seed=2))
    assert dict(decoder.DECODERS[model].decoders) == kept


@runs_kernels
def test_chunks_and_padding_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet.mesh.transformer import decoder

    model, texts = small(), ["box", "a cone", "ball"]
    context = model.encode_captions(texts)
    whole = by_kernels(model, context, 3, seed=1)
    monkeypatch.setattr(decoder, "ROWS", (1, 2))
    assert torch.equal(by_kernels(model, context, 3, seed=1), whole)
    assert sorted(key[2] for key in decoder.DECODERS[model].decoders) == [1, 2, 8]
    monkeypatch.setattr(decoder, "free_memory", lambda device: 0.0)
    assert torch.equal(by_kernels(model, context, 3, seed=1, top_p=1.0), whole)
    assert sorted(key[2] for key in decoder.DECODERS[model].decoders) == [1, 1, 2, 8]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_replayed_face_is_the_eager_one(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet.mesh.transformer import decoder

    model = small()
    context = model.encode_captions(["box", "a cone", "ball"])
    options: dict[str, Any] = {"seed": 2, "cond_scale": scale, "dtype": torch.bfloat16}
    captured = by_kernels(model, context, 3, **options)
    monkeypatch.setattr(decoder, "CapturedStep", lambda step: step)
    decoder.DECODERS.clear()
    assert torch.equal(by_kernels(model, context, 3, **options), captured)


@pytest.mark.gpu
@on_gpu
def test_decoders_are_kept_in_bounds_and_leave_with_their_model() -> None:
    import gc

    from quintet.mesh.transformer import decoder

    model = small(text="none", max_faces=4)
    for temperature in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        by_kernels(model, None, 1, temperature=temperature)
    kept = decoder.DECODERS[model].decoders
    assert [key[-1].temperature for key in kept] == [0.7, 0.8, 0.9, 1.0]
    before = len(decoder.DECODERS)
    del model, kept
    gc.collect()
    assert len(decoder.DECODERS) == before - 1


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_bf16_gives_the_same_codes_whatever_the_batch(scale: float) -> None:
    model = awake(MeshTransformerConfig(levels=(24, 24, 24), layers=4, max_faces=100), -4.0)
    texts = ["box", "a cone", "ball", "lamp"] * 10
    many = model.generate_codes(model.encode_captions(texts), 40, seed=1, cond_scale=scale)
    for count in (1, 5, 20):
        context = model.encode_captions(texts[:count])
        few = model.generate_codes(context, count, seed=1, cond_scale=scale)
        assert torch.equal(few, many[:count])
    if scale != 1:
        return
    exact = model.generate_codes(model.encode_captions(texts), 40, seed=1, dtype=torch.float32)
    # A code differs where rounding tips a draw; what follows is then another mesh.
    assert (many[:, 0] == exact[:, 0]).float().mean() > 0.8


@pytest.mark.gpu
@on_gpu
def test_a_face_of_the_default_model_is_few_kernels() -> None:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    from quintet.mesh.transformer import decoder

    model = awake(MeshTransformerConfig(levels=(24, 24, 24)), -1e4)
    model.generate_codes(model.encode_captions(["box"]), 1, max_faces=4)
    (state,) = decoder.DECODERS[model].decoders.values()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        state.take_step(0)
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() or () if event.device_type == DeviceType.CUDA]
    assert 100 < len(kernels) <= 200
