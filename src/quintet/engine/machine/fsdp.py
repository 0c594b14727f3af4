"""Weights in shards: FSDP2 around any part, and the way from shards to whole tensors and back.

Optimizers and averages are handed each process's own shards as plain tensors. What they do is
elementwise, so a shard needs nothing of the others, and the fused kernels serve it as they are:
no operator of DTensor is asked for, on whatever device.

torch's FSDP takes 0.8 s to import, so only `shard` does it: until then nothing can be sharded.
"""

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from quintet.engine.errors import RunError
from quintet.engine.machine.regions import regions_of
from quintet.engine.task import World

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def shard(network: nn.Module, device: torch.device, size: int) -> nn.Module:
    """Shard in place: each block that the network names by itself, then the rest.

    Parameters stay as wide as they are; autocast narrows them after they are gathered, as it does
    without shards, so that both compute the same.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if _is_fsdp(network):
        raise RunError(
            f"{type(network).__name__} is sharded from an earlier run; build a new one, or use "
            "quintet.load on that run"
        )
    with torch.no_grad():  # alike, as with DDP, and in the order of memory that FSDP2 asks for
        for parameter in network.parameters():
            parameter.data = parameter.data.contiguous()
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.data, src=0)
    mesh = init_device_mesh(device.type, (size,))
    scalars = {p for p in network.parameters() if p.ndim == 0}  # FSDP2 shards rows; they have none
    for block in regions_of(network):
        if any(p.ndim for p in block.parameters()):
            fully_shard(block, mesh=mesh, ignored_params=scalars)
    # The rest is needed at both ends of forward and backward: it stays whole between them.
    fully_shard(network, mesh=mesh, ignored_params=scalars, reshard_after_forward=False)
    return network


def _is_fsdp(module: nn.Module) -> "TypeGuard[FSDPModule]":
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def sharded_modules(network: nn.Module) -> "list[FSDPModule]":
    return [module for module in network.modules() if _is_fsdp(module)]


@contextmanager
def gathered(networks: Iterable[nn.Module]) -> Generator[None, None, None]:
    """Whole weights on every process: any method may be called, by any number of processes."""
    networks = list(networks)
    blocks = [block for network in networks for block in sharded_modules(network)]
    roots = {id(network) for network in networks}
    for block in blocks:
        if id(block) not in roots:
            block.set_reshard_after_forward(False, recurse=False)
        block.unshard()
    with ExitStack() as stack:
        # FSDP2 puts the shards back whenever `state_dict` is called; here it has what is whole.
        for module in (module for network in networks for module in network.modules()):
            hooks = module._state_dict_pre_hooks
            stack.callback(setattr, module, "_state_dict_pre_hooks", hooks)
            module._state_dict_pre_hooks = type(hooks)()
        try:
            yield
        finally:
            for block in blocks:
                if id(block) not in roots:
                    block.set_reshard_after_forward(True, recurse=False)
                block.reshard()


# -- this process's shards as plain tensors --------------------------------------------------------


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's rows, in the very memory of the tensor; all of them where it has no shards."""
    with torch.no_grad():
        return tensor.to_local() if is_sharded(tensor) else tensor


def views(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """What an optimizer steps: the parameters, or plain views of their shards."""
    return {
        name: nn.Parameter(local(p), requires_grad=False) if is_sharded(p) else p
        for name, p in parameters.items()
    }


def hand_over_gradients(
    parameters: Mapping[str, nn.Parameter], stepped: Mapping[str, nn.Parameter], world: World
) -> None:
    """Give the views their gradients; what has no shards was not reduced by FSDP2."""
    for name, parameter in parameters.items():
        if parameter.grad is None:
            continue
        if is_sharded(parameter):
            stepped[name].grad = local(parameter.grad)
        else:
            parameter.grad = world.sum(parameter.grad) / world.size


def gradient_norm(
    parameters: Mapping[str, nn.Parameter], stepped: Mapping[str, nn.Parameter], world: World
) -> Tensor:
    """Over all processes, in which shards differ and everything else is the same."""
    grads = {name: p.grad for name, p in stepped.items() if p.grad is not None}
    shards = [grad for name, grad in grads.items() if is_sharded(parameters[name])]
    alike = [grad for name, grad in grads.items() if not is_sharded(parameters[name])]
    none = torch.zeros((), dtype=torch.float64, device=world.device)
    mine, common = (get_total_norm(ts).double().square() if ts else none for ts in (shards, alike))
    return (world.sum(mine) + common).sqrt()


# -- whole tensors ---------------------------------------------------------------------------------


def joined(value: Tensor, like: Tensor) -> Tensor:
    """A shard as part of a tensor that is laid out like another; nothing is gathered yet."""
    if is_sharded(like) and value.ndim == like.ndim:  # a count of steps is the same everywhere
        return type(like).from_local(
            value, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        )
    return value


def whole(tensor: Tensor) -> Tensor:
    """All rows, on every process."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def piece(full: Tensor, like: Tensor) -> Tensor:
    """The rows of a whole tensor that this process holds of another of the same shape."""
    if is_sharded(like) and full.shape == like.shape:
        rows = full.chunk(like.device_mesh.size())
        rank = like.device_mesh.get_local_rank()
        return rows[rank] if rank < len(rows) else full[:0]
    return full
