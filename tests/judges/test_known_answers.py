"""Every judge finds the references themselves best, and more harm worse; and the judges of sets
find the same whatever the groups in which samples come. A new judge of speech, music or meshes
needs a line here, and fails without."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
from safetensors.torch import save_file

from judges.conftest import all_judges
from quintet.judges.base import Judge, PairJudge, SetJudge
from quintet.judges.media import mesh as meshes
from quintet.judges.media import music, speech
from quintet.media.audio import read_audio
from quintet.media.meshes.files import Mesh
from quintet.shared.outputs import Caption
from quintet.speech import voices

RATE = 16_000
PERFECT = {"psnr": 100.0}
"""Of the references themselves; for others 1 or 0, whichever is better."""
Ladder = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""The references themselves, then with mild harm, then with strong harm."""
Fixture = Callable[[str], Any]


def ladder(samples: Sequence[Any], harm: Callable[[Any, Any], Any], *strengths: Any) -> Ladder:
    mild, strong = ([harm(sample, strength) for sample in samples] for strength in strengths)
    return samples, mild, strong


# -- pictures and clips ---------------------------------------------------------------------


def of_pictures(name: str, fixture: Fixture) -> dict[str, Ladder]:
    samples = list(fixture("pictures")[:4, :, :48, :48])
    blur = lambda picture, n: fixture("blurred")(picture[None], n)[0]
    return {
        "noise": ladder(samples, fixture("noisy"), 0.1, 0.4),
        "blur": ladder(samples, blur, 1, 6),
    }


def of_clips(name: str, fixture: Fixture) -> dict[str, Ladder]:
    """Pictures that move to the right."""
    still = fixture("pictures")[:2, :, :32]
    samples = [torch.stack([one.roll(2 * t, -1) for t in range(9)])[..., :32] for one in still]
    return {
        "noise": ladder(samples, fixture("noisy"), 0.1, 0.4),
        "blur": ladder(samples, fixture("blurred"), 1, 6),
    }


# -- sounds ---------------------------------------------------------------------------------


def hissing(sound: Any, size: float) -> Any:
    hiss = size * np.random.default_rng(0).normal(size=sound.wav.shape)
    return sound._replace(wav=(sound.wav + hiss).astype(np.float32))


def low_passed(sound: Any, hz: float) -> Any:
    spectrum = np.fft.rfft(sound.wav)
    spectrum[np.fft.rfftfreq(len(sound.wav), 1 / RATE) > hz] = 0
    return sound._replace(wav=np.fft.irfft(spectrum, len(sound.wav)).astype(np.float32))


def shortened(sound: Any, share: float) -> Any:
    return sound._replace(wav=sound.wav[: round(share * len(sound.wav))])


def glide(cents: float) -> speech.Recording:
    """A tone with harmonics whose pitch moves, raised by so much."""
    hz = np.interp(np.linspace(0, 1, 2 * RATE), [0, 0.5, 1], [120, 180, 140]) * 2 ** (cents / 1200)
    phase = 2 * np.pi * np.cumsum(hz) / RATE
    wav = sum(np.sin(k * phase) / k for k in range(1, 6)) * 0.2
    return speech.Recording(np.asarray(wav, np.float32), RATE, "", Path("glide"))


def of_speech(name: str, fixture: Fixture) -> dict[str, Ladder]:
    if name in ("wer", "cer"):
        return {"noise": ladder([_utterance()], hissing, 0.003, 0.1)}
    return {
        "speaker": {
            "noise": ladder([glide(0)], hissing, 0.01, 0.3),
            "low-pass": ladder([glide(0)], low_passed, 400, 150),
        },
        "own_voice": {"exchanged": of_two_speakers()},
        "mel": {
            "noise": ladder([glide(0)], hissing, 0.001, 0.03),
            "low-pass": ladder([glide(0)], low_passed, 2000, 300),
        },
        "pitch": {"raised": ([glide(0)], [glide(30)], [glide(300)])},
        "duration": {"shorter": ladder([glide(0)], shortened, 0.9, 0.5)},
    }[name]


def of_two_speakers() -> Ladder:
    """For none, some and most of the texts the wrong one speaks."""
    low = [glide(cents)._replace(speaker="low") for cents in (0, 20, 40)]
    noisy = [hissing(one, 0.5)._replace(speaker="noisy") for one in low]
    own = [*low, *noisy]
    return own, [noisy[0], *own[1:]], [*noisy, *low]


