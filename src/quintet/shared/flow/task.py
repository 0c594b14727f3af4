"""Training task of a flow generator, with a single update.

cached latents ─ normalised ─ on the straight path from noise ─ transformer ─> error of velocities
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import normal, uniform
from quintet.engine.task import Batch, Loss, Measured, Rows, StepContext, Tally, World
from quintet.nn.flow import straight_path
from quintet.nn.precision import full_precision
from quintet.shared.flow.data import LatentData, statistics
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.model import shifted, training_times
from quintet.shared.flow.solving import Solver
from quintet.shared.generation.generator import sample_keys
from quintet.shared.generation.task import GeneratorTask

STRATA = 8
"""Times at which the loss of validation is measured; sample after sample takes the next."""


class FlowTask(GeneratorTask):
    Codes = LatentData
    model: FlowGenerator

    # -- what a room says -----------------------------------------------------------------------

    def given(self, keys: Tensor, grid: tuple[int, ...]) -> Tensor:
        """(b, 1, *grid): latents that are given for in-painting or a continuation, for each key."""
        raise NotImplementedError

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        super().prepare(world)
        train = self.codes["train"]
        if train is not None and not self.model.measured_latents:
            self.model.set_statistics(*statistics(train))
            if self.config.text == "words":
                captions = sorted({train.text(index) for index in range(len(train))})
                self.model.text_encoder.keep_words(self.model.tokenize_captions(captions)[0])

    def collate(self, items: list[Any]) -> dict[str, Any]:
        changed = torch.tensor([item["changed"] for item in items])
        return {**super().collate(items), "changed": changed}

    def arranged(self, rows: Tensor, grid: tuple[int, ...]) -> Tensor:
        """(b, c, *grid)."""
        return rows.mT.unflatten(2, grid)

    def latents(self, batch: Batch) -> Tensor:
        """Normalised (b, c, *grid)."""
        return self.model.normalised(batch.data["codes"])

    def beside(self, batch: Batch) -> Tensor | None:
        """Normalised latents (b, c, *grid) of a condition."""
        latents = batch.data.get("beside")
        return None if latents is None else self.model.normalised(latents)

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Squared error averaged over all unknown latents of the step, of all processes."""
        known = [self.random_known(batch) for batch in batches]
        local = sum(((~each).sum() for each in known), torch.zeros((), device=self.device))
        total = context.sum(local)
        for batch, each in zip(batches, known):
            times = training_times(batch.keys, self.config.time_shift)
            drop = uniform(batch.keys, "text", ()) < self.recipe.text_drop
            errors = self.errors(nets["transformer"], batch, batch.keys, times, each, drop)
            loss, share = errors.sum() / total, batch.size / context.samples
            # Reports weight metrics by the share of samples; undo this for a loss per latent.
            yield loss, {"loss": loss.detach() / share}

    def random_known(self, batch: Batch) -> Tensor:
        keys, grid = batch.keys, tuple(batch.data["codes"].shape[2:])
        chosen = uniform(keys, "known", ()) < self.recipe.known_share
        given = self.given(keys, grid)
        chosen = chosen & ~given.flatten(1).all(1)  # something is left to generate
        return given & chosen.view(-1, *[1] * (given.ndim - 1))

    def errors(
        self, network: Any, batch: Batch, keys: Tensor, times: Tensor, known: Tensor, drop: Tensor
    ) -> Tensor:
        """(b, *grid): squared errors averaged over channels; 0 where known."""
        latents = self.model.relative(self.latents(batch), known)
        noise = normal(keys, "noise", tuple(latents.shape[1:]))
        path = straight_path(noise, latents, times)
        x = torch.where(known, latents, path.x)
        text, mask = (batch.data.get(name) for name in ("text", "mask"))
        changed, beside = batch.data["changed"], self.beside(batch)
        out = network(x, times, known, text, mask, drop, changed, None, beside)
        squares = (full_precision(out) - path.target).square().mean(1)
        return torch.where(known[:, 0], torch.zeros_like(squares), squares)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        # The same noise and times every time.
        keys = sample_keys(0, batch.ids, self.model.key_name).to(self.device)
        places = torch.tensor([(n % STRATA + 0.5) / STRATA for n in batch.ids], device=self.device)
        times = shifted(places, self.config.time_shift)
        known = torch.zeros_like(batch.data["codes"][:, :1], dtype=torch.bool)
        drop = torch.ones(batch.size, dtype=torch.bool, device=self.device)
        metrics: dict[str, Tally | Rows] = {}
        kinds = (("loss", ~drop), ("loss_without_text", drop))
        for name, dropped in kinds[: 1 if self.config.text == "none" else 2]:
            errors = self.errors(nets["transformer"], batch, keys, times, known, dropped)
            metrics[name] = Tally(errors.sum(), errors.numel())
        return metrics | self.measure_generation(batch)

    @property
    def solver(self) -> Solver:
        settings = self.generation
        unguided = self.config.text == "none" or self.config.jumps
        return Solver(
            steps=settings.sampling_steps,
            method=settings.method,
            cond_scale=1.0 if unguided else settings.cond_scale,
        )

    def generate(
        self,
        captions: Sequence[str],
        numbers: Sequence[int],
        seed: int = 0,
        beside: Tensor | None = None,
    ) -> Tensor:
        model = self.model
        start = model.start(sample_keys(seed, numbers, model.key_name), self.config.grid)
        start = start._replace(beside=beside)
        return model.decode(model.solved(start, self.context(captions), self.solver)).float()

    def decode(self, codes: Tensor) -> Tensor:
        return self.model.decode(self.model.normalised(codes.to(self.device))).float()
