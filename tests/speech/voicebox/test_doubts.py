"""Exchanged transcripts are found by the aligner of a trained model."""

import random
from pathlib import Path

import pytest
import torch

from quintet import rooms
from quintet.cli import main
from quintet.engine.data.wire import widened
from quintet.engine.errors import RunError
from quintet.media.audio import write_wav
from quintet.nn.alignment import binarization_loss, forward_sum
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, BuiltinVoices, collate
from quintet.speech.voicebox.config import VoiceBoxConfig
from quintet.speech.voicebox.doubts import doubtful
from quintet.speech.voicebox.model import VoiceBox
from speech.small import DATA, MODEL

pytestmark = pytest.mark.slow  # an aligner is trained

COUNT, EXCHANGED = 200, 10


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which only the aligner is trained, in some seconds."""
    torch.manual_seed(0)
    config = VoiceBoxConfig(**MODEL | {"n_mels": 40, "align_dim": 32})
    model = VoiceBox(config)
    data = SpeechDataConfig(**DATA | {"builtin_count": 360, "max_seconds": 3.0, "text_length": 36})
    buckets = Buckets(data, config)
    source = BuiltinVoices(buckets, "train")
    items = [source.keyed(index, None) for index in range(len(source))]
    inputs = []
    for start in range(0, len(items), 12):
        batch = widened(collate(items[start : start + 12], buckets))
        num_frames = model.features.num_frames(batch["lengths"])
        inputs.append(
            (model.features(batch["audio"]), num_frames, batch["ids"], batch["num_tokens"])
        )
    assert model.aligner is not None
    assert model.align_embedding is not None
    parameters = [*model.aligner.parameters(), *model.align_embedding.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    for _ in range(4):
        for x, num_frames, ids, num_tokens in inputs:
            aligned = model.align(x, num_frames, ids, num_tokens)
            losses = forward_sum(aligned.log_probs, num_frames, num_tokens)
            loss = (losses + 0.1 * binarization_loss(*aligned)).sum() / num_frames.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.save_pretrained(tmp_path_factory.mktemp("aligner") / "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """Speech that the aligner never heard, and the names of those with the text of another."""
    path = tmp_path_factory.mktemp("speech")
    data = SpeechDataConfig(**DATA | {"valid_limit": COUNT, "max_seconds": 3.0, "text_length": 36})
    source = BuiltinVoices(Buckets(data, VoiceBoxConfig(**MODEL)), "valid")
    items = [source.keyed(index, None) for index in range(COUNT)]
    texts = [item["text"] for item in items]
    wrong = random.Random(0).sample(range(COUNT), EXCHANGED)
    for index, other in zip(wrong, wrong[1:] + wrong[:1]):
        texts[index] = items[other]["text"]
    for index, item in enumerate(items):
        write_wav(path / f"{index:03d}.wav", item["audio"].numpy() / 32768, data.sample_rate)
        (path / f"{index:03d}.txt").write_text(texts[index])
    names = {f"{i:03d}.wav" for i in wrong if texts[i] != items[i]["text"]}
    return path, names


def test_exchanged_transcripts_are_named_and_few_others(aligner, folder):
    path, wrong = folder
    verdict = doubtful(rooms.trained(aligner)[1], path, "cpu")
    named = {doubt.name for doubt in verdict.named}
    assert len(verdict.doubts) == COUNT
    assert len(named & wrong) >= 0.9 * len(wrong)
    assert len(named - wrong) <= 0.02 * COUNT
    assert verdict.power > 0.8
    assert [doubt.log_odds for doubt in verdict.doubts] == sorted(
        (doubt.log_odds for doubt in verdict.doubts), reverse=True
    )


def test_the_doctor_lists_them(aligner, folder, capfd):
    path, wrong = folder
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "speech", str(path), "--aligner", str(aligner)])
    out = capfd.readouterr().out
    assert not ended.value.code
    assert f"of {COUNT} do not seem to match" in out
    assert sum(f"  {name}: " in out for name in wrong) >= 0.9 * len(wrong)


def test_an_aligner_that_knows_nothing_accuses_few(folder, tmp_path):
    torch.manual_seed(0)
    config = VoiceBoxConfig(**MODEL)
    untrained = VoiceBox(config).save_pretrained(tmp_path / "model")
    verdict = doubtful(rooms.trained(untrained)[1], folder[0], "cpu")
    assert len(verdict.named) <= 0.05 * COUNT
    assert verdict.power < 0.3


def test_too_few_recordings_are_refused(aligner, tmp_path):
    for index in range(3):
        write_wav(tmp_path / f"{index}.wav", torch.randn(8000).numpy() / 4, 8000)
        (tmp_path / f"{index}.txt").write_text("ba do")
    with pytest.raises(RunError, match="too few"):
        doubtful(rooms.trained(aligner)[1], tmp_path, "cpu")
