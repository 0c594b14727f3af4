"""Outputs of VoiceBox: held-out transcripts, spoken in the voice of other held-out speech."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from quintet.engine.data.source import Source
from quintet.engine.data.stream import DAMAGE
from quintet.engine.data.wire import to_floats
from quintet.engine.errors import RunError
from quintet.engine.task import Batch
from quintet.shared.outputs import Group, Outputs, spoken
from quintet.speech.data import SpeechFolder
from quintet.speech.voicebox.inference import infill, segment_layout
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.task import VoiceBoxTask


class Spoken(Outputs):
    """The prompt of a transcript is the next recording of its speaker that lasts three to six
    seconds, with its transcript; where none does, the next. Where the metadata does not name
    speakers, each folder counts as one."""

    task: VoiceBoxTask

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.config.features != "mel" or task.config.text != "learned":
            raise RunError(
                "judges hear spoken texts, and this run was trained on latents or without texts"
            )

    def preparation(self) -> dict[str, str]:
        return {"recordings": f"mono of 16 bits at {self.task.config.sample_rate} Hz"}

    def open(self, nets: Mapping[str, Any], source: Source) -> Source:
        voices: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index in range(len(source)):
            voices[_voice(source, index)].append(index)
        self.neighbours = {index: voice for voice in voices.values() for index in voice}
        return super().open(nets, source)

    def prompt(self, index: int) -> Mapping[str, Any] | None:
        """The first readable recording of the voice after this one, and round, those of a good
        length before the others; None if there is no other."""
        others = self.neighbours[index]
        place = others.index(index)
        in_order = (*others[place + 1 :], *others[:place])
        for other in sorted(in_order, key=lambda i: not self.fits(i)):
            try:
                return self.source.keyed(other, None)
            except DAMAGE:
                continue
        return None

    def fits(self, index: int) -> bool:
        """Whether it fits as a prompt: longer ones leave little of the length of training."""
        extent = getattr(self.source, "extent", None)
        return extent is not None and 3.0 <= extent(index) <= 6.0

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        network: VoiceBox = self.nets["voicebox"]
        lengths = batch.data["lengths"].tolist()
        recorded = [wav[:n] for wav, n in zip(batch.data["audio"], lengths)]
        copies = [network.to_sound(x, self.task.vocoder) for x in network.extract(recorded)]
        sets = {
            "originals": [item["audio"] for item in items],
            "outputs": self.speak(network, items, batch),
            "copies": copies,  # what the vocoder alone does to recordings
        }
        speakers = ["/".join(_voice(self.source, index)) for index in batch.ids]
        return spoken(sets, self.task.config.sample_rate, batch.data["texts"], speakers)

    def speak(self, network: VoiceBox, items: Sequence[Any], batch: Batch) -> list[Any]:
        segments = [
            self.segment(network, item, self.prompt(index)) for item, index in zip(items, batch.ids)
        ]
        layout = segment_layout(network, segments)
        frames = infill(network, layout, self.task.solver, batch.keys)
        new = (row[mask] for row, mask in zip(frames, layout.infill_mask))
        return [network.to_sound(x, self.task.vocoder) for x in new]

    def segment(
        self, network: VoiceBox, item: Mapping[str, Any], prompt: Mapping[str, Any] | None
    ) -> Any:
        text, language = item["text"], item.get("language", "")
        if prompt is None:
            return network.segments([text], None, None, language)[0]
        wav = to_floats(prompt["audio"])
        return network.segments([text], [wav], [prompt["text"]], language)[0]


def _voice(source: Source, index: int) -> tuple[str, str]:
    if isinstance(source, SpeechFolder) and (speaker := source.about(index).speaker):
        return "speaker", speaker
    return "folder", str(PurePath(source.name(index)).parent)


outputs = Spoken
