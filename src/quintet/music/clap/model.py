"""An adopted ClapModel of transformers (CLAP, arXiv 2211.06687): a joint embedding of sounds and
text, with its own log-mels, tokenizer and temperature.

Shapes: b samples, n audio samples, f frames, m mel bins, t tokens, l dimensions of the embedding.
"""

import hashlib
import importlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from quintet.engine.errors import RunError
from quintet.engine.models.hub import CONFIG
from quintet.engine.models.pretrained import Pretrained, refuse_outside_links
from quintet.music.clap.config import FOLDER, ClapConfig, Trained
from quintet.music.model import Embeds, MuLaN, MuLaNOutput
from quintet.nn.alignment import inside
from quintet.nn.contrastive import MAX_TEMPERATURE, MIN_TEMPERATURE
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.spectrogram import band_mask
from quintet.shared.adopt import folder
from quintet.shared.adopt.config import CONTRASTIVE

PROCESSOR = "processor"
"""Subfolder of the processor's files in what a run keeps."""
MAX_BYTES = 50_000_000
"""Of a file of the processor; a vocabulary takes a few."""
TOWERS: dict[Trained, tuple[str, ...]] = {
    "all": ("audio_model", "audio_projection", "text_model", "text_projection"),
    "projections": ("audio_projection", "text_projection"),
    "audio": ("audio_model", "audio_projection"),
    "text": ("text_model", "text_projection"),
}
SCALE = "logit_scale_a"
"""Logarithm of the inverse temperature of both directions; its twin logit_scale_t is not used."""
SCALES = (-math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE))


