"""Exported graphs of MuLaN: the audio tower and the text tower."""

import torch
from torch import Tensor, nn

from quintet.engine.models.export import Exportable, Input, Piece
from quintet.music.config import MuLaNRecipe
from quintet.music.model import MuLaN


class EmbedAudio(nn.Module):
    """Audio and lengths -> embeddings, including the spectrogram."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.audio

    def forward(self, sounds: Tensor, lengths: Tensor) -> Tensor:
        return self.tower(sounds, lengths, None)


class EmbedText(nn.Module):
    """Byte ids -> embeddings."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.text

    def forward(self, ids: Tensor) -> Tensor:
        return self.tower(ids, None)


class EmbedStates(nn.Module):
    """Hidden states of a frozen text encoder -> embeddings."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.text

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.tower(states, mask)


def pieces(model: MuLaN, recipe: MuLaNRecipe) -> Exportable:
    excluded = (
        "Mixing to mono, resampling and tokenization (as the input describes) are not included."
        " The quantiser of embeddings is not exported."
    )
    return Exportable([audio(model, recipe), text(model)], excluded)


def audio(model: MuLaN, recipe: MuLaNRecipe) -> Piece:
    size = round(recipe.sounds.seconds * model.config.sample_rate)
    sounds = torch.randn(3, size, generator=torch.Generator().manual_seed(0)) * 0.1
    lengths = torch.tensor([size, size * 3 // 4, size // 2])
    for row, length in zip(sounds, lengths.tolist()):
        row[length:] = 0
    wavs_layout = (
        f"(batch, {size}) float32: {model.config.sample_rate} samples per second, zero-padded"
    )
    lengths_layout = "(batch) int64: number of samples before the padding"
    return Piece(
        "embed_audio",
        "audio to embeddings, including the spectrogram",
        EmbedAudio(model),
        {
            "sounds": Input(sounds[:2], sounds, wavs_layout),
            "lengths": Input(lengths[:2], lengths, lengths_layout),
        },
        {"embeddings": embedding_layout(model)},
    )


def text(model: MuLaN) -> Piece:
    length, description = model.config.text_length, "text to embeddings"
    if model.config.text == "bytes":
        ids = model.tokenize(["a slow melody on strings", "drums", "a fast major scale"])[0]
        layout = (
            f"(batch, {length}) int64: 1, then 2 plus each byte of the text in UTF-8, then zeros"
        )
        inputs = {"ids": Input(ids[:2], ids, layout)}
        return Piece(
            "embed_text",
            description,
            EmbedText(model),
            inputs,
            {"embeddings": embedding_layout(model)},
        )
    width = model.config.text_dim
    states = torch.randn(3, length, width, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length) < torch.tensor([length, (length + 1) // 2, 1])[:, None]
    inputs = {
        "states": Input(
            states[:2], states, f"(batch, {length}, {width}) float32: the frozen encoder's output"
        ),
        "mask": Input(
            mask[:2], mask, f"(batch, {length}) bool: true for tokens, false for padding"
        ),
    }
    return Piece(
        "embed_text",
        description,
        EmbedStates(model),
        inputs,
        {"embeddings": embedding_layout(model)},
    )


def embedding_layout(model: MuLaN) -> str:
    return f"(batch, {model.config.dim_latent}) float32 of unit length, for cosine similarity"
