"""Stage of the speech room in `quintet demo`."""

from pathlib import Path

from quintet.shared.demo import Sample, Stage

TEXTS = ("ba do ki", "ma ni su")


def synthesise(run: Path, out: Path) -> list[Sample]:
    from quintet.speech.sample import Flags, sample

    files = sample(run, (), out, Flags(text=TEXTS, device="cpu"))
    sounds = [file for file in files if file.suffix == ".wav"]
    return [Sample(prompt=text, file=file) for text, file in zip(TEXTS, sounds)]


def copy(run: Path, out: Path) -> list[Sample]:
    from quintet.speech.sample import Flags, sample

    original = sorted((run / "exhibits").glob("*/*-original.wav"))[-1]
    copied, _ = sample(run, (original,), out, Flags(device="cpu"))
    return [Sample(prompt="a held-out recording", file=copied)]


STAGES = (
    Stage(
        folder="speech",
        recipe="speech/voicebox_tiny",
        title="Speech",
        description="Flow matching: infills recordings and synthesises text in a given voice.",
        steps={"full": 300, "quick": 80},
        seconds={"full": 111, "quick": 32},
        quick_settings={"recordings.valid_limit": 24, "sampling.count": 4},
        minimal_settings={
            "recordings.valid_limit": 4,
            "sampling.count": 1,
            "recordings.builtin_count": 64,
        },
        summarise=lambda metrics, _: (
            f"infilling error {metrics['mel_error']:.2f} (log-mel); baseline: copying adjacent "
            f"frames {metrics['mel_error_copied']:.2f}; {metrics['syllables']:.0%} of synthesised "
            f"syllables recognised, {metrics['syllables_recorded']:.0%} of recorded ones"
        ),
        draw=synthesise,
        next_arguments='--text "ba do ki" --out speech.wav',
    ),
    Stage(
        folder="vocoder",
        recipe="speech/vocoder_tiny",
        title="Vocoder",
        description="Log-mels to sound, with two discriminators; VoiceBox can speak through it.",
        steps={"full": 150, "quick": 30},
        seconds={"full": 75, "quick": 25},
        quick_settings={"recordings.valid_limit": 8},
        minimal_settings={"recordings.valid_limit": 2, "recordings.builtin_count": 64},
        summarise=lambda metrics, _: (
            f"log-mel error of copies {metrics['mel_error']:.3f}; baseline: Griffin-Lim "
            f"{metrics['mel_error_griffin_lim']:.3f}"
        ),
        draw=copy,
        next_arguments="me.wav --out copy.wav",
    ),
)
