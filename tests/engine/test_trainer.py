"""`quintet.Trainer`: any module that returns a loss, on any data that can be indexed."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import quintet
from harness import assert_same, lines, tensors
from quintet.compat.trainer import REMEDIES
from quintet.engine import config, optim, settings
from quintet.engine.config import ConfigError, OptimizerConfig
from quintet.engine.data.source import split_indices
from quintet.engine.errors import RunError
from quintet.engine.settings import names_for, settings_of
from quintet.engine.trainer import loss_of

# -- models of every kind, and their data ---------------------------------------------------


class Parts(NamedTuple):
    error: Tensor
    weight: Tensor


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class Line(nn.Module):
    """Fits y = 2 x - 1, with dropout so that a resume has something to get wrong."""

    def __init__(self, returns: str = "loss"):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.returns = returns

    def forward(self, x: Tensor, y: Tensor) -> Any:
        made = self.body(x)
        loss = (made - y).square().mean()
        error = (made - y).abs().mean()
        return {
            "loss": loss,
            "tuple-dict": (loss, {"error": error, "picture": made, "name": "text"}),
            "tuple-named": (loss, Parts(error, self.body[0].weight.norm())),
            "tuple-alone": (loss,),
            "dict": {"loss": loss, "error": error, "grad_norm": error, "skipped": torch.ones(())},
            "object": Output(loss, made),
        }[self.returns]


class Pairs:
    """y = 2 x - 1, as tuples or as dicts."""

    def __init__(self, kind: str = "tuple", size: int = 40):
        self.kind, self.size = kind, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        x = torch.tensor([index / self.size]) + 0.01 * torch.randn(1)  # seeded per sample
        pair = (x, 2 * x - 1)
        return pair if self.kind == "tuple" else dict(zip("xy", pair))


class Branching(nn.Module):
    """A line with a layer that nothing uses, one that only some steps use, and tied weights, of
    which the state has two names and the average one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.unused, self.rare = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
        self.tied = self.line
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += self.training
        out = self.tied(x)
        if self.training and self.calls > 3:
            out = out + self.rare(x)
        return (out - y).square().mean()


class Sentences:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = (torch.arange(8) * (index + 1)) % 17
        return {"input_ids": ids, "labels": ids}


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def trainer(model: nn.Module, data: Any, folder: Path, **changes: Any) -> quintet.Trainer:
    keywords: dict[str, Any] = {
        "steps": 6,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "evaluate_every": 4,
        "save_every": 2,
        "log_every": 1,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "run": folder,
        **changes,
    }
    return quintet.Trainer(model, data, **keywords)


