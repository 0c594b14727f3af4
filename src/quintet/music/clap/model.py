"""An adopted ClapModel of transformers (CLAP, arXiv 2211.06687): a joint embedding of sounds and
text, with its own log-mels, tokenizer and temperature.

Shapes: b samples, n audio samples, f frames, m mel bins, t tokens, l dimensions of the embedding.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.errors import RunError
from quintet.music.clap.config import FOLDER, ClapConfig, Trained
from quintet.music.mulan.model import Embeds, MuLaN, MuLaNOutput
from quintet.nn.spectrogram import band_mask
from quintet.shared.adopt import folder
from quintet.shared.adopt.pairs import AdoptedPair, processor_digest, projected, transformers

TOWERS: dict[Trained, tuple[str, ...]] = {
    "all": ("audio_model", "audio_projection", "text_model", "text_projection"),
    "projections": ("audio_projection", "text_projection"),
    "audio": ("audio_model", "audio_projection"),
    "text": ("text_model", "text_projection"),
}


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


class AdoptedClap(Embeds, AdoptedPair):
    """`clap.embed_audio(wavs)` and `clap.embed_text(texts)` have the embeddings of the original."""

    Config = ClapConfig
    stage, what, original, towers = "clap", "sounds", FOLDER, TOWERS
    scale = "logit_scale_a"  # of both directions; its twin logit_scale_t is not used
    config: ClapConfig

    def __init__(self, config: ClapConfig, network: nn.Module | None = None) -> None:
        check_class(config)
        super().__init__(config, network)
        self.mel = ClapMel(transformers().ClapFeatureExtractor.from_dict(config.front_end))

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
        none = audio.new_zeros(())
        return MuLaNOutput(audio, self.text(text, mask), self.log_temperature, None, none)

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

    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of audio; `lengths` in samples, for padded clips."""
        MuLaN.check(wavs)
        lengths = None if lengths is None else lengths.to(self.device)
        return self.audio(wavs.to(self.device), lengths)

    # -- training --------------------------------------------------------------------------------

    def regions(self) -> list[nn.Module]:
        """Blocks of both towers, which are recomputed or sharded one by one."""
        stages = self.network.audio_model.audio_encoder.layers
        audio = [block for stage in stages for block in stage.blocks]
        return [*audio, *self.network.text_model.encoder.layer]

    def train_only(self, part: Trained) -> None:
        super().train_only(part)
        # Its statistics are frozen as well; and the gradient of the bicubic interpolation behind it
        # has no deterministic kernel on a GPU.
        self.network.audio_model.audio_encoder.batch_norm.requires_grad_(False)

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

    def loading(self, path: str) -> str:
        return f'transformers.ClapModel.from_pretrained("{path}")'


# -- the original -------------------------------------------------------------------------------


def check_class(config: ClapConfig) -> None:
    if config.class_name != "ClapModel":
        raise RunError(f"a {config.class_name} is not a joint embedding of sounds; give {FOLDER}")
    fused = config.values.get("audio_config", {}).get("enable_fusion", False)
    if fused or config.front_end.get("truncation") == "fusion":
        raise RunError(
            "this ClapModel fuses four crops of a long sound (enable_fusion), which is not"
            " supported; give one without, such as clap-htsat-unfused"
        )


def read_extractor(path: Path) -> str:
    """Settings of the feature extractor, wherever this version of transformers looks for them."""
    with folder.quiet():
        try:
            extractor = transformers().ClapFeatureExtractor.from_pretrained(
                path, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise RunError(f"{path} has no feature extractor; give {FOLDER} ({error})") from None
    return json.dumps(extractor.to_dict(), sort_keys=True)


Model = AdoptedClap
