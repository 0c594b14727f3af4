from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quintet.nn.lpips import ALEXNET, LPIPS, alexnet_features, vgg16_features


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """Random weights of the right shapes, in half precision to keep the file small."""
    with torch.device("meta"):
        shapes = vgg16_features().state_dict()
    generator = torch.Generator().manual_seed(0)
    return {f"features.{name}": random(value, generator) for name, value in shapes.items()}


def random(like: Tensor, generator: torch.Generator) -> Tensor:
    fan_in = max(1, like[0].numel())
    values = torch.empty(like.shape, dtype=torch.bfloat16).uniform_(-1, 1, generator=generator)
    return values * (6 / fan_in) ** 0.5 if like.ndim == 4 else values * 0


@pytest.fixture(scope="module")
def file(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vgg") / "vgg16.safetensors"
    save_file(weights, path)
    return path


def test_distance_is_per_sample_and_has_a_gradient_to_images_only(file: Path) -> None:
    distance = LPIPS(file)
    a, b = torch.rand(2, 2, 3, 32, 32)
    a.requires_grad_()
    values = distance(a, b)
    assert values.shape == (2,)
    assert torch.allclose(distance(b, b), torch.zeros(2))
    values.sum().backward()
    assert a.grad is not None
    assert a.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in distance.parameters())


def test_it_stays_in_eval(file: Path) -> None:
    assert not any(module.training for module in LPIPS(file).train().modules())


def test_linear_heads_weigh_channels(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "lpips.safetensors"
    widths = (64, 128, 256, 512, 512)
    save_file(
        weights | {f"lin{i}.weight": torch.zeros(1, w, 1, 1) for i, w in enumerate(widths)}, path
    )
    a, b = torch.rand(2, 1, 3, 32, 32)
    assert LPIPS(path)(a, b) == 0


WIDTHS = (64, 192, 384, 256, 256)


@pytest.fixture(scope="module")
def alexnet() -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = alexnet_features().state_dict()
    generator = torch.Generator().manual_seed(1)
    return {f"features.{name}": random(value, generator) for name, value in shapes.items()}


def heads(name: str, widths: tuple[int, ...] = WIDTHS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = {name.format(i): (1, width, 1, 1) for i, width in enumerate(widths)}
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def slice_of(layer: int) -> int:
    """Slices of the lpips package end at the activations that are compared."""
    return next(index for index, last in enumerate(ALEXNET.taps, 1) if layer <= last)


def test_published_names_of_heads_and_trunks_are_known(alexnet: dict[str, Tensor]) -> None:
    a, b = torch.rand(2, 2, 3, 40, 40)
    expected = LPIPS(alexnet | heads("lin{}.weight"), ALEXNET)(a, b)
    assert not torch.allclose(expected, LPIPS(alexnet, ALEXNET)(a, b))
    published = LPIPS(alexnet | heads("lin{}.model.1.weight"), ALEXNET)
    assert torch.equal(published(a, b), expected)
    whole = {"scaling_layer.shift": torch.zeros(1, 3, 1, 1), **heads("lin{}.model.1.weight")}
    whole |= heads("lins.{}.model.1.weight")  # the package's state has them twice
    for name, value in alexnet.items():
        _, layer, kind = name.split(".")
        whole[f"net.slice{slice_of(int(layer))}.{layer}.{kind}"] = value
    assert torch.equal(LPIPS(whole, ALEXNET)(a, b), expected)


@pytest.mark.parametrize("name", ["lin{}.model.7.weight", "linear{}.weight"])
def test_heads_that_are_not_known_are_refused(alexnet: dict[str, Tensor], name: str) -> None:
    with pytest.raises(ValueError, match=r"has the LPIPS heads lin.*give all of them, or none"):
        LPIPS(alexnet | heads(name), ALEXNET)


def test_some_heads_are_refused(alexnet: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file(alexnet | heads("lin{}.model.1.weight", WIDTHS[:3]), path)
    with pytest.raises(
        ValueError, match=r"some\.safetensors has the LPIPS heads lin0\.weight, lin1"
    ):
        LPIPS(path, ALEXNET)


def test_heads_of_another_trunk_are_refused(alexnet: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"of \(64, 128, 256, 512, 512\) channels, not \(64, 192"):
        LPIPS(alexnet | heads("lin{}.weight", (64, 128, 256, 512, 512)), ALEXNET)


def test_missing_tensors_are_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    save_file({"features.0.weight": torch.zeros(64, 3, 3, 3)}, path)
    with pytest.raises(ValueError, match=r"part\.safetensors lacks 25 .*features\.28\.weight"):
        LPIPS(path)


def test_wrong_shapes_are_named(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file(weights | {"features.0.weight": torch.zeros(64, 3, 5, 5)}, path)
    with pytest.raises(ValueError, match=r"another shape.*features\.0\.weight"):
        LPIPS(path)


def test_a_file_that_is_absent_or_not_safetensors_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        LPIPS(tmp_path / "absent.safetensors")
    path = tmp_path / "junk.safetensors"
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(ValueError, match="junk"):
        LPIPS(path)
