"""Samples of several calls in the same blocks are those of each call by itself, bit for bit."""

from copy import deepcopy
from typing import Any

import pytest
import torch

import small
from quintet.shared.generation.sampling import together
from quintet.shared.sampling import CALLER, Caller, say, with_progress

MODELS = [small.image_flow, small.maskgit, small.music_flow, small.video_flow, small.video_maskgit]


def measured(make: Any) -> Any:
    model = deepcopy(make())
    if hasattr(model, "measure_latents"):
        model.measure_latents(torch.randn(4, model.config.latent_channels, 2, 2))
    return model


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_sample_depends_on_its_own_text_seed_and_number_alone(make: Any) -> None:
    model = measured(make)
    calls = [
        {"texts": ["a red star"], "count": 2, "seed": 5, "steps": 2},
        {"texts": ["two blue rings on a white ground"], "count": 1, "seed": 5, "steps": 2},
        {"texts": None, "count": 1, "seed": 7, "steps": 2},
        {"texts": ["a red star"], "count": 3, "seed": 9, "steps": 2},
        {"texts": ["a red star"], "count": 1, "seed": 5, "steps": 1},
    ]
    joint = together(model, calls)
    for call, samples in zip(calls, joint):
        assert torch.equal(samples, model.generate(**call))
    assert not torch.equal(joint[0][0], joint[0][1])


def test_calls_with_an_image_run_by_themselves() -> None:
    model = small.maskgit()
    image, mask = torch.rand(3, 16, 16), torch.ones(16, 16, dtype=torch.bool)
    call = {"texts": None, "count": 1, "seed": 1, "image": image, "mask": mask, "steps": 2}
    joint = together(model, [call, call])
    assert torch.equal(joint[0], joint[1])


def test_a_caller_hears_remarks_and_can_end_the_work(capsys: Any) -> None:
    said: list[str] = []
    left = iter([None, None])
    token = CALLER.set(Caller(said.append, lambda: next(left)))
    try:
        say("a remark")
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(with_progress([1, 2, 3]))
    finally:
        CALLER.reset(token)
    assert said == ["a remark"]
    assert capsys.readouterr().err == ""