KINDS: dict[str, Callable[[], tuple[nn.Module, Any, dict[str, Any]]]] = {
    "loss": lambda: (Line("loss"), Pairs(), {}),
    "tuple-dict": lambda: (Line("tuple-dict"), Pairs(), {}),
    "tuple-named": lambda: (Line("tuple-named"), Pairs("dict"), {}),
    "tuple-alone": lambda: (Line("tuple-alone"), Pairs(), {"data_kwargs": ("x", "y")}),
    "dict": lambda: (Line("dict"), Pairs("dict"), {"accumulate": 2}),
    "object": lambda: (Line("object"), Pairs(), {"optimizer": "lion", "learning_rate": 1e-3}),
    "gpt2": lambda: (gpt2(), Sentences(), {"ema_decay": 0.9}),
    "branching": lambda: (Branching(), Pairs(), {"ema_decay": 0.9}),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@EVERY_KIND
def test_a_module_of_any_kind_trains(kind: str, tmp_path: Path) -> None:
    model, data, changes = KINDS[kind]()
    assert trainer(model, data, tmp_path / "run", **changes).train() == 6
    losses = [r["model/loss"] for r in lines(tmp_path / "run") if "model/loss" in r]
    assert len(losses) == 6
    assert [r["step"] for r in lines(tmp_path / "run") if "val/loss" in r] == [4, 6]
    assert not [e for e in lines(tmp_path / "run", "events") if "skipped" in e["message"]]


class Interrupted(Exception):
    pass


def interrupt_at(step: int) -> Callable[[dict[str, Any]], None]:
    def note(report: dict[str, Any]) -> None:
        if report["step"] == step:
            raise Interrupted

    return note


@pytest.mark.by_default("gpt2", "object", "tuple-dict", "branching")
@EVERY_KIND
def test_a_run_cut_short_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model, data, changes = KINDS[kind]()
    trainer(model, data, tmp_path / "straight", **changes).train()
    model, data, changes = KINDS[kind]()
    with pytest.raises(Interrupted):
        trainer(model, data, tmp_path / "cut", log_fn=interrupt_at(3), **changes).train()
    assert not (tmp_path / "cut/checkpoints/step-00000003").exists()
    model, data, changes = KINDS[kind]()
    assert trainer(model, data, tmp_path / "cut", **changes).train(resume=True) == 6
    assert_same(tensors(tmp_path / "straight", 6), tensors(tmp_path / "cut", 6))


def test_a_run_stopped_by_the_clock_resumes_bit_for_bit(tmp_path: Path) -> None:
    trainer(Line(), Pairs(), tmp_path / "straight").train()
    stopped = trainer(Line(), Pairs(), tmp_path / "cut", minutes=1e-9)
    assert stopped.train() == 1
    assert stopped.stopped is not None
    for expected in (2, 6):
        minutes = 1e-9 if expected == 2 else None
        again = trainer(Line(), Pairs(), tmp_path / "cut", minutes=minutes)
        assert again.train(resume=True) == expected
    assert_same(tensors(tmp_path / "straight", 6), tensors(tmp_path / "cut", 6))


class Pictures:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return (torch.rand(3, 8, 8),)


class ChannelsLast(nn.Module):
    """Weights whose memory is laid out as convolutions like it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        between = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]
        ends = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3)
        self.body = nn.Sequential(ends[0], nn.GELU(), *between, ends[1])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) - x[..., 1:-1, 1:-1]).square().mean()


@pytest.mark.by_default("adamw", "muon")
@pytest.mark.parametrize("optimizer", optim.OPTIMIZERS)
def test_weights_in_channels_last_memory_resume_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    changes = {"optimizer": optimizer, "learning_rate": 1e-2}
    trainer(ChannelsLast(), Pictures(), tmp_path / "straight", **changes).train()
    cut = trainer(ChannelsLast(), Pictures(), tmp_path / "cut", log_fn=interrupt_at(3), **changes)
    with pytest.raises(Interrupted):
        cut.train()
    trainer(ChannelsLast(), Pictures(), tmp_path / "cut", **changes).train(resume=True)
    assert_same(tensors(tmp_path / "straight", 6), tensors(tmp_path / "cut", 6))


class Momentum(torch.optim.SGD):
    """As a contributor would write it: it takes the keywords of the others."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], **_: Any) -> None:
        super().__init__(params, lr=lr, momentum=betas[0], fused=True)


def test_an_optimizer_is_added_by_its_name_and_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two places that CONTRIBUTING.md lists; training and resuming follow."""
    names = Literal["adamw", "adam", "lion", "muon", "momentum"]
    monkeypatch.setitem(OptimizerConfig.__annotations__, "optimizer", names)
    for module in (config, settings):  # which have resolved the types once
        monkeypatch.setattr(module, "hints_of", get_type_hints)
    monkeypatch.setattr(optim, "OPTIMIZERS", {**optim.OPTIMIZERS, "momentum": Momentum})
    test_weights_in_channels_last_memory_resume_bit_for_bit("momentum", tmp_path)


def test_the_same_trainer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    once = trainer(Line(), Pairs(), tmp_path / "run", minutes=1e-9)
    assert once.train() == 1
    assert (once.step, once.steps) == (1, 6)
    assert once.train(resume=True) == 2


def test_a_trainer_leaves_what_may_be_trained_as_it_was(tmp_path: Path) -> None:
    model = Line()
    model.body[0].bias.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    trainer(model, Pairs(), tmp_path / "run").train()
    assert [p.requires_grad for p in model.parameters()] == before


# -- what comes out -------------------------------------------------------------------------


def test_the_averaged_model_holds_the_averaged_weights(tmp_path: Path) -> None:
    found = trainer(Line(), Pairs(), tmp_path / "run", ema_decay=0.5)
    found.train()
    model = found.averaged_model()
    assert not model.training
    saved = tensors(tmp_path / "run", 6)
    for name, value in model.state_dict().items():
        assert value.equal(saved[f"model.ema.safetensors:{name}"])
        assert not value.equal(saved[f"model.safetensors:{name}"])


class Tied(nn.Module):
    """Two names for one matrix; the averaged one comes first in the alphabet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(torch.tanh(self.embed(x))) - x).square().mean()