class ClapMel(nn.Module):
    """Sounds (b, n) -> (b, f, m) in dB, as ClapFeatureExtractor makes them of whole clips."""

    bank: Tensor

    def __init__(self, extractor: Any) -> None:
        super().__init__()
        self.samples = round(extractor.max_length_s * extractor.sampling_rate)
        self.n_fft, self.hop_length = extractor.fft_window_size, extractor.hop_length
        self.padding = extractor.padding
        bank = torch.from_numpy(extractor.mel_filters_slaney).float()
        self.register_buffer("bank", bank, persistent=False)

    @torch.no_grad()
    def forward(self, wavs: Tensor, lengths: Tensor | None) -> Tensor:
        # In fp64, as there: in fp32 the noise of an FFT is heard where a sound is quiet.
        sounds = F.pad(self.filled(wavs, lengths).double(), [self.n_fft // 2] * 2, mode="reflect")
        window = torch.hann_window(self.n_fft, dtype=torch.float64, device=wavs.device)
        spectrum = torch.fft.rfft(sounds.unfold(-1, self.n_fft, self.hop_length) * window)
        mels = torch.view_as_real(spectrum).square().sum(-1) @ self.bank.double()
        return 10 * mels.clamp_min(1e-10).log10()

    def filled(self, wavs: Tensor, lengths: Tensor | None) -> Tensor:
        """(b, samples): cut, or repeated while another whole repetition fits, then silent."""
        size = min(wavs.shape[1], self.samples)
        if size == self.samples and lengths is None:
            return wavs[:, :size]
        if lengths is None:
            lengths = torch.full((len(wavs),), size, device=wavs.device)
        lengths = lengths.clamp(1, size)[:, None]
        index = torch.arange(self.samples, device=wavs.device)
        ends = {"repeatpad": self.samples // lengths * lengths, "pad": lengths}
        whole = wavs.gather(1, index % lengths)
        return whole * (index < ends[self.padding]) if self.padding in ends else whole


class AdoptedClap(Embeds, Pretrained, nn.Module):
    """`clap.embed_audio(wavs)` and `clap.embed_text(texts)` have the embeddings of the original."""

    Config = ClapConfig

    def __init__(self, config: ClapConfig, network: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.config = config
        check_class(config)
        self.network: Any = folder.build(config) if network is None else network
        self.mel = ClapMel(extractor_of(config.front_end))
        self.tokenizer: Any = None
        self._processor: Path | None = None
        self._warned = False
        self.train_only("all")

    # -- embeddings ------------------------------------------------------------------------------

    def forward(
        self,
        wavs: Tensor,
        lengths: Tensor | None,
        text: Tensor,
        mask: Tensor | None = None,
        draws: tuple[Tensor, Tensor] | None = None,
    ) -> MuLaNOutput:
        """`draws` are the bands of time and of frequency that are masked."""
        audio = self.audio(wavs, lengths, draws)
        log_temperature = -getattr(self.network, SCALE).clamp(*SCALES)
        none = audio.new_zeros(())
        return MuLaNOutput(audio, self.text(text, mask), log_temperature, None, none)

    def audio(
        self, wavs: Tensor, lengths: Tensor | None, draws: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """(b, n) -> (b, l)."""
        norm = self.network.audio_model.audio_encoder.batch_norm
        mels = self.mel(wavs, lengths).to(norm.weight.dtype)
        if draws is not None:
            time, freq = (band_mask(d, size, size) for d, size in zip(draws, mels.shape[1:]))
            mels = torch.where(time[..., None] | freq[:, None], norm.running_mean, mels)
        pooled = self.network.audio_model(input_features=mels[:, None]).pooler_output
        return projected(self.network.audio_projection, pooled)

    def text(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """(b, t) -> (b, l)."""
        pooled = self.network.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return projected(self.network.text_projection, pooled)

    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of audio; `lengths` in samples, for padded clips."""
        MuLaN.check(wavs)
        device = self.mel.bank.device
        return self.audio(wavs.to(device), None if lengths is None else lengths.to(device))

    def get_text_latents(self, raw_texts: Sequence[str]) -> Tensor:
        """(b, l) embeddings of strings."""
        ids, mask = self.tokenize(raw_texts)
        return self.text(ids.to(self.mel.bank.device), mask.to(self.mel.bank.device))

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask (b, t), t that of the longest text."""
        if self.tokenizer is None:
            raise RunError(f"this ClapModel came without its tokenizer; give {FOLDER}")
        most = min(self.config.text_length, self.tokenizer.model_max_length)
        rows = self.tokenizer(list(texts), verbose=False)["input_ids"]
        if cut := sum(len(row) > most for row in rows):
            self._warn(f"{cut} of {len(rows)} captions have more than {most} tokens")
            rows = self.tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
        ids = pad_sequence([torch.tensor(row) for row in rows], True, self.tokenizer.pad_token_id)
        return ids, inside(torch.tensor([len(row) for row in rows]), ids.shape[1])

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{what} and are truncated; further warnings are suppressed", stacklevel=3
            )

    # -- training --------------------------------------------------------------------------------

    def regions(self) -> list[nn.Module]:
        """Blocks of both towers, which are recomputed or sharded one by one."""
        stages = self.network.audio_model.audio_encoder.layers
        audio = [block for stage in stages for block in stage.blocks]
        return [*audio, *self.network.text_model.encoder.layer]

    def train_only(self, part: Trained) -> None:
        """Freeze what is not trained."""
        self.network.requires_grad_(False)
        for name in TOWERS[part]:
            getattr(self.network, name).requires_grad_(True)
        # Its statistics are frozen as well; and the gradient of the bicubic interpolation behind it
        # has no deterministic kernel on a GPU.
        self.network.audio_model.audio_encoder.batch_norm.requires_grad_(False)
        getattr(self.network, SCALE).requires_grad_(True)

    def train(self, mode: bool = True) -> Self:
        """Without dropout: the two passes of gradient caching must agree, and a step must not
        depend on how its batch is divided."""
        super().train(mode)
        self.network.eval()
        return self

    def commit(self, context: Any) -> None:
        """Clamp the temperature to where it has a gradient."""
        with torch.no_grad():
            getattr(self.network, SCALE).clamp_(*SCALES)

    # -- files -----------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, source: str | Path, **how: Any) -> Self:
        """From a folder of transformers, a run, or what a run keeps of its original."""
        path = Path(source)
        if not folder.is_foreign(path):
            return super().from_pretrained(source, **how)
        config, network = folder.load(path, ClapConfig)
        check_class(config)
        extractor, processor = read_extractor(path), processor_digest(path)
        model = cls(replace(config, extractor=extractor, processor=processor), network)
        model.read_processor(path)
        return model.eval()

    def read_stages(self, path: Path) -> None:
        """The processor in what a run keeps, or in the folder of what it keeps."""
        for kept in (path / PROCESSOR, path / "clap" / PROCESSOR):
            if kept.is_dir():
                self.read_processor(kept)

    def read_processor(self, path: Path) -> None:
        if processor_digest(path) != self.config.processor:
            raise RunError(f"{path}: the files of the tokenizer have changed; restore them")
        self.tokenizer, self._processor = read_tokenizer(path), path

    def write_stages(self, path: Path) -> None:
        (path / PROCESSOR).mkdir()
        self._copy_processor(path / PROCESSOR)

    def save_stage(self, path: Path) -> None:
        Pretrained._write(self, path)

    def _write(self, path: Path) -> None:
        """In the format of the original, and in its type of weights."""
        folder.save(self.config, self.network, self._stored(), path)
        self._copy_processor(path)

    def _copy_processor(self, path: Path) -> None:
        for file in [] if self._processor is None else processor_files(self._processor):
            shutil.copyfile(file, path / file.name)

    def _stored(self) -> dict[str, Tensor]:
        return folder.in_type_of(self.config, self.network.state_dict())

    def exported(self) -> dict[str, Tensor]:
        own = self.network.state_dict()
        return {f"network.{n}": value.to(own[n].dtype) for n, value in self._stored().items()}

    def loading(self, path: str) -> str:
        return f'transformers.ClapModel.from_pretrained("{path}")'


def projected(layer: nn.Module, pooled: Tensor) -> Tensor:
    """Of unit length, in full precision."""
    with without_autocast(pooled):
        return F.normalize(layer(full_precision(pooled)), dim=-1)


# -- the original -------------------------------------------------------------------------------


def check_class(config: ClapConfig) -> None:
    if config.class_name not in CONTRASTIVE:
        raise RunError(f"a {config.class_name} is not a joint embedding of sounds; give {FOLDER}")
    fused = config.values.get("audio_config", {}).get("enable_fusion", False)
    if fused or config.front_end.get("truncation") == "fusion":
        raise RunError(
            "this ClapModel fuses four crops of a long sound (enable_fusion), which is not"
            " supported; give one without, such as clap-htsat-unfused"
        )


def _transformers() -> Any:
    """By name: else the type checker reads 2,600 files of it."""
    return importlib.import_module("transformers")


def extractor_of(settings: dict[str, Any]) -> Any:
    return _transformers().ClapFeatureExtractor.from_dict(settings)


def read_extractor(path: Path) -> str:
    """Settings of the feature extractor, wherever this version of transformers looks for them."""
    with folder.quiet():
        try:
            extractor = _transformers().ClapFeatureExtractor.from_pretrained(
                path, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise RunError(f"{path} has no feature extractor; give {FOLDER} ({error})") from None
    return json.dumps(extractor.to_dict(), sort_keys=True)


def read_tokenizer(path: Path) -> Any:
    # The workers of the data are forked, which its threads would not survive.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with folder.quiet():
        try:
            return _transformers().AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise RunError(f"{path} has no tokenizer; give {FOLDER} ({error})") from None


def processor_files(path: Path) -> list[Path]:
    """Files of the tokenizer and of the feature extractor."""
    files = [*path.glob("*.json"), *path.glob("*.txt")]
    files = sorted(f for f in files if f.name != CONFIG and not f.name.endswith(".index.json"))
    for file in files:
        refuse_outside_links(path, file)
        if file.stat().st_size > MAX_BYTES:
            raise RunError(
                f"{file} is not a file of a tokenizer: it has more than {MAX_BYTES:,} bytes"
            )
    return files


def processor_digest(path: Path) -> str:
    """Of names and contents."""
    digest = hashlib.sha256()
    for file in processor_files(path):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
