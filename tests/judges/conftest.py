from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.judges import choosing, i3d, inception, vggish
from quintet.judges import weights as judge_weights
from quintet.judges.base import Judge
from quintet.judges.voice import VoiceEncoder
from quintet.nn.lpips import alexnet_features, vgg16_features


def all_judges() -> list[type[Judge]]:
    return [judge for medium in choosing.MEDIA for judge in choosing.of_medium(medium).values()]


def quick_first(judges: Iterable[type[Judge]]) -> list[Any]:
    """VGG16 is slow, and `lpips_alex` and `fid` run the same code with smaller networks; `kid` has
    the features of `fid`."""
    slow = lambda judge: "vgg" in judge.name or judge.name == "kid"
    marks = lambda judge: [pytest.mark.slow] if slow(judge) else []
    return [pytest.param(judge, marks=marks(judge)) for judge in judges]


def random_like(
    build: Callable[[], nn.Module], prefix: str = "", device: str = "meta"
) -> dict[str, Tensor]:
    """Weights that keep the scale of activations, in half precision to keep files small.

    The device is that of the network whose shapes they have: meta is quick for a large one.
    """
    with torch.device(device):
        shapes = build().state_dict()
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for name, like in shapes.items():
        value = torch.rand(like.shape, generator=generator)
        if name.endswith("running_var"):
            value = value + 0.5
        elif like.ndim > 1:
            value.mul_(2).sub_(1).mul_((6 / like[0].numel()) ** 0.5)
        elif name.endswith("bn.weight"):
            value = 0.9 + 0.2 * value
        else:
            value = 0.1 * (value - 0.5)
        if not name.endswith("num_batches_tracked"):  # as in files that leave it out
            weights[prefix + name] = value.bfloat16()
    return weights


def heads(widths: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {f"lin{i}.model.1.weight": (1, width, 1, 1) for i, width in enumerate(widths)}
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def onnx_features(path: Path, shape: list[int | str]) -> None:
    """A network of one convolution, of the rank of its inputs, and the mean of its activations."""
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(16, 3, *[3] * (len(shape) - 2))).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["maps"]),
        helper.make_node("Relu", ["maps"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["features"]),
    ]
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    given = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["b", 16])
    tensors = [numpy_helper.from_array(kernel, "kernel")]
    graph = helper.make_graph(nodes, "features", [taken], [given], tensors)
    versions = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8}
    path.write_bytes(helper.make_model(graph, **versions).SerializeToString())


@pytest.fixture(scope="session")
def write_onnx() -> Callable[[Path, list[int | str]], None]:
    return onnx_features


VGG_WIDTHS = (64, 128, 256, 512, 512)
ALEX_WIDTHS = (64, 192, 384, 256, 256)


@pytest.fixture(scope="session")
def all_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the judges of pixels; VGG's heads are in a file of their own."""
    folder = tmp_path_factory.mktemp("weights")
    alexnet = random_like(alexnet_features, "features.")
    save_file(random_like(vgg16_features, "features."), folder / "vgg16.safetensors")
    save_file(heads(VGG_WIDTHS), folder / "lpips_vgg.safetensors")
    save_file(alexnet | heads(ALEX_WIDTHS), folder / "lpips_alex.safetensors")
    save_file(random_like(inception.Inception), folder / "inception.safetensors")
    save_file(random_like(i3d.I3D), folder / "i3d.safetensors")
    if find_spec("onnx"):  # a machine with a GPU may have torch alone
        onnx_features(folder / "features.onnx", ["b", 3, "h", "w"])
        onnx_features(folder / "clip_features.onnx", ["b", 3, "t", "h", "w"])
    return folder


@pytest.fixture(scope="session")
def sound_weights(all_weights: Path) -> Path:
    """Those of the judges of sounds, in the same folder."""
    built = {
        "vggish": random_like(vggish.VGGish),
        "resemblyzer": random_like(VoiceEncoder, device="cpu"),
    }
    for name, tensors in built.items():
        floats = {key: value.float() for key, value in tensors.items()}
        save_file(floats, all_weights / f"{name}.safetensors")
    return all_weights


@pytest.fixture
def weights(all_weights: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those weights in place; the large networks see small pictures, to be quick."""
    monkeypatch.setenv("QUINTET_JUDGES", str(all_weights))
    monkeypatch.setattr(inception, "SIDE", 96)
    monkeypatch.setattr(i3d, "SIDE", 64)
    return all_weights


@pytest.fixture
def no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path / "nowhere"))
    monkeypatch.setattr(judge_weights, "find_spec", lambda package: None)  # whatever is installed
    return tmp_path / "nowhere"


@pytest.fixture(scope="session")
def pictures() -> Tensor:
    """(6, 3, 64, 64): coarse shapes with fine texture."""
    generator = torch.Generator().manual_seed(2)
    coarse = F.interpolate(torch.rand(6, 3, 6, 6, generator=generator), 64, mode="bicubic")
    fine = 0.15 * torch.randn(6, 3, 64, 64, generator=generator)
    return (coarse + fine).clamp(0, 1)


@pytest.fixture(scope="session")
def blurred() -> Callable[[Tensor, int], Tensor]:
    """Means over squares of 2 n + 1 pixels, of frames or pictures."""

    def blur(x: Tensor, n: int) -> Tensor:
        padded = F.pad(x, (n, n, n, n), mode="replicate")
        return F.avg_pool2d(padded, 2 * n + 1, 1)

    return blur


@pytest.fixture(scope="session")
def noisy() -> Callable[[Tensor, float], Tensor]:
    """The same noise for every strength."""

    def add(x: Tensor, strength: float) -> Tensor:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
        return (x + strength * noise).clamp(0, 1)

    return add