def test_tied_weights_are_averaged_under_both_names(tmp_path: Path) -> None:
    data = [torch.rand(4, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    found = trainer(Tied(), data, tmp_path / "run", ema_decay=0.5)
    found.train()
    saved = tensors(tmp_path / "run", 6)
    averaged = saved["model.ema.safetensors:embed.weight"]
    model = found.averaged_model()
    assert model.embed.weight.equal(averaged)  # type: ignore[union-attr,operator]
    assert model.head.weight.equal(averaged)  # type: ignore[union-attr,operator]


def test_every_report_reaches_the_users_function(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    trainer(Line("tuple-dict"), Pairs(), tmp_path / "run", log_fn=heard.append).train()
    assert [r["step"] for r in heard if "model/loss" in r] == [1, 2, 3, 4, 5, 6]
    assert all("model/error" in r for r in heard if "model/loss" in r)
    assert [r["step"] for r in heard if "val/loss" in r] == [4, 6]


def test_numbers_of_the_models_own_do_not_meet_the_engines(tmp_path: Path) -> None:
    """A model may report something called grad_norm or skipped; it is no gradient and no skip."""
    trainer(Line("dict"), Pairs("dict"), tmp_path / "run", max_grad_norm=None).train()
    report = lines(tmp_path / "run")[0]
    assert report["model/own_grad_norm"] == report["model/error"]
    assert report["model/skipped"] == 0
    assert report["model/own_skipped"] == 1


def test_a_run_of_epochs_takes_as_many_steps_as_the_data_asks_for(tmp_path: Path) -> None:
    changes = {"steps": None, "num_epochs": 1.5, "valid_fraction": 0.1}
    found = trainer(Line(), Pairs(size=40), tmp_path / "run", **changes)
    assert found.recipe.steps == 14  # 36 x 1.5 / 4, rounded up
    assert found.train() == 14
    assert lines(tmp_path / "run")[-2]["epoch"] == pytest.approx(56 / 36, abs=1e-4)


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    trainer(Line(), Pairs(), tmp_path / "first").train()
    trainer(Line(), Pairs(), tmp_path / "next", init_from=tmp_path / "first").train()
    first = [lines(tmp_path / name)[0]["model/loss"] for name in ("first", "next")]
    assert first[0] != first[1]


def test_weights_that_fit_are_taken_when_asked_for_and_the_others_named(tmp_path: Path) -> None:
    trainer(Line(), Pairs(), tmp_path / "first").train()
    other = Line()
    other.body[3] = nn.Linear(8, 1, bias=False)
    other.body.append(nn.Linear(1, 1))
    changes = {"init_from": tmp_path / "first", "steps": 1, "learning_rate": 1e-30}
    with pytest.raises(RunError, match="names missing"):
        trainer(other, Pairs(), tmp_path / "strict", **changes).train()
    trainer(other, Pairs(), tmp_path / "run", **changes, init_partial=True).train()
    said = " ".join(line["message"] for line in lines(tmp_path / "run", "events"))
    assert "2 of 'model' start from their initial values: body.4.weight, body.4.bias" in said
    assert "1 of 'model' of init_from are left out: body.3.bias" in said
    first, run = tensors(tmp_path / "first", 6), tensors(tmp_path / "run", 1)
    for file in ("model", "model.ema"):  # the average restarts from the weights that were taken
        key = f"{file}.safetensors:body.0.weight"
        assert run[key].equal(first["model.ema.safetensors:body.0.weight"])
    with pytest.raises(RunError, match="none of its weights fits"):
        trainer(gpt2(), Sentences(), tmp_path / "gpt", **changes, init_partial=True).train()


def test_a_run_from_python_is_recognised_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from quintet.cli import main

    trainer(Line(), Pairs(), tmp_path / "run").train()
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert "trainer.train(resume=True)" in capsys.readouterr().err


# -- habits of other packages ---------------------------------------------------------------


def test_a_run_on_a_python_data_set_is_extended_by_more_steps(tmp_path: Path) -> None:
    trainer(Line(), Pairs(), tmp_path / "run").train()
    before = tensors(tmp_path / "run", 6)
    assert trainer(Line(), Pairs(), tmp_path / "run", steps=9).train(resume=True) == 9
    after = tensors(tmp_path / "run", 9)
    weights = [name for name in before if name.startswith("model.safetensors")]
    assert any(not before[name].equal(after[name]) for name in weights)
    assert min(r["model/learning_rate"] for r in lines(tmp_path / "run")[7:] if len(r) > 9) > 0


def test_the_trainer_has_what_scripts_read_off_it(tmp_path: Path) -> None:
    found = trainer(Line(), Pairs(), tmp_path / "run", keep_last=5)
    weight = found.model.body[0].weight  # type: ignore[index,union-attr]
    assert found.ema_model.body[0].weight.equal(weight)  # type: ignore[index,union-attr]
    assert found.averaged_model() is found.model  # before the first checkpoint
    assert (found.step, found.steps) == (0, 6)
    found()
    assert (found.step, found.steps, found.num_train_steps) == (6, 6, 6)
    assert (found.is_main, found.is_local_main, found.is_distributed) == (True, True, False)
    assert found.device == torch.device("cpu")
    assert (found.batch_size, found.results_folder) == (4, tmp_path / "run")
    assert found.unwrapped_model is found.model
    found.wait()
    own = [r for r in lines(tmp_path / "run") if "val/loss" in r]
    assert found.evaluate() == {"step": 6, "samples": 2, "loss": own[-1]["val/loss"]}
    assert found.evaluate(step=4)["loss"] == own[0]["val/loss"]
    assert_same(found.ema_model.state_dict(), found.averaged_model().state_dict())
    early, newest = found.averaged_model(2).state_dict(), found.ema_model.state_dict()
    assert any(not early[name].equal(newest[name]) for name in newest)


@pytest.mark.parametrize("name", REMEDIES)
def test_what_a_trainer_no_longer_has_is_answered_with_what_to_do(name: str) -> None:
    found = quintet.Trainer(Line(), Pairs(), steps=1)
    with pytest.raises(AttributeError, match=re.escape(REMEDIES[name])):
        getattr(found, name)
    assert not hasattr(found, "no_such_name")


def test_a_function_for_logs_gets_the_names_that_it_knows(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    with pytest.warns(FutureWarning, match="log_fn"):
        trainer(Line(), Pairs(), tmp_path / "run").train(heard.append)
    reports = [r["model/loss"] for r in lines(tmp_path / "run") if "model/loss" in r]
    assert [r["loss"] for r in heard if "model/loss" in r] == reports
    # An evaluation has the loss of the report before it.
    assert [r["loss"] for r in heard if "val/loss" in r] == [reports[3], reports[5]]


def test_an_evaluation_before_the_first_report_has_a_loss_too(tmp_path: Path) -> None:
    losses: list[float] = []
    log = {"log_fn": lambda logs: losses.append(logs["loss"]), "log_every": 6}
    trainer(Line(), Pairs(), tmp_path / "run", **log).train()
    assert [math.isnan(loss) for loss in losses] == [True, False, False]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("photos",), r"got 'photos' as its model; write Trainer\(model, dataset\), a module"),
        ((Line,), r"got the class Line; give an object of it: Line\(…\)"),
        ((Line(), "photos"), "the path 'photos'; give data='photos' to a trainer that reads"),
        ((Line(), Path("photos")), "the path 'photos'"),
        ((Line(), Pairs), r"the class Pairs; give an object of it: Pairs\(…\)"),
        ((Line(),), "give a data set with a length and items by index"),
        ((Line(), Pairs(), 100, 4), "takes model and dataset by position, but got 4 values"),
    ],
)
def test_what_is_no_model_or_no_data_set_is_named(arguments: Any, remedy: str) -> None:
    with pytest.raises((TypeError, RunError), match=remedy):
        quintet.Trainer(*arguments, steps=2)


def test_samples_of_different_shapes_are_named(tmp_path: Path) -> None:
    ragged = [{"x": torch.zeros(n + 1, 1), "y": torch.zeros(1)} for n in range(20)]
    with pytest.raises(
        RunError, match=r"different shapes .* to one, in the data set, or in collate_fn="
    ):
        trainer(Line(), ragged, tmp_path / "run").train()


def test_a_setting_of_an_unknown_group_lists_the_groups(tmp_path: Path) -> None:
    for name in ("nope.x", "steps.x"):
        with pytest.raises(ConfigError, match=rf"setting {name}: .* groups: optim, tracker"):
            trainer(Line(), Pairs(), tmp_path / "run", settings={name: 1})


def test_an_empty_validation_set_is_refused_and_none_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="val_dataset is empty"):
        trainer(Line(), Pairs(), tmp_path / "run", val_dataset=[])
    for size, said in ((40, "38 samples, 2 held out for validation"), (8, "none for validation")):
        trainer(Line(), Pairs(size=size), tmp_path / str(size), valid_fraction=0.05).train()
        assert said in lines(tmp_path / str(size), "events")[0]["message"]