def _utterance() -> speech.Recording:
    """Built-in speech has no English words: its text is what the recogniser makes of it."""
    if problem := speech.WordErrors().problem():
        pytest.skip(problem)
    wav = voices.speak(voices.compose(2, 0), RATE)
    sound = speech.Recording(np.asarray(wav, np.float32), RATE, "", Path("built-in speech"))
    text = speech._recogniser().text(sound)
    assert len(text.split()) > 4
    return sound._replace(text=text)


def chords(count: int = 4) -> list[music.Recording]:
    """Of several lengths, with overtones."""
    draw, sounds = np.random.default_rng(0), []
    for number in range(count):
        time = np.arange(round((1 + number % 3) * RATE)) / RATE
        hz = draw.uniform(150, 600, 3)[:, None, None] * np.arange(1, 9)[:, None]
        wav = (np.sin(2 * np.pi * hz * time) / np.arange(1, 9)[:, None]).sum((0, 1)) / 6
        sounds.append(music.Recording(wav.astype(np.float32), RATE, Path("chord")))
    return sounds


def of_music(name: str, fixture: Fixture) -> dict[str, Ladder]:
    if name in ("fad", "fad_mel", "kad", "kad_mel"):
        return {
            "noise": ladder(chords(), hissing, 0.001, 0.02),
            "low-pass": ladder(chords(), low_passed, 4000, 500),
        }
    recall = [judge.name for judge in music.EMBEDDING_JUDGES]
    return {name: {"exchanged": exchanged()} for name in recall}[name]


