"""What can leave the music room as a graph: the two towers, each for itself."""

import torch
from torch import Tensor, nn

from quintet.engine.exporting import Exportable, Input, Piece
from quintet.music.config import MuLaNRecipe
from quintet.music.model import MuLaN


class EmbedAudio(nn.Module):
    """Sounds and their lengths -> embeddings, the spectrogram included."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.audio

    def forward(self, sounds: Tensor, lengths: Tensor) -> Tensor:
        return self.tower(sounds, lengths, None)


class EmbedText(nn.Module):
    """Ids of bytes -> embeddings."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.text

    def forward(self, ids: Tensor) -> Tensor:
        return self.tower(ids, None)


class EmbedStates(nn.Module):
    """What a frozen encoder made of texts -> embeddings."""

    def __init__(self, model: MuLaN) -> None:
        super().__init__()
        self.tower = model.text

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.tower(states, mask)


def pieces(model: MuLaN, recipe: MuLaNRecipe) -> Exportable:
    left_out = (
        "Sounds are mixed to one channel and resampled before; texts become ids before, as the"
        " input says. The quantiser of embeddings stays with Quintet."
    )
    return Exportable([audio(model, recipe), text(model)], left_out)


def audio(model: MuLaN, recipe: MuLaNRecipe) -> Piece:
    size = round(recipe.sounds.seconds * model.config.rate)
    sounds = torch.randn(3, size, generator=torch.Generator().manual_seed(0)) * 0.1
    lengths = torch.tensor([size, size * 3 // 4, size // 2])
    for row, length in zip(sounds, lengths.tolist()):
        row[length:] = 0
    says = f"(batch, {size}) float32: {model.config.rate} samples a second, zeros after the end"
    counts = "(batch) int64: samples of each sound before its zeros"
    return Piece(
        "embed_audio",
        "sounds to embeddings, the spectrogram included",
        EmbedAudio(model),
        {
            "sounds": Input(sounds[:2], sounds, says),
            "lengths": Input(lengths[:2], lengths, counts),
        },
        {"embeddings": embedded(model)},
    )


def text(model: MuLaN) -> Piece:
    length, says = model.config.text_length, "texts to embeddings"
    if model.config.text == "bytes":
        ids = model.read(["a slow melody on strings", "drums", "a fast major scale"])[0]
        what = f"(batch, {length}) int64: 1, then 2 plus each byte of the text in UTF-8, then zeros"
        given = {"ids": Input(ids[:2], ids, what)}
        return Piece("embed_text", says, EmbedText(model), given, {"embeddings": embedded(model)})
    width = model.config.text_dim
    states = torch.randn(3, length, width, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length) < torch.tensor([length, (length + 1) // 2, 1])[:, None]
    given = {
        "states": Input(
            states[:2], states, f"(batch, {length}, {width}) float32: the frozen encoder's output"
        ),
        "mask": Input(mask[:2], mask, f"(batch, {length}) bool: true where there is a token"),
    }
    return Piece("embed_text", says, EmbedStates(model), given, {"embeddings": embedded(model)})


def embedded(model: MuLaN) -> str:
    return (
        f"(batch, {model.config.dim_latent}) float32 of length one: a dot product is a similarity"
    )
