"""Distillation of a flow generator to 1 to 8 steps (shortcut models, arXiv 2410.12557).

    a moment:  teacher under guidance ─> velocity                       ─┐
    a jump:    student, two steps of half the length ─> their velocity   ─┴─> student's velocity

The student is the teacher with one condition more, the end of a step. In some training steps it
learns the velocities of the teacher, guidance included; in the others, to go as far in one step as
in two. Lengths are halves, quarters … of the way, as the times of the solver divide it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import normal, uniform
from quintet.engine.part import load_strictly
from quintet.engine.task import Batch, Loss, Part, StepContext
from quintet.engine.when import When
from quintet.nn.flow import guided, straight_path
from quintet.nn.precision import full_precision
from quintet.shared.flow.config import FewStepsRecipe
from quintet.shared.flow.model import shifted, training_times
from quintet.shared.flow.task import FlowTask

LEVELS = 6
"""Steps over the whole way: 1, 2, 4 … 2 ** (LEVELS - 1); the shortest are made of moments."""


def student_of(teacher: Any) -> Any:
    """A model that begins as its teacher."""
    if teacher.config.jumps:
        raise ValueError("the teacher makes few steps already: give the model that it learned from")
    student = type(teacher)(replace(teacher.config, jumps=True), tokenizer=teacher.held_tokenizer)
    missing = {n: v for n, v in student.state_dict().items() if n.startswith("jump.")}
    load_strictly(student, teacher.state_dict() | missing, "the teacher")
    return student


class FewSteps(FlowTask):
    best = None  # the loss is that of single moments

    def __init__(self, recipe: FewStepsRecipe, model: Any = None, sets: Any = None) -> None:
        self.path = Path(recipe.teacher or "")
        self.teacher = self.Model.from_pretrained(self.path)
        super().__init__(recipe, model, sets)
        self.parts["teacher"] = Part(self.teacher)
        self.jumps = When(every=recipe.jump_every)

    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer"

    def new_model(self, grid: tuple[int, ...]) -> Any:
        return student_of(self.teacher)

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        jumping = context.due(self.jumps)
        for batch in batches:
            move = self.jump if jumping else self.moment
            x, known, times, ends, target = move(nets, batch)
            out = nets["transformer"](x, times, known, **self.conditions(batch), end=ends)
            errors = (full_precision(out) - target).square().mean(1)
            errors = torch.where(known[:, 0], torch.zeros_like(errors), errors)
            # Long jumps have large errors at first; weighting by their inverse (arXiv 2405.14822)
            # keeps them from outweighing all others.
            per_sample = errors.flatten(1).mean(1)
            loss = torch.log(per_sample + 1e-3).mean()
            name = "jump" if jumping else "moment"
            yield (
                loss * (batch.size / context.samples),
                {
                    "loss": loss.detach(),
                    name: per_sample.detach().mean(),
                },
            )

    def conditions(self, batch: Batch) -> dict[str, Any]:
        """Arguments of the network."""
        drop = torch.zeros(batch.size, dtype=torch.bool, device=self.device)
        of_batch = {name: batch.data.get(name) for name in ("text", "mask", "changed")}
        return {**of_batch, "drop": drop, "beside": self.beside(batch)}

    def begun(self, batch: Batch, times: Tensor) -> tuple[Tensor, Tensor]:
        """Latents at these times, those of the data where known, and where that is."""
        known = self.random_known(batch)
        latents = self.model.relative(self.latents(batch), known)
        noise = normal(batch.keys, "noise", tuple(latents.shape[1:]))
        return torch.where(known, latents, straight_path(noise, latents, times).x), known

    def moment(self, nets: Any, batch: Batch) -> tuple[Tensor, ...]:
        """What the teacher says at a time, under guidance."""
        times = training_times(batch.keys, self.config.time_shift)
        x, known = self.begun(batch, times)
        return x, known, times, times, self.taught(nets, batch, x, times, known)

    def taught(self, nets: Any, batch: Batch, x: Tensor, times: Tensor, known: Tensor) -> Tensor:
        cond = {"known": known, **self.conditions(batch)}
        scale = 1.0 if self.config.text == "none" else self.recipe.guidance
        with torch.no_grad():
            field = guided(nets["teacher"], cond, {"drop": ~cond["drop"]}, scale)
            return full_precision(field(x, times))

    def jump(self, nets: Any, batch: Batch) -> tuple[Tensor, ...]:
        """Where two steps of half the length go."""
        steps = 2 ** (uniform(batch.keys, "jump/level", ()) * LEVELS).floor()
        place = (uniform(batch.keys, "jump/place", ()) * steps).floor()
        times, middle, ends = (
            shifted(((place + part) / steps).clamp_max(1), self.config.time_shift)
            for part in (0.0, 0.5, 1.0)
        )
        x, known = self.begun(batch, times)
        # The halves of the shortest steps are moments, which the teacher has taught.
        short = steps >= 2 ** (LEVELS - 1)
        wide = (-1, *[1] * (x.ndim - 1))

        def half(state: Tensor, start: Tensor, end: Tensor) -> Tensor:
            until = torch.where(short, start, end)
            out = nets["transformer"](state, start, known, **self.conditions(batch), end=until)
            return (end - start).view(wide) * full_precision(out)

        with torch.no_grad():
            first = half(x, times, middle)
            second = half(torch.where(known, x, x + first), middle, ends)
            target = (first + second) / (ends - times).view(wide)
        return x, known, times, ends, target
