"""A live part: a network with its optimizer and its average, stepping and saving itself by name."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from quintet.engine import optim
from quintet.engine.config import OptimizerConfig, Recipe
from quintet.engine.ema import EMA
from quintet.engine.errors import RunError
from quintet.engine.machine import fsdp
from quintet.engine.machine.regions import Commits
from quintet.engine.machine.world import DTYPES, World
from quintet.engine.task import Part, StepContext


class LiveHandle:
    """What an update gets of its own part: something to call.

    Another method would bypass the wrapper and silently leave processes with different gradients.
    """

    def __init__(self, name: str, wrapped: nn.Module, bare: nn.Module):
        self._name, self._wrapped, self._bare = name, wrapped, bare
        self._in_blocks = len(fsdp.sharded_modules(bare)) > 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(*args, **kwargs)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """The network uncompiled and unwrapped, for penalties that need a second derivative.

        Correct on several processes only beside a plain call in the same loss: the gradients of
        both meet before they are reduced. (Sharded, they meet only where the weights are whole
        until the end of the backward: in a network that names no blocks.)
        """
        if self._in_blocks:
            raise RunError(
                f"'{self._name}' is sharded by the block, and a penalty on the eager network would "
                "miss gradients; drop --fsdp or choose another penalty"
            )
        return self._bare.forward(*args, **kwargs)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(
            f"'{self._name}' is live in this update and can only be called; "
            f"let its forward return what .{attribute} would give"
        )


class LivePart:
    def __init__(self, name: str, part: Part, world: World, start: int, length: int):
        self.name, self.world, self.start, self.length = name, world, start, length
        self.module = world.place_module(part.network)
        self.extra_state = world.place_module(part.extra_state) if part.extra_state else None
        self.parameters = optim.trainable(self.module)
        config = part.optimizer
        if config is None or not self.parameters:
            raise RunError(f"part '{name}' is in an update but has nothing to train")
        self.config: OptimizerConfig = config
        self.hidden = self._hidden() if config.optimizer == "muon" else []
        world.recompute(self.module)
        self.wrapped = world.wrap(self.module)
        self.parameters = optim.trainable(self.module)  # sharding puts others in their place
        self.stepped = fsdp.views(self.parameters)
        self.handle = LiveHandle(name, self.wrapped, self.module)
        self.optimizer = optim.build_optimizer(
            config, self.stepped, self.hidden, DTYPES[world.precision]
        )
        self.average = (
            EMA(self.stepped, config.ema_decay, world.shards) if config.ema_decay else None
        )
        modules = (self.module, self.extra_state)
        self.commits = [module for module in modules if isinstance(module, Commits)]
        self.loss = torch.zeros((), device=world.device)
        self.checked = False

    def _hidden(self) -> list[str]:
        hidden = optim.hidden_matrices(self.module)
        if not hidden:
            raise RunError(
                f"optimizer is 'muon', but '{self.name}' has no hidden matrices: no linear or "
                "convolutional layer between its first and its last one; use adamw"
            )
        if self.world.shards:
            raise RunError(
                f"optimizer is 'muon', which orthogonalises whole matrices, but --fsdp shards "
                f"those of '{self.name}' by rows; drop --fsdp, or use adamw"
            )
        return hidden

    def focus(self, live: bool) -> None:
        """Live: training, with gradients. Otherwise frozen and in eval."""
        self._reshard()
        self.module.train(live)
        for parameter in self.parameters.values():
            parameter.requires_grad_(live)

    def _reshard(self) -> None:
        """Let go of gathered weights: they would be stale after a step or a change of focus."""
        for module in fsdp.sharded_modules(self.module) if self.world.shards else ():
            module.reshard()

    def backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise RunError(
                f"the loss of '{self.name}' has no gradient: compute it from the model's output "
                "without detach, item, no_grad or argmax"
            )
        self.world.backward(loss)
        self.loss = self.loss + loss.detach()

    def step(self, context: StepContext) -> dict[str, Tensor]:
        """Clip, guard, step, commit, average; nothing here waits for the device."""
        self._check_gradients()
        norm = self._norm()
        bad = self.world.sum((~(norm + self.loss).isfinite()).float())
        context.skipped = (bad > 0).float()
        rate = context.step_scalar(f"{self.name}/learning_rate", self.learning_rate_at)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        limit = self.config.max_grad_norm
        scale = (norm / limit).clamp(min=1.0).float() if limit else None
        # The fused kernels divide by grad_scale and stand still on found_inf: clipping and the
        # guard cost no pass over the gradients of their own.
        self.optimizer.found_inf = context.skipped  # type: ignore[attr-defined]
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]
        self.optimizer.step()
        self.forget_gradients()
        for network in self.commits:
            network.commit(context)
        if self.average is not None:
            average, start = self.average, self.start
            move = context.step_scalar(
                f"{self.name}/ema", lambda step: average.move_at(step - start)
            )
            average.update(move, context.skipped)
        self.loss = torch.zeros((), device=self.world.device)
        return {"grad_norm": norm, "skipped": context.skipped}

    def forget_gradients(self) -> None:
        for parameter in (*self.stepped.values(), *self.parameters.values()):
            parameter.grad = None

    def _norm(self) -> Tensor:
        """Norm of the gradients of all processes together."""
        if not self.world.shards:
            return get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        self._reshard()
        fsdp.hand_over_gradients(self.parameters, self.stepped, self.world)
        norm = fsdp.gradient_norm(self.parameters, self.stepped, self.world)
        return norm.to(self.world.dtype)

    def _check_gradients(self) -> None:
        """Once: a parameter without a gradient is unused, and would stall several processes."""
        if self.checked:
            return
        self.checked = True
        idle = [name for name, p in self.parameters.items() if p.grad is None]
        if idle and (self.world.size > 1 or len(idle) == len(self.parameters)):
            raise RunError(
                f"{len(idle)} of {len(self.parameters)} parameters of '{self.name}' got no "
                f"gradient ({', '.join(idle[:3])} …): set requires_grad_(False) on what the loss "
                "does not use"
            )

    def learning_rate_at(self, step: int) -> float:
        """At a step of the run; before the part's first one, that of its first."""
        return optim.learning_rate_at(self.config, max(0, step - self.start), self.length)

    @torch.no_grad()
    def update_ratio(self, step: int) -> float | None:
        """Length of the last Adam step over the length of the weights (read at evaluations)."""
        squares: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, p in self.stepped.items():
            state = self.optimizer.state.get(p, {})
            if "exp_avg_sq" not in state:
                return None
            change = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + self.config.eps)
            both = torch.stack([change.square().sum(), p.square().sum()])
            squares[fsdp.is_sharded(self.parameters[name])].append(both)
        mine, common = (
            torch.stack(rows).sum(0) if rows else torch.zeros(2, device=self.world.device)
            for rows in (squares[True], squares[False])
        )
        total, weight = ((self.world.sum(mine) if squares[True] else mine) + common).unbind()
        return (self.learning_rate_at(step) * (total / weight.clamp(min=1e-20)).sqrt()).item()

    def is_finite(self) -> Tensor:
        """Whether this process's weights and EMA weights are, as a flag on the device."""
        tensors = [
            *self.module.state_dict().values(),
            *(self.average.values if self.average else []),
        ]
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        return torch.stack([fsdp.local(tensor).isfinite().all() for tensor in floating]).all()

    def averaged(self) -> AbstractContextManager[None]:
        return self.average.swapped_in() if self.average is not None else nullcontext()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """File name → tensors by name; `checkpoint.snapshot` makes whole ones of shards."""
        self._reshard()
        files = {self.name: dict(self.module.state_dict())}
        if self.average is not None:
            files[f"{self.name}.ema"] = {
                name: fsdp.joined(value, self.parameters[name])
                for name, value in self.average.state().items()
            }
        if self.extra_state is not None:
            files[f"{self.name}.extra_state"] = dict(self.extra_state.state_dict())
        files[f"{self.name}.optim"] = {
            f"{key}/{name}": fsdp.joined(value, self.parameters[name])
            for name, p in self.stepped.items()
            for key, value in self.optimizer.state.get(p, {}).items()
        }
        return files

    def load(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._reshard()
        load_strictly(self.module, files[self.name], self.name)
        if self.extra_state is not None:
            load_strictly(
                self.extra_state, files[f"{self.name}.extra_state"], f"{self.name}.extra_state"
            )
        if self.average is not None:
            named = files[f"{self.name}.ema"]
            compare_names(named, self.average.names, f"{self.name}.ema")
            self.load_average(named)
        self._load_optimizer(files[f"{self.name}.optim"])

    def load_average(self, named: Mapping[str, Tensor]) -> None:
        if self.average is not None:
            own = self.parameters
            self.average.load({name: fsdp.piece(named[name], own[name]) for name in own})

    def _load_optimizer(self, state: Mapping[str, Tensor]) -> None:
        self.optimizer.state.clear()
        if not state:
            return  # saved before this part's first step
        kinds = {name.split("/", 1)[0] for name in state}
        of_muon = {"momentum_buffer"} if self.hidden else set[str]()
        # A parameter that has had no gradient has no moments: an unused layer, a branch not taken.
        moved = self.parameters.keys() & {name.split("/", 1)[1] for name in state}
        kinds_of = {n: of_muon if n in self.hidden else kinds - of_muon for n in moved}
        expected = [f"{kind}/{name}" for name, held in kinds_of.items() for kind in held]
        compare_names(state, expected, f"{self.name}.optim")
        for name, p in self.stepped.items():
            for kind in kinds_of.get(name, ()):
                value = fsdp.piece(state[f"{kind}/{name}"], self.parameters[name])
                # Laid out like its parameter: the fused kernels walk both as plain memory.
                like = p if value.shape == p.shape else value
                place = torch.empty_like(like, device=p.device, requires_grad=False)
                self.optimizer.state[p][kind] = place.copy_(value)


class Parts(dict[str, LivePart]):
    """The parts that learn, by name, and the frozen networks beside them."""

    def __init__(self, live: Mapping[str, LivePart], frozen: Mapping[str, nn.Module]):
        super().__init__(live)
        self.frozen = dict(frozen)
        self.focus: LivePart | None = None

    @property
    def nets(self) -> dict[str, nn.Module]:
        """All networks, bare."""
        return {**self.frozen, **{name: part.module for name, part in self.items()}}

    def only(self, live: LivePart) -> dict[str, Any]:
        """One part live: wrapped and training. The others bare, frozen and in eval."""
        if self.focus is not live:
            for part in self.values():
                part.focus(part is live)
            self.focus = live
        return {**self.nets, live.name: live.handle}

    def forget_gradients(self) -> None:
        for part in self.values():
            part.forget_gradients()

    def learning_rates(self) -> dict[str, float]:
        """Configured rates, before any schedule."""
        return {name: part.config.learning_rate for name, part in self.items()}

    def nonfinite(self, world: World) -> list[str]:
        """Names of the parts with non-finite weights or EMA weights on any process."""
        flags = torch.stack([~part.is_finite() for part in self.values()]).float()
        return [name for name, count in zip(self, world.sum(flags).tolist()) if count > 0]

    def initialise(
        self,
        weights: Mapping[str, Mapping[str, Tensor]],
        recipe: Recipe,
        say: Callable[[str], None],
    ) -> None:
        """Weights alone, at step 0; a checkpoint of the run, if there is one, comes after."""
        where = f"init_from {recipe.init_from}"
        for name, state in weights.items():
            if recipe.init_partial:
                state = _fitting(self[name], state, where, say)
            load_strictly(self[name].module, state, f"{where}: {name}")
            self[name].load_average(state)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors by name, by file."""
        return {name: held for part in self.values() for name, held in part.state().items()}

    def load(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        for part in self.values():
            part.load(files)


def _fitting(
    part: LivePart, state: Mapping[str, Tensor], where: str, say: Callable[[str], None]
) -> dict[str, Tensor]:
    """The state that fits, and the part's own weights for the rest, which is named."""
    own = {name: fsdp.whole(value) for name, value in part.module.state_dict().items()}
    fit = {n: value for n, value in state.items() if n in own and value.shape == own[n].shape}
    if not fit:
        raise RunError(f"{where}: none of its weights fits '{part.name}'")
    for names, reason in (
        ([name for name in own if name not in fit], "start from their initial values"),
        ([name for name in state if name not in fit], "of init_from are left out"),
    ):
        if names:
            listed = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            say(f"init_from: {len(names)} of '{part.name}' {reason}: {listed}")
    return {**own, **fit}


def compare_names(names: Mapping[str, Any], expected: list[str], where: str) -> None:
    missing, surplus = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
    if missing or surplus:
        raise RunError(
            f"{where} does not fit: {len(missing)} names missing ({', '.join(missing[:3])}), "
            f"{len(surplus)} surplus ({', '.join(surplus[:3])}); it was written for another model"
        )


@torch.no_grad()
def load_strictly(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    own = dict(module.state_dict())
    compare_names(state, list(own), where)
    for name, value in state.items():
        if own[name].shape != value.shape:
            raise RunError(
                f"{where}: {name} has shape {tuple(value.shape)}, "
                f"but this model expects {tuple(own[name].shape)}"
            )
        fsdp.local(own[name]).copy_(fsdp.piece(value, own[name]))