def test_messages_to_python_users_hold_no_flags(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lower batch_size or add data"):
        trainer(Line(), Pairs(), tmp_path / "run", batch_size=64).train()
    for name in ("run", "Ann's run"):
        trainer(Line(), Pairs(), tmp_path / name).train()
        pattern = r"resume it with trainer.train\(resume=True\), or .* run$"
        with pytest.raises(RunError, match=pattern):
            trainer(Line(), Pairs(), tmp_path / name).train()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_values_that_mean_the_default_are_taken() -> None:
    found = quintet.Trainer(
        Line(),
        Pairs(),
        steps=1,
        num_warmup_steps=None,
        use_ema=False,
        ema_beta=0.99,
        use_wandb_tracking=False,
        trackers=(),
    )
    assert found.recipe.optim.warmup_steps == 0
    assert found.recipe.optim.ema_decay == 0
    assert found.recipe.trackers == ()


# -- keywords -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("lr", "learning_rate", 1e-3),
        ("wd", "weight_decay", 0.1),
        ("save_model_every", "save_every", 3),
        ("validate_every", "evaluate_every", 3),
        ("gradient_accumulation_steps", "accumulate", 2),
        ("num_warmup_steps", "warmup_steps", 1),
        ("random_split_seed", "seed", 5),
    ],
)
def test_an_old_spelling_works_and_names_the_new_one(
    old: str, new: str, value: Any, tmp_path: Path
) -> None:
    with pytest.warns(FutureWarning, match=f"{old} is now called {new}") as caught:
        found = quintet.Trainer(Line(), Pairs(), steps=1, **{old: value})
    (name,) = names_for(found.recipe, new)
    settings = {setting.name: setting.default for setting in settings_of(found.recipe)}
    assert settings[name] == value
    assert caught[0].filename == __file__


