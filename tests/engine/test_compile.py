import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from quintet.engine.machine.world import World
from quintet.rooms import build, recipe_function
from toy import ToyRecipe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its compiler's own


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).tanh()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = (
            nn.ModuleList(Layer(width) for _ in range(10)) for width in (8, 4)
        )

    def regions(self) -> list[nn.Module]:
        return [*self.wide, *self.narrow]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.wide:
            x = layer(x)
        x = x[:, :4].contiguous()
        for layer in self.narrow:
            x = layer(x)
        return x


@pytest.fixture
def world() -> World:
    torch.compiler.reset()
    return World(ToyRecipe(device="cpu", precision="fp32", compile="on"))


def test_of_blocks_that_are_alike_one_graph_is_made(world):
    """And they answer as before, under the same names."""
    network, x = Deep(), torch.randn(3, 8)
    exact, names = network(x), list(network.state_dict())
    counters.clear()
    world.compile(network)
    with torch.no_grad(), torch.compiler.set_stance("default", force_backend="aot_eager"):
        torch.testing.assert_close(network(x), exact)
    assert counters["stats"]["unique_graphs"] == 2
    assert list(network.state_dict()) == names


def test_more_shapes_than_the_compiler_allows_by_itself_are_compiled(world):
    network = Deep()
    world.compile(network)
    counters.clear()
    with torch.no_grad(), torch.compiler.set_stance("default", force_backend="aot_eager"):
        for count in range(2, 14):
            network(torch.randn(count, 8))
    assert counters["stats"]["unique_graphs"] == 24


def test_nothing_is_compiled_where_it_is_off():
    network = Deep()
    World(ToyRecipe(device="cpu", precision="fp32", compile="off")).compile(network)
    assert all(module._compiled_call_impl is None for module in network.modules())


def network_of(name):
    task = build(name, recipe_function(name)())
    return task.parts[task.main].network


def compiled_in(network):
    return {module for module in network.modules() if module._compiled_call_impl is not None}


@pytest.mark.parametrize("name", ["music/mulan_tiny", "speech/voicebox_tiny"])
def test_a_network_of_many_like_blocks_is_compiled_by_them(world, name):
    network = network_of(name)
    world.compile(network)
    assert compiled_in(network) == set(network.regions())
    assert len(network.regions()) > 2


def test_the_video_tokenizer_is_compiled_whole_but_where_its_blocks_are_recomputed(world):
    network = network_of("video/tokenizer_tiny")
    world.compile(network)
    assert compiled_in(network) == {network}
    world.recomputes, network = True, network_of("video/tokenizer_tiny")
    world.compile(network)
    assert compiled_in(network) == set(network.regions())
