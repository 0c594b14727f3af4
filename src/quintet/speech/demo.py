"""Stage of the speech room in `quintet demo`."""

from pathlib import Path

from quintet.shared.demo import Sample, Stage
from quintet.shared.sampling import Trained

TEXTS = ("ba do ki", "ma ni su")


def synthesise(trained: Trained, out: Path) -> list[Sample]:
    from quintet.speech.voicebox.sample import Flags, sample

    files = sample(trained, (), out, Flags(text=TEXTS, device="cpu"))
    sounds = [file for file in files if file.suffix == ".wav"]
    return [Sample(prompt=text, file=file) for text, file in zip(TEXTS, sounds)]


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
)
