"""The flow generator of music on a small codec: windows, what is given, loops, agreement, files."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quintet
from harness import assert_same
from quintet import Codec, MusicFlow, MusicFlowTrainer
from quintet.engine.machine.world import World
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.media.audio import read_audio, write_wav
from quintet.music import agreement, recipes, songs
from quintet.music.flow.outputs import outputs
from quintet.music.flow.task import MusicFlowTask, build

RATE, HOP, FRAMES = 2000, 100, 20
SECONDS = FRAMES * HOP / RATE
MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 8}
FEW: dict[str, Any] = {
    "steps": 2,
    "batch_size": 2,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}


@pytest.fixture(scope="module")
def codec() -> Codec:
    torch.manual_seed(0)
    return Codec(sample_rate=RATE, dim=8, strides=(10, 10), latent_channels=4).eval()


@pytest.fixture(scope="module")
def saved(codec: Codec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return codec.save_pretrained(tmp_path_factory.mktemp("codec"))


@pytest.fixture(scope="module")
def model(codec: Codec) -> MusicFlow:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(1)
    model = MusicFlow(codec, seconds=SECONDS, patch=2, **MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.measure_latents(codec.to_codes(0.3 * torch.randn(4, 1, FRAMES * HOP)))


def noise(frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(1, frames * HOP, generator=generator)


def recipe(codec: Path, **changes: Any) -> Any:
    base = recipes.flow_tiny()
    sounds = dataclasses.replace(base.sounds, builtin_count=8, valid_limit=4, seconds=SECONDS)
    own: dict[str, Any] = {
        "tokenizer": str(codec),
        "sounds": sounds,
        "model": dataclasses.replace(base.model, dim=32, layers=1),
        "generation": dataclasses.replace(base.generation, sampling_steps=2, count=2),
    }
    return dataclasses.replace(base, **{**own, **FEW, **changes})


def prepared(settings: Any) -> MusicFlowTask:
    task = build(settings)
    task.prepare(World(settings))
    return task


# -- generation -----------------------------------------------------------------------------------


def test_longer_music_continues_window_by_window(model: MusicFlow) -> None:
    settings: dict[str, Any] = {"steps": 2, "seed": 3, "return_latents": True}
    whole = model.generate(["a"], seconds=2 * SECONDS, **settings)
    assert whole.shape == (1, 4, 2 * FRAMES)
    part = model.generate(["a"], **settings)
    assert torch.equal(whole[..., :FRAMES], part)
    less = model.generate(["a"], seconds=1.5 * SECONDS, **settings)
    assert torch.equal(whole[..., : FRAMES * 3 // 2], less)
    odd = model.generate(["a"], seconds=7 * HOP / RATE, **settings)
    assert odd.shape[-1] == 7


def test_music_does_not_depend_on_its_batch(model: MusicFlow) -> None:
    texts = [f"number {index}" for index in range(5)]
    together = model.generate(texts, seconds=1.5 * SECONDS, steps=2)
    assert torch.equal(
        model.generate(texts[3:], seconds=1.5 * SECONDS, steps=2, first=3), together[3:]
    )
    assert not torch.equal(together[0], together[1])


def test_a_sound_goes_on(model: MusicFlow) -> None:
    sound = noise(13)
    made = model.generate(["a"], count=2, sound=sound, seconds=2 * SECONDS, steps=2)
    assert made.shape == (2, 1, 2 * FRAMES * HOP)
    fade = round(0.01 * RATE) + 1
    assert torch.equal(made[:, :, : 13 * HOP - fade], sound[:, : 13 * HOP - fade].expand(2, -1, -1))
    assert not torch.equal(made[0, :, 13 * HOP :], made[1, :, 13 * HOP :])
    latents = model.generate(["a"], sound=sound, seconds=2 * SECONDS, steps=2, return_latents=True)
    assert torch.equal(latents[..., :13], model.encode(sound[None]))
    other = model.generate(["a"], sound=noise(13, 1), seconds=2 * SECONDS, steps=2)
    assert not torch.allclose(other[0, :, 14 * HOP :], made[0, :, 14 * HOP :], atol=1e-3)


def test_a_span_is_made_anew_and_the_rest_stays(model: MusicFlow) -> None:
    sound = noise(3 * FRAMES)[:, :-30]
    start, stop = 25 * HOP, 33 * HOP
    made = model.generate(["a"], sound=sound, span=(start / RATE, stop / RATE), steps=2)[0]
    assert made.shape == sound.shape
    changed = (made != sound).any(0).nonzero()[:, 0]
    fade = round(0.01 * RATE) + 1
    assert start - fade <= int(changed[0]) < start + HOP
    assert stop - HOP < int(changed[-1]) < stop + fade


def test_strength_says_how_far_a_sound_changes(model: MusicFlow) -> None:
    sound = noise(FRAMES + 5)[:, :-7]
    near, far = (
        model.generate(["a"], sound=sound, strength=strength, steps=4) for strength in (0.05, 1.0)
    )
    assert near.shape == far.shape == (1, *sound.shape)
    copy = model.tokenizer.reconstruct(sound[None])
    assert (near - copy).abs().mean() < 0.5 * (far - copy).abs().mean()


def test_a_loop_is_a_circle(model: MusicFlow) -> None:
    latents = model.generate(["a"], loop=True, steps=2, return_latents=True)
    plain = model.generate(["a"], steps=2, return_latents=True)
    seam = 3  # half of a quarter, rounded up
    assert torch.equal(latents[..., seam:-seam], plain[..., seam:-seam])
    assert not torch.equal(latents[..., : seam - 1], plain[..., : seam - 1])
    sound = model.generate(["a"], loop=True, steps=2)
    turned = model.decoded_loop(latents.roll(3, -1))
    torch.testing.assert_close(turned, sound.roll(3 * HOP, -1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"seconds": 0.0}, "seconds is 0.0; it must be above 0"),
        ({"span": (0.1, 0.2)}, "span and strength belong to a sound"),
        ({"sound": noise(5), "seconds": 0.2}, "the sound has 0.25 s already; seconds is 0.2"),
        ({"sound": noise(5), "span": (0.2, 0.1)}, "the span is 0.2 to 0.1 s"),
        ({"sound": noise(5), "strength": 1.5}, "strength is 1.5"),
        ({"sound": noise(5), "loop": True, "strength": 0.5}, "choose"),
        ({"sound": noise(5).expand(2, -1), "strength": 0.5}, r"give floats \(1, n\) at 2000 Hz"),
        ({"overlap": 1.0}, "overlap is 1; it must be 0 or more, and below 1 s"),
    ],
)
def test_music_that_cannot_be_made_is_refused(
    model: MusicFlow, keywords: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], steps=1, **keywords)


# -- data and training ----------------------------------------------------------------------------


def test_given_latents_are_spans_and_starts(saved: Path) -> None:
    task = prepared(recipe(saved))
    given = task.given(torch.arange(64), (FRAMES,))
    assert given.shape == (64, 1, FRAMES)
    changes = given[:, 0].int().diff(dim=1).abs().sum(1)
    assert {1, 2} <= set(changes.tolist()) <= {0, 1, 2}
    assert not given.flatten(1).all(1).any()
    item = task.data("valid").keyed(0, None)
    batch = Batch(task.collate([item]), [0], torch.tensor([5]))
    assert batch.data["codes"].shape == (1, 4, FRAMES)
    assert {"agrees", "agrees_tempo", "nearer"} <= set(task.measure_generation(batch))


def test_bad_files_of_a_folder_are_named_and_good_ones_are_read(
    saved: Path, tmp_path: Path, capfd: Any
) -> None:
    import soundfile

    folder, tone = tmp_path / "songs", np.sin(np.arange(4 * RATE) / 5).astype(np.float32)
    (folder / "slow_piano").mkdir(parents=True)
    for name, volume in (("a", 0.2), ("b", 0.4), ("c", 0.6), ("clipped", 3.0)):
        write_wav(folder / "slow_piano" / f"{name}.wav", volume * tone, RATE)
    soundfile.write(folder / "slow_piano/eight.wav", 0.5 * tone, RATE, subtype="PCM_U8")
    soundfile.write(folder / "high.wav", 0.5 * np.tile(tone, 12), 96_000)
    (folder / "high.txt").write_text("a high tone")
    write_wav(folder / "silent.wav", np.zeros(4 * RATE, np.float32), RATE)
    base = recipe(saved, data=str(folder), variants=3)
    long = dataclasses.replace(base.sounds, max_seconds=10.0)
    write_wav(folder / "long.wav", np.tile(tone, 6), RATE)
    task = prepared(dataclasses.replace(base, sounds=long))
    said = capfd.readouterr().err
    assert "1 of 8 songs left out: more than max_seconds" in said
    sets = [each for each in task.codes.values() if each is not None]
    rows = {each.name(i): each for each in sets for i in range(len(each))}
    assert "long.wav" not in rows
    assert len(rows) == 7
    texts = {each.name(i): each.text(i) for each in sets for i in range(len(each))}
    assert texts["high.wav"] == "a high tone"
    assert texts["slow_piano/a.wav"] == "slow piano"
    for each in sets:
        for index in range(len(each)):
            if each.name(index) == "silent.wav":
                with pytest.raises(ValueError, match="silent"):
                    each.keyed(index, None)
            else:
                assert each.codes_of(index).shape == (FRAMES, 4)


def test_a_run_is_resumed_sampled_evaluated_and_saved(
    saved: Path, tmp_path: Path, cli: Any
) -> None:
    run, song = tmp_path / "run", tmp_path / "song.wav"
    write_wav(song, noise(2 * FRAMES)[0].numpy(), RATE)
    words = [
        *("--steps", 2, "--workers", 0, "--batch-size", 2, "--device", "cpu", "--trackers"),
        *("--sounds.builtin-count", 8, "--sounds.valid-limit", 2, "--sounds.seconds", SECONDS),
        *("--model.dim", 32, "--model.layers", 1, "--generation.count", 0),
        *("--generation.reference-count", 2, "--generation.sampling-steps", 1),
    ]
    sampled = ["--text", "flute", "--count", 2, "--steps", 1]
    for arguments in (
        ["train", "music/flow_tiny", "--run", run, "--tokenizer", saved, *words],
        ["resume", run, "--steps", 3],
        ["evaluate", run],
        ["sample", run, *sampled, "--seconds", 1.5, "--loop", "--out", tmp_path / "loop"],
        ["sample", run, *sampled, "--like", song, "--out", tmp_path / "like"],
        ["sample", run, *sampled, "--continue", song, "--seconds", 3, "--out", tmp_path / "more"],
        ["sample", run, *sampled, "--infill", song, "--span", 0.5, 1, "--out", tmp_path / "part"],
    ):
        done = cli(*arguments)
        assert done.status == 0, done.err
    assert RunFolder.open(run).steps()[-1] == 3
    for folder, seconds in (("loop", 1.5), ("like", 2), ("more", 3), ("part", 2)):
        files = sorted((tmp_path / folder).glob("*.wav"))
        assert [len(read_audio(file, rate=RATE, silent=True)) for file in files] == [
            seconds * RATE
        ] * 2
        assert (tmp_path / folder / "sheet.png").is_file()
    assert cli("sample", run, "--infill", song, "--out", tmp_path / "x").status == 2
    assert cli("sample", run, "--like", song, "--continue", song, "--out", tmp_path).status == 2
    model = quintet.load(run)
    again = MusicFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert_same(dict(model.state_dict()), dict(again.state_dict()))
    assert torch.equal(*(each.generate(["a"], steps=1) for each in (model, again)))


def test_a_trainer_learns_from_a_data_set_of_python(codec: Codec, tmp_path: Path) -> None:
    data = [{"audio": noise(30, index), "text": f"noise {index}"} for index in range(6)]
    model = MusicFlow(codec, seconds=SECONDS, **MODEL)
    keywords = {**FEW, "steps": 2, "count": 0, "warmup_steps": 1}
    trainer = MusicFlowTrainer(model, data, run=tmp_path / "run", **keywords)
    trainer.train()
    assert trainer.generate(["noise 1"], steps=1).shape == (1, 1, FRAMES * HOP)
    assert trainer.recipe.sounds.seconds == SECONDS


def test_variants_are_windows_at_places_that_stay(saved: Path, tmp_path: Path) -> None:
    long = noise(10 * FRAMES)[0].numpy()
    (tmp_path / "a_noise").mkdir()
    for number in range(3):
        write_wav(tmp_path / f"a_noise/{number}.wav", np.roll(long, 77 * number), RATE)
    tasks = [prepared(recipe(saved, data=str(tmp_path), variants=3, seed=seed)) for seed in (0, 0)]
    first, again = (task.codes["train"] for task in tasks)
    windows = [first.codes_of(0, number) for number in range(3)]
    assert not torch.equal(windows[0], windows[1])
    assert not torch.equal(windows[1], windows[2])
    assert all(torch.equal(w, again.codes_of(0, number)) for number, w in enumerate(windows))


def test_shards_of_latents_are_those_of_the_folder(
    codec: Codec, saved: Path, tmp_path: Path
) -> None:
    folder, shards = tmp_path / "songs", tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        write_wav(folder / f"{number}.wav", noise(100, number)[0].numpy(), RATE)
        (folder / f"{number}.txt").write_text(f"noise {number}")
    quintet.encode(saved, folder, shards, recipe="music/flow_tiny", device="cpu")
    sounds = recipes.flow_tiny().sounds
    sets = [
        prepared(recipe(saved, data=str(place), sounds=sounds)).codes["train"]
        for place in (folder, shards)
    ]
    assert [sets[1].text(index) for index in range(len(sets[1]))] == [
        sets[0].text(index) for index in range(len(sets[0]))
    ]
    for index in range(len(sets[0])):
        assert torch.equal(sets[0].codes_of(index), sets[1].codes_of(index))


def test_outputs_are_sounds_with_their_captions(saved: Path) -> None:
    task = prepared(recipe(saved))
    judged = outputs(task)
    source = judged.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(2)]
    group = judged.make(items, Batch(judged.collate(items), [0, 1], torch.arange(2)))
    assert group.captions == [songs.compose(n, "motifs").caption for n in (1, 3)]
    for sound in (*group.originals, *group.outputs, *group.baselines["training"]):
        assert (sound.rate, len(sound.wav), sound.wav.dtype) == (RATE, FRAMES * HOP, np.int16)


# -- agreement ------------------------------------------------------------------------------------


def test_captions_of_validation_are_not_in_training() -> None:
    for kind in songs.KINDS:
        sides = [
            {songs.compose(2 * index + odd, kind).caption for index in range(5000)}
            for odd in (0, 1)
        ]
        assert sides[0].isdisjoint(sides[1])
        assert all(songs.song_of(caption) for side in sides for caption in side)


def test_what_a_motif_is_is_heard_and_another_is_not() -> None:
    """Of originals; what is right in copies by a codec is a metric of each evaluation."""
    of_number = {number: songs.compose(number, "motifs") for number in range(1, 21, 2)}
    right: list[bool] = []
    for number, song in of_number.items():
        sound = songs.play(number, "motifs", 4.0, 16_000)
        facets = agreement.right(song.caption, sound, 16_000, "motifs")
        right.append(all(facets.values()))
        modes = {"major": "minor", "minor": "major"}
        others = (
            dataclasses.replace(song, bpm=72 if song.bpm > 100 else 132),
            dataclasses.replace(song, mode=modes[song.mode]),
            dataclasses.replace(
                song, instrument="organ" if song.instrument == "flute" else "flute"
            ),
        )
        for name, other in zip(("tempo", "mode", "instrument"), others):
            heard = agreement.right(other.caption, sound, 16_000, "motifs")
            assert not (heard[name] and facets[name])
    assert np.mean(right) >= 0.9
    assert not any(agreement.right("a flute", sound, 16_000).values())