def test_use_ema_becomes_a_decay() -> None:
    for asked, decay in ((True, 0.999), (False, 0.0)):
        with pytest.warns(FutureWarning, match="ema_decay"):
            found = quintet.Trainer(Line(), Pairs(), steps=1, use_ema=asked)
        assert found.recipe.optim.ema_decay == decay


def test_an_unknown_keyword_is_refused_with_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"unknown keyword 'learning_rat'.*learning_rate"):
        quintet.Trainer(Line(), Pairs(), steps=1, learning_rat=1)
    with pytest.raises(TypeError, match="unknown keyword 'penalty_every'"):
        quintet.Trainer(Line(), Pairs(), steps=1, penalty_every=1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_keyword_given_under_both_names_is_refused() -> None:
    with pytest.raises(TypeError, match="learning_rate is given twice"):
        quintet.Trainer(Line(), Pairs(), steps=1, learning_rate=1e-3, lr=1e-4)


@pytest.mark.parametrize("changes", [{}, {"steps": 3, "num_epochs": 1}])
def test_the_length_is_given_once(changes: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="steps or num_epochs, not both"):
        quintet.Trainer(Line(), Pairs(), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'.*'bf16'"),
        ({"device": "tpu"}, "device is 'tpu'.*'cuda'"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'.*'adamw'.*'muon'"),
        ({"scheduler": "step"}, "scheduler is 'step'.*'cosine'"),
        ({"compile": "yes"}, "compile is 'yes'.*'on'"),
        ({"batch_size": 2.5}, "batch_size is 2.5.*int"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"trackers": ("paper",)}, "trackers"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        quintet.Trainer(Line(), Pairs(), steps=1, **changes)


@pytest.mark.parametrize("spelling", ["fp16", "float16", "half"])
def test_fp16_is_refused_with_the_reason(spelling: str) -> None:
    with pytest.raises(ValueError, match=r"bf16.*overflows"):
        quintet.Trainer(Line(), Pairs(), steps=1, precision=spelling)


# -- data -----------------------------------------------------------------------------------


def test_a_split_is_disjoint_complete_and_follows_the_seed() -> None:
    train, valid = split_indices(50, 0.2, seed=3)
    assert (len(train), len(valid)) == (40, 10)
    assert sorted(train + valid) == list(range(50))
    assert split_indices(50, 0.2, seed=3)[1] == valid
    assert split_indices(50, 0.2, seed=4)[1] != valid


def test_held_out_data_of_the_users_own_is_used(tmp_path: Path) -> None:
    found = trainer(Line(), Pairs(), tmp_path / "run", val_dataset=Pairs(size=3))
    found.train()
    assert len(found.sets["train"]) == 40
    assert "val/loss" in lines(tmp_path / "run")[-1]


def test_data_without_a_length_is_refused_with_the_remedy() -> None:
    with pytest.raises(RunError, match="__len__"):
        quintet.Trainer(Line(), iter([1, 2]), steps=1)


class Endless(torch.utils.data.IterableDataset):
    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter(range(8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.utils.data.DataLoader([1, 2]), "DataLoader; give its data set .loader.dataset"),
        (Endless(), "items by index; Endless has none"),
        ({3, 4}, "items by index; set has none: give list"),
        ({"train": [1, 2], "test": [3]}, "a dict with the keys train, test"),
    ],
)
def test_data_that_cannot_be_indexed_is_refused_with_the_remedy(data: Any, message: str) -> None:
    for sets in ({"dataset": data}, {"dataset": Pairs(), "val_dataset": data}):
        with pytest.raises(RunError, match=message):
            quintet.Trainer(Line(), steps=1, **sets)


class Odd(nn.Module):
    """A model with something that cannot be trained or saved."""

    def __init__(self, oddity: str):
        super().__init__()
        self.oddity = oddity
        self.body = nn.LazyLinear(1) if oddity == "lazy" else nn.Linear(1, 1)
        if oddity == "meta":
            self.body = nn.Linear(1, 1, device="meta")
        phases = torch.zeros(2, dtype=torch.complex64)
        self.register_buffer("phases", phases, persistent=oddity == "complex buffer")
        if oddity == "complex weight":
            self.weight = nn.Parameter(phases)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = (self.body(x) - y).square().mean()
        if self.oddity == "detached":
            return loss.detach()
        return {"loss": loss.item()} if self.oddity == "item" else loss


@pytest.mark.parametrize(
    ("oddity", "message"),
    [
        ("lazy", "2 uninitialised parameters, body.weight is the first: call the model once"),
        ("meta", "2 parameters without values .device meta."),
        ("complex buffer", "phases of type torch.complex64, .* persistent=False"),
        ("complex weight", "weight of type torch.complex64, .*torch.view_as_real"),
        ("detached", "the loss of 'model' has no gradient"),
        ("item", "loss is a float of Python; return the tensor"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_the_first_step(
    oddity: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=message):
        trainer(Odd(oddity), Pairs(), tmp_path / "run").train()
    assert not (tmp_path / "run").exists()


def test_a_complex_buffer_that_is_not_saved_may_stay(tmp_path: Path) -> None:
    assert trainer(Odd("none"), Pairs(), tmp_path / "run").train() == 6


def test_names_that_do_not_match_the_data_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="names 1 fields, the data has 2"):
        trainer(Line(), Pairs(), tmp_path / "run", data_kwargs=("x",)).train()


def test_a_collate_function_of_the_users_own_is_used(tmp_path: Path) -> None:
    seen: list[int] = []

    def collate(items: Sequence[Any]) -> dict[str, Tensor]:
        seen.append(len(items))
        return {name: torch.stack([item[i] for item in items]) for i, name in enumerate("xy")}

    trainer(Line(), Pairs(), tmp_path / "run", collate_fn=collate).train()
    assert seen


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("text", "returned str"),
        (None, "returned NoneType"),
        ({"logits": torch.ones(())}, "returned dict"),
        ((), "returned tuple"),
        (torch.ones(3), "single number"),
        (Output(None, torch.ones(1)), "labels"),  # type: ignore[arg-type]
    ],
)
def test_a_model_without_a_loss_is_told_what_to_return(output: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        loss_of(output)


def test_an_evaluation_of_tied_weights_is_that_of_their_average(tmp_path: Path) -> None:
    actual = trainer(Branching(), Pairs(), tmp_path / "run", ema_decay=0.9)
    actual.train()
    logged = [r["val/loss"] for r in lines(tmp_path / "run") if "val/loss" in r][-1]
    assert actual.evaluate()["loss"] == pytest.approx(logged, rel=1e-6)
