"""The task through the engine: what is measured, what is shown, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.engine.config import ConfigError, OptimizerConfig
from quintet.engine.data.wire import widened
from quintet.engine.errors import RunError
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.media.audio import probe, write_wav
from quintet.shared.exhibits import GAP, SCALE, Sounds, coloured, stacked
from quintet.speech import voices
from quintet.speech.config import SpeechDataConfig
from quintet.speech.voicebox import task as room
from quintet.speech.voicebox.config import (
    SamplingConfig,
    VoiceBoxConfig,
    VoiceBoxLossConfig,
    VoiceBoxRecipe,
)
from quintet.speech.voicebox.task import VoiceBoxTask
from speech.small import DATA, MODEL, utter, voicebox

QUICK = SamplingConfig(steps=1, method="euler", sway=0.0, cond_scale=1.0, count=0)


def recipe(**changes: Any) -> VoiceBoxRecipe:
    settings: dict[str, Any] = {
        "steps": 4,
        "batch_size": 4,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "log_every": 1,
        "evaluate_every": 0,
        "model": VoiceBoxConfig(**MODEL),
        "recordings": SpeechDataConfig(**DATA),
        "sampling": SamplingConfig(steps=1, method="euler", sway=0.0, cond_scale=1.0, count=1),
        "optim": OptimizerConfig(learning_rate=1e-3, warmup_steps=2),
        **changes,
    }
    return VoiceBoxRecipe(**settings)


def held_out(task: VoiceBoxTask, count: int = 3) -> Batch:
    data = task.data("valid")
    items = [data.keyed(index, None) for index in range(count)]
    return Batch(widened(task.collate(items)), list(range(count)), torch.arange(count))


def opened(settings: VoiceBoxRecipe, path: Path, **how: Any) -> Run:
    return Run(VoiceBoxTask(settings, **how), settings, World(settings), RunFolder(path))


def test_a_run_learns_what_is_said_when(tmp_path):
    """In 40 steps the loss of alignments falls, and so does that of the flow."""
    settings = recipe(
        steps=40,
        sampling=QUICK,
        optim=OptimizerConfig(learning_rate=5e-3, warmup_steps=5, ema_decay=0.9),
    )
    run = opened(settings, tmp_path)
    begun = run.evaluate()
    for _ in range(40):
        take_step(run)
    ended = run.evaluate()
    run.close()
    assert ended["alignment_loss"] < 0.9 * begun["alignment_loss"]
    assert ended["loss"] < 0.7 * begun["loss"]
    assert ended["duration_error"] < begun["duration_error"]


def test_the_blank_of_alignments_falls_in_the_course_of_the_planned_run(tmp_path):
    task = VoiceBoxTask(recipe(steps=10, planned_steps=100))
    assert [task._blank(step) for step in (0, 30, 55, 80, 99)] == [0, 0, -4, -8, -8]

    def alignment_loss(planned_steps: int) -> float:
        run = opened(recipe(planned_steps=planned_steps), tmp_path / str(planned_steps))
        for _ in range(2):  # the second is past the end of a plan of one step
            run.meters.entries.clear()
            take_step(run)
        (loss,) = [e.value for e in run.meters.entries if e.name.endswith("alignment")]
        run.close()
        return float(loss)

    # A frame that may not be blank must be explained by its characters.
    assert alignment_loss(1) != alignment_loss(100)


def test_what_is_measured_does_not_see_what_is_hidden():
    """The error of what is filled in changes with the recording, but what is filled in does not."""
    task = VoiceBoxTask(recipe(), voicebox())
    batch = held_out(task)
    seen = []
    inputs = room.infill

    def watched(network, layout, solver, keys):
        seen.append(inputs(network, layout, solver, keys))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(room, "infill", watched)
        first = task._measure_infill(task.model, batch)
        _, infill_mask = task._infill_mask(batch)
        # Samples whose frames, as wide as a window, all lie inside of the hole.
        for row, where in zip(batch.data["audio"], infill_mask):
            start, width = int(where.int().argmax()), int(where.sum())
            row[start * 128 + 256 : (start + width - 1) * 128 - 256] = 0.01
        second = task._measure_infill(task.model, batch)
    assert torch.equal(seen[0][infill_mask], seen[1][infill_mask])
    assert not first["mel_error"].values.equal(second["mel_error"].values)


def test_two_measurements_of_a_batch_are_equal():
    task = VoiceBoxTask(recipe(), voicebox())
    batch = held_out(task)
    with torch.no_grad():
        one, two = (task.measure({"voicebox": task.model}, batch) for _ in range(2))
    assert {"mel_error", "mel_error_copied", "syllables", "aligned"} <= one.keys()
    for name, value in one.items():
        assert vars(value).keys() == vars(two[name]).keys()
        for first, second in zip(vars(value).values(), vars(two[name]).values()):
            assert torch.equal(torch.as_tensor(first), torch.as_tensor(second)), name


@pytest.mark.slow  # test_recognition.py and judges/ hear
@pytest.mark.usefixtures("well_heard")
def test_recorded_syllables_are_recognised_and_those_of_a_young_model_are_not():
    wide = {"sample_rate": 24_000, "n_fft": 1024, "hop_length": 256, "n_mels": 100}
    settings = recipe(
        model=VoiceBoxConfig(**MODEL | wide),
        recordings=SpeechDataConfig(**DATA | {"sample_rate": 24_000}),
        sampling=SamplingConfig(steps=1, method="euler", count=3),
    )
    task = VoiceBoxTask(settings)
    with torch.no_grad():
        actual = task.measure({"voicebox": task.model.eval()}, held_out(task))
    shares = {n: float(actual[n].total) / actual[n].count for n in actual if n.startswith("syll")}  # type: ignore[union-attr]
    assert shares["syllables_recorded"] >= 0.95
    assert shares["syllables"] < 0.3


def test_the_share_of_copying_is_of_means_over_all_samples():
    rows = {"mel_error": torch.tensor([1.0, 2.0]), "mel_error_copied": torch.tensor([2.0, 4.0])}
    assert VoiceBoxTask(recipe()).summarise(rows)["share_of_copying"] == 0.5


def test_exhibits_can_be_heard_and_seen(tmp_path):
    task = VoiceBoxTask(recipe(), voicebox())
    shown = task.exhibit({"voicebox": task.model}, held_out(task))
    assert len(shown) == 3
    files = shown[0].write(tmp_path)
    names = {path.name for path in files}
    kinds = ("original", "copy", "infilled", "from-text")
    assert {f"speech-0-{kind}.wav" for kind in kinds} < names
    assert {"speech-0.png", "speech-0.txt"} < names
    for path in files:
        if path.suffix == ".wav":
            assert probe(path).rate == 8_000


def test_the_text_of_an_exhibit_names_sounds_that_clip(tmp_path):
    sounds = {"original": torch.zeros(400), "copy": torch.full((400,), 1.5)}
    Sounds("speech-0", sounds, [torch.zeros(4, 4)] * 2, 8_000, "ba").write(tmp_path)
    words = (tmp_path / "speech-0.txt").read_text().splitlines()
    assert words[:2] == ["ba", "original | copy"]
    assert words[2].startswith("copy: 400 of 400 samples were beyond full scale (peak 1.50)")


def test_pictures_are_stacked_on_one_scale_of_time_with_low_tones_below():
    rising = torch.arange(12.0).view(3, 4).numpy()
    picture = stacked([rising[:, :2], rising])
    assert picture.shape == (6 * SCALE + GAP, 4 * SCALE, 3)
    assert (picture[: 3 * SCALE, : 2 * SCALE] == coloured(rising[:, :2])).all()
    assert (picture[3 * SCALE + GAP :] == coloured(rising)).all()
    assert (picture[: 3 * SCALE, 2 * SCALE :] == 255).all()
    assert (picture[3 * SCALE :][:GAP] == 255).all()
    assert coloured(rising)[0].mean() > coloured(rising)[-1].mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"audio": torch.full((1, 900), 3e4)}, "divide"), ({"ids": torch.full((1, 4), 300)}, "300")],
)
def test_a_first_batch_that_cannot_be_is_refused(change, message):
    data = {"audio": torch.zeros(1, 900), "ids": torch.zeros(1, 4, dtype=torch.int64), **change}
    with pytest.raises(ValueError, match=message):
        VoiceBoxTask(recipe()).check(data)


def test_rates_of_model_and_recordings_agree():
    with pytest.raises(ConfigError, match=r"model\.sample_rate, 8000"):
        recipe(recordings=SpeechDataConfig(**DATA | {"sample_rate": 16_000}))
    with pytest.raises(ConfigError, match="mask_fraction"):
        VoiceBoxLossConfig(mask_fraction=(0.9, 0.2))


@pytest.mark.parametrize("change", [{"text": "given"}, {"phonemes": "en-us"}])
def test_built_in_speech_has_neither_ids_nor_a_language(change):
    with pytest.raises(ConfigError, match="built-in speech"):
        VoiceBoxTask(recipe(model=VoiceBoxConfig(**MODEL | change))).data("train")


def test_a_vocoder_that_is_not_there_is_named(tmp_path):
    settings = recipe(sampling=SamplingConfig(vocoder=str(tmp_path / "none")))
    task = VoiceBoxTask(settings)
    with pytest.raises(RunError, match="none"):
        task.prepare(World(settings))


def test_a_folder_with_damage_trains_and_names_it(tmp_path, capsys):
    folder = tmp_path / "readings"
    folder.mkdir()
    for number in range(12):
        utterance = utter("bakitu", seed=number)
        write_wav(folder / f"{number}.wav", voices.speak(utterance, 8_000), 8_000)
        (folder / f"{number}.txt").write_text("bakitu" if number else "🙂", encoding="utf-8")
    content = (folder / "1.wav").read_bytes()
    (folder / "1.wav").write_bytes(content[:44])  # the header, and no sample
    run = opened(recipe(data=str(folder)), tmp_path / "run")
    assert "1 of 12" in capsys.readouterr().err  # a text that nobody can speak is left out
    for _ in range(4):
        take_step(run)
    run.close()
    assert {note.name for note in run.stream.damaged} == {"1.wav"}
