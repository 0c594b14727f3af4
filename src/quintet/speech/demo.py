"""The speech room in `quintet demo`."""

from pathlib import Path

from quintet.shared.demo import Figure, RoomDemo, Row, Sample, Stage
from quintet.shared.sampling import Trained

TEXTS = ("ba do ki", "ma ni su", "lu ke sa bo")


def synthesise(trained: Trained, out: Path) -> list[Sample]:
    from quintet.speech.voicebox.sample import Flags, sample

    files = sample(trained, (), out, Flags(text=TEXTS, device="cpu"))
    sounds = [file for file in files if file.suffix == ".wav"]
    return [Sample(prompt=text, file=file) for text, file in zip(TEXTS, sounds)]


VOICEBOX = Row(
    title="Text to speech",
    description="Flow matching synthesises log-mel spectrograms from text, in any voice.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['syllables']:.0%}",
        meaning="of synthesised syllables recognised",
        baseline=f"of recorded ones: {metrics['syllables_recorded']:.0%}",
    ),
    draw=synthesise,
    arguments='--text "ba do ki" --out speech.wav',
)
STAGES = (
    Stage(
        folder="speech",
        recipe="speech/voicebox_tiny",
        row=VOICEBOX,
        steps=300,
        seconds=111,
        minimal_settings={
            "recordings.valid_limit": 4,
            "sampling.count": 1,
            "recordings.builtin_count": 64,
        },
    ),
)
DEMO = RoomDemo(position=5, stages=STAGES, ready="speech", row=VOICEBOX)
