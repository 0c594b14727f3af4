"""Exported graphs of MuLaN: the audio tower and the text tower."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.music.mulan.config import MuLaNRecipe
from quintet.music.mulan.model import MuLaN


def embed_audio(self: Any, sounds: Tensor, lengths: Tensor) -> Tensor:
    return self.model(sounds, lengths, None)


def embed_ids(self: Any, ids: Tensor) -> Tensor:
    return self.model(ids, None)


def embed_states(self: Any, states: Tensor, mask: Tensor) -> Tensor:
    return self.model(states, mask)


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
        graph(model.audio, embed_audio),
        {
            "sounds": Input(sounds[:2], sounds, wavs_layout),
            "lengths": Input(lengths[:2], lengths, lengths_layout),
        },
        {"embeddings": embedding_layout(model)},
    )


def text(model: MuLaN) -> Piece:
    length, width = model.config.text_length, model.config.text_dim
    if model.config.text == "bytes":
        ids = model.tokenize(["a slow melody on strings", "drums", "a fast major scale"])[0]
        layout = (
            f"(batch, {length}) int64: 1, then 2 plus each byte of the text in UTF-8, then zeros"
        )
        inputs, network = {"ids": Input(ids[:2], ids, layout)}, graph(model.text, embed_ids)
    else:
        states = torch.randn(3, length, width, generator=torch.Generator().manual_seed(0))
        mask = torch.arange(length) < torch.tensor([length, (length + 1) // 2, 1])[:, None]
        layout = f"(batch, {length}, {width}) float32: the frozen encoder's output"
        mask_layout = f"(batch, {length}) bool: true for tokens, false for padding"
        inputs = {
            "states": Input(states[:2], states, layout),
            "mask": Input(mask[:2], mask, mask_layout),
        }
        network = graph(model.text, embed_states)
    outputs = {"embeddings": embedding_layout(model)}
    return Piece("embed_text", "text to embeddings", network, inputs, outputs)


def embedding_layout(model: MuLaN) -> str:
    return f"(batch, {model.config.dim_latent}) float32 of unit length, for cosine similarity"
