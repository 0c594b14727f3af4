import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quintet
from quintet.compat.keywords import CHANGED, OLD, REMOVED, renamed, translate
from quintet.engine.settings import keywords_of
from quintet.engine.trainer import OPTIONS
from quintet.music.mulan.config import MuLaNRecipe
from quintet.video.tokenizer.config import VideoRecipe

KNOWN = keywords_of(VideoRecipe()) | keywords_of(MuLaNRecipe()) | OPTIONS
PAIRS = [{"x": torch.full((1,), n / 8), "y": torch.full((1,), n / 4)} for n in range(20)]


class Line(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (super().forward(x) - y).square().mean()


def notices(**keywords: Any) -> tuple[dict[str, Any], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = translate(keywords, KNOWN)
    assert all(warning.category is FutureWarning for warning in caught)
    return found, [str(warning.message) for warning in caught]


def test_no_old_spelling_is_a_new_one_and_each_leads_to_one():
    assert not (OLD.keys() | CHANGED.keys() | REMOVED.keys()) & KNOWN
    assert not OLD.keys() & CHANGED.keys()
    assert not OLD.keys() & REMOVED.keys()
    assert {*OLD.values(), *(change.new for change in CHANGED.values())} <= KNOWN


@pytest.mark.parametrize("old", sorted(OLD))
def test_a_renamed_keyword_keeps_its_value_and_says_its_name_once(old: str):
    assert notices(**{old: 7}) == ({OLD[old]: 7}, [f"{old} is now called {OLD[old]}"])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"use_ema": True}, {"ema_decay": 0.999}),
        ({"use_ema": False}, {"ema_decay": 0.0}),
        ({"use_lion": True}, {"optimizer": "lion"}),
        ({"use_lion": False}, {"optimizer": "adamw"}),
        ({"use_wandb_tracking": True}, {"trackers": ("wandb",)}),
        ({"scheduler": None}, {"scheduler": "constant"}),
    ],
)
def test_a_value_that_is_written_in_another_way_is_shown(
    given: dict[str, Any], found: dict[str, Any]
):
    ((old, value),), ((new, now),) = given.items(), found.items()
    assert notices(**given) == (found, [f"{old}={value!r} is now {new}={now!r}"])


def test_a_first_step_becomes_a_share_of_the_run():
    found, said = notices(discr_start_after_step=500, steps=2000)
    assert found == {"adversarial_from": 0.25, "steps": 2000}
    assert said == ["discr_start_after_step=500 is now adversarial_from=0.25"]
    for length in ("num_train_steps", "num_steps"):
        found, _ = notices(discr_start_after_step=9, **{length: 3})
        assert found == {"adversarial_from": 1.0, "steps": 3}
    with pytest.raises(TypeError, match="give adversarial_from"):
        translate({"discr_start_after_step": 500, "num_epochs": 3}, KNOWN)


def test_two_old_names_that_say_the_same_are_one_and_others_are_refused():
    found, said = notices(use_ema=True, ema_beta=0.995)
    assert found == {"ema_decay": 0.995}
    assert len(said) == 2
    found, _ = notices(use_ema=False, ema_beta=0.995)
    assert found == {"ema_decay": 0.0}  # the average is off, whatever its decay
    with (
        pytest.warns(FutureWarning),
        pytest.raises(TypeError, match="learning_rate is given twice"),
    ):
        translate({"learning_rate": 1.0, "lr": 2.0}, KNOWN)


def test_a_value_that_asks_for_the_default_is_said_to_be_not_needed():
    for old in ({"use_wandb_tracking": False}, {"dataset_type": "videos"}):
        found, (said,) = notices(**old)
        assert found == {}
        assert said.endswith("is the default and not needed")


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_what_is_removed_is_let_go_with_the_reason(name: str):
    harmless = {"drop_last": True, "val_num_batches": 5, "ema_kwargs": {"use_foreach": True}}
    assert notices(**{name: harmless.get(name)}) == (
        {},
        [f"{name} is not needed: {REMOVED[name].instead}"],
    )


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("accelerate_kwargs", {"mixed_precision": "fp16"}, "precision"),
        ("accelerator_kwargs", {"log_with": "wandb"}, "trackers"),
        ("dataset_kwargs", {"exts": ["gif"]}, "dataset of your own"),
        ("discr_max_grad_norm", 0.5, "max_grad_norm"),
        ("ema_kwargs", {"beta": 0.99}, "ema_decay"),
        ("force_clear_prev_results", True, "another run"),
        ("optimizer_kwargs", {"betas": (0.5, 0.9)}, "betas"),
        ("scheduler", object, "constant"),
        ("scheduler_kwargs", {"T_max": 5}, "ends at steps"),
        ("split_batches", True, "batch_size"),
    ],
)
def test_what_would_be_lost_is_refused_with_the_remedy(name: str, value: Any, remedy: str):
    with pytest.raises(TypeError, match=rf"(?s){name}.*{remedy}"):
        translate({name: value}, KNOWN)


def test_a_notice_names_the_users_own_line():
    with pytest.warns(FutureWarning) as caught:
        quintet.Trainer(Line(), PAIRS, num_steps=1, drop_last=True, scheduler=None)
    assert len(caught) == 3
    assert {warning.filename for warning in caught} == {__file__}


def test_a_function_takes_parameters_under_old_names():
    found: dict[str, Any] = {}

    @renamed(model="tokenizer")
    def build(tokenizer: int, *, folder: str = "", **more: Any) -> None:
        found.update(tokenizer=tokenizer, folder=folder, **more)

    with pytest.warns(FutureWarning, match="model is now called tokenizer") as caught:
        build(model=3, folder="a", lr=1)  # type: ignore[call-arg]
    assert found == {"tokenizer": 3, "folder": "a", "lr": 1}
    assert caught[0].filename == __file__
    build(4)
    assert found["tokenizer"] == 4
    with pytest.raises(TypeError, match="tokenizer is given twice"):
        build(tokenizer=3, model=3)  # type: ignore[call-arg]


def test_a_log_fn_given_to_train_is_called_with_a_notice(tmp_path: Path):
    reports: list[dict[str, Any]] = []
    trainer = quintet.Trainer(
        Line(),
        PAIRS,
        steps=2,
        log_every=1,
        workers=0,
        device="cpu",
        progress=False,
        run=tmp_path / "run",
    )
    with pytest.warns(FutureWarning, match="log_fn is now an argument of the trainer"):
        trainer.train(reports.append)
    assert [report["step"] for report in reports][:2] == [1, 2]