def exchanged() -> Ladder:
    """Captions and, in place of their own sounds, those of others: for none, some and most."""
    vectors = np.random.default_rng(0).normal(size=(40, 32))
    captions = [Caption(str(number), vector) for number, vector in enumerate(vectors)]

    def first(count: int) -> list[Any]:
        return [*np.roll(vectors[:count], count // 2, axis=0), *vectors[count:]]

    return captions, first(10), first(30)


# -- meshes ---------------------------------------------------------------------------------


def mesh_of(shape: Any) -> Mesh:
    return Mesh(np.array(shape.vertices, np.float64), np.array(shape.faces, np.int64))


def boxes() -> list[Mesh]:
    sides = np.linspace(0.3, 0.9, 6)
    return [mesh_of(trimesh.creation.box((1, side, 0.5))) for side in sides]


def balls() -> list[Mesh]:
    return [mesh_of(trimesh.creation.icosphere(2, radius)) for radius in np.linspace(0.3, 0.5, 6)]


def rough(mesh: Mesh, size: float) -> Mesh:
    noise = np.random.default_rng(1).normal(size=mesh.vertices.shape)
    return Mesh(mesh.vertices + size * noise, mesh.faces)


def torn(mesh: Mesh, faces: int) -> Mesh:
    return Mesh(mesh.vertices, mesh.faces[faces:])


def of_meshes(name: str, fixture: Fixture) -> dict[str, Ladder]:
    own, jitter = boxes(), {"jitter": ladder(balls()[::3], rough, 0.005, 0.05)}
    return {
        "chamfer": jitter,
        "hausdorff": jitter,
        "normal_consistency": jitter,
        "minimum_matching": jitter,
        "closed_edges": {"holes": ladder(balls(), torn, 1, 100)},
        "coverage": {"repeated": (own, own[:3] * 2, own[:1] * 6)},
        "nearest_neighbour": {"replaced": (own, own[:3] + balls()[:3], balls())},
    }[name]


# -- all ------------------------------------------------------------------------------------

OF: Mapping[str, Callable[[str, Fixture], dict[str, Ladder]]] = {
    "image": of_pictures,
    "video": of_clips,
    "speech": of_speech,
    "music": of_music,
    "mesh": of_meshes,
}


def by_name(judge: type[Judge]) -> str:
    return f"{judge.medium}-{judge.name}"


@pytest.fixture
def ready(sound_weights: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All judges have weights; those of meshes see fewer points, to be quick."""
    monkeypatch.setattr(meshes, "SET_POINTS", 256)
    monkeypatch.setattr(meshes, "PAIR_POINTS", 512)
    music._network.cache_clear()
    speech._encoder.cache_clear()
    yield
    music._network.cache_clear()
    speech._encoder.cache_clear()


def values_of(judge: Judge, references: Sequence[Any], *sets: Sequence[Any]) -> list[float]:
    if isinstance(judge, PairJudge):
        return [judge.mean(judge.rows(references, outputs)) for outputs in sets]
    assert isinstance(judge, SetJudge)
    features = judge.features(references)
    return [judge.distance(features, judge.features(outputs)) for outputs in sets]


def check(judge: Judge, steps: Ladder) -> None:
    references = steps[0]
    perfect = PERFECT.get(judge.name, 1.0 if judge.better == "higher" else 0.0)
    # Of embeddings, the captions' own vectors.
    own = [getattr(sample, "vector", sample) for sample in references]
    values = values_of(judge, references, own, *steps[1:])
    if isinstance(judge, SetJudge) and judge.unbiased:
        assert values[0] < 0  # a row meets itself in the other set, and not in its own
        assert values[0] < values[1] < values[2]
        return
    tolerance = 1e-6 if isinstance(judge, PairJudge) else 1e-4  # of a Fréchet distance's roots
    assert values[0] == pytest.approx(perfect, abs=tolerance)
    worse = [(perfect - found) * (1 if judge.better == "higher" else -1) for found in values]
    assert worse[0] < worse[1] < worse[2], values
    assert worse[1] > 10 * abs(worse[0]), values


# Networks over clips and seconds of sound; as judges of pairs and sets they are those of pictures.
LONG = {"video-lpips_vgg", "video-lpips_alex", "video-fvd", "video-fid", "music-fad"}
LONG |= {"video-kid", "music-kad"}
# The same code with another network than that of lpips_alex and of fid.
LONG |= {"image-lpips_vgg", "image-frechet_vgg", "mesh-hausdorff", "speech-own_voice"}
# Features that take the time, and that judges/media/test_image.py has; frechet_onnx has the
# distance of fid, test_mmd.py that of kid.
LONG |= {"image-fid", "image-kid"}
# A recogniser and an encoder of voices; other tests of judges/media/test_speech.py hear with them.
LONG |= {"speech-wer", "speech-cer", "speech-speaker"}
MARKED = [
    pytest.param(judge, marks=pytest.mark.slow) if by_name(judge) in LONG else judge
    for judge in all_judges()
    if not judge.reads_captions  # test_clip_score.py
]


@pytest.mark.parametrize("judge", MARKED, ids=by_name)
def test_the_references_themselves_are_best_and_more_harm_is_worse(
    judge: type[Judge], ready: None, request: pytest.FixtureRequest
) -> None:
    ladders = OF[judge.medium](judge.name, request.getfixturevalue)
    assert ladders
    for steps in ladders.values():
        check(judge(), steps)


# -- real voices and weights, where packages that carry them are installed ------------------

ARCTIC = "pysptk"
"""Carries a sentence of CMU ARCTIC, which the recogniser understands."""


@pytest.mark.parametrize("judge", [speech.WordErrors, speech.CharacterErrors], ids=by_name)
def test_a_recorded_sentence_is_understood_less_the_more_noise_there_is(
    judge: type[PairJudge],
) -> None:
    if problem := judge().problem():
        pytest.skip(problem)
    check(judge(), ladder([recorded()], hissing, 0.005, 0.1))


def test_a_recorded_voice_is_recognised_less_the_more_it_is_harmed(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = torch.load(beside("resemblyzer") / "pretrained.pt", "cpu", weights_only=True)
    save_file(saved["model_state"], tmp_path / "resemblyzer.safetensors")
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    for harm in ((hissing, 0.01, 0.1), (low_passed, 3000, 800)):
        check(speech.Speaker(), ladder([recorded()], *harm))


def recorded() -> speech.Recording:
    path = beside(ARCTIC) / "example_audio_data/arctic_a0007.wav"
    text = "And you always want to see it in the superlative degree."
    return speech.Recording(read_audio(path, rate=RATE), RATE, text, path)


def beside(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


# -- groups ---------------------------------------------------------------------------------

SETS = [
    pytest.param(judge, marks=pytest.mark.slow) if by_name(judge) in LONG else judge
    for judge in all_judges()
    if issubclass(judge, SetJudge)
]


@pytest.mark.parametrize("judge", SETS, ids=by_name)
def test_sets_are_judged_alike_in_groups_of_any_size(
    judge: type[SetJudge], ready: None, request: pytest.FixtureRequest
) -> None:
    one = judge()
    references, outputs, _ = next(
        iter(OF[judge.medium](judge.name, request.getfixturevalue).values())
    )

    def in_groups(size: int) -> float:
        both = (
            one.joined([one.features(x[i : i + size]) for i in range(0, len(x), size)])
            for x in (references, outputs[::-1])  # no pairs with the same place in a group
        )
        return one.distance(*both)

    whole = in_groups(len(references))
    assert whole != 0
    for size in {1, len(references) - 1}:
        assert in_groups(size) == pytest.approx(whole, rel=1e-4)
