"""fp32 means fp32: no product of a quantiser, a loss or an alignment is rounded to TF32."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from quintet.nn import precision
from quintet.nn.alignment import Aligner
from quintet.nn.perceptual import StructuralDistance
from quintet.nn.quantisers.bsq import BSQ
from quintet.nn.quantisers.continuous import BoundedBottleneck, GaussianBottleneck
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.residual import ResidualQuantiser
from quintet.nn.quantisers.vq import VectorQuantiser

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 exists on CUDA alone")
BOTTLENECKS: dict[str, Callable[[], nn.Module]] = {
    "fsq": lambda: FSQ(64, (8, 5, 5)),
    "lfq": lambda: LFQ(64, 10),
    "bsq": lambda: BSQ(64, 10),
    "vq": lambda: VectorQuantiser(64, 512),
    "residual": lambda: ResidualQuantiser([VectorQuantiser(64, 512) for _ in range(2)]),
    "kl": lambda: GaussianBottleneck(64, 4),
    "bounded": lambda: BoundedBottleneck(64, 4),
}


@pytest.fixture
def high() -> Iterator[None]:
    """As in a run in bf16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


class Products(TorchDispatchMode):
    """The names of the operations that multiply matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("aten::mm", "aten::addmm", "aten::bmm", "quintet::matmul"):
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def products(build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> set[str]:
    """Those of a forward and a backward pass on the meta device, which are those on a GPU."""
    with Products() as recorded:
        network = build().to("meta")
        inputs = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
        output = network(*inputs)
        values = output if isinstance(output, Tensor) else output.values.sum() + output.loss
        values.sum().backward()
    return recorded.names


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_bottlenecks_multiply_without_tf32(name: str) -> None:
    assert products(BOTTLENECKS[name], (2, 64, 4, 4)) == {"quintet::matmul"}


def test_losses_multiply_without_tf32() -> None:
    images = (2, 3, 32, 32)
    assert products(StructuralDistance, images, images) == {"quintet::matmul"}


def test_alignments_multiply_without_tf32() -> None:
    class Aligned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aligner = Aligner(8, 8)

        def forward(self, tokens: Tensor, frames: Tensor) -> Tensor:
            counts = [torch.full((2,), n, device=tokens.device) for n in (5, 9)]
            return self.aligner(tokens, frames, *counts)

    assert products(Aligned, (2, 5, 8), (2, 9, 8)) == {"quintet::matmul"}


def test_full_precision_products_have_exact_gradients_of_first_and_second_order() -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    cases: list[Any] = [
        (draw(2, 3, 4), draw(4, 5), draw(5)),
        (draw(3, 4), draw(4, 2), None),
        (draw(2, 3, 4), draw(2, 4, 5), None),
    ]
    for case in cases:
        assert gradcheck(precision._matmul, case)
        assert gradgradcheck(precision._matmul, case)


def test_tf32_is_off_inside_the_block_and_as_before_after_an_error(high: None) -> None:
    def flags() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    @precision.without_tf32()
    def fail() -> None:
        raise KeyError(flags())

    before = flags()
    with pytest.raises(KeyError) as error:
        fail()
    assert error.value.args[0] == ("highest", False)
    assert flags() == before == ("high", True)


@needs_cuda
@pytest.mark.parametrize("name", ["fsq", "lfq", "bsq", "vq", "residual"])
def test_ids_are_those_of_fp32_whatever_the_precision_of_the_run(name: str, high: None) -> None:
    network = BOTTLENECKS[name]().cuda().eval()
    latents = torch.randn(64, 64, 32, 32, device="cuda")
    with torch.no_grad():
        ids = network(latents).ids
        torch.set_float32_matmul_precision("highest")
        expected = network(latents).ids
        torch.set_float32_matmul_precision("high")
        assert torch.equal(ids, expected)
        graph, static = torch.cuda.CUDAGraph(), latents.clone()
        with torch.cuda.graph(graph):
            captured = network(static).ids
        graph.replay()
        assert torch.equal(captured, expected)


@needs_cuda
def test_compiled_ids_are_those_of_fp32(high: None) -> None:
    network = BOTTLENECKS["vq"]().cuda().eval()
    latents = torch.randn(16, 64, 32, 32, device="cuda")
    with torch.no_grad():
        expected = network(latents).ids
        compiled = torch.compile(network, fullgraph=True)(latents).ids
    # The compiler may sum a norm in another order: an id in thousands, not the 0.3 % of TF32.
    assert (compiled != expected).double().mean() < 2e-4
