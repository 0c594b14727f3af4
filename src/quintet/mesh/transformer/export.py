"""Exported graphs of a mesh generator: captions, the next face and the decoder of codes, with a
program that generates by them without torch."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.mesh.autoencoder.export import POINTERS, decoder_piece
from quintet.mesh.transformer import driver, faces
from quintet.mesh.transformer.generator import FaceGenerator
from quintet.mesh.transformer.model import MeshTransformer
from quintet.nn.attention import Block, Context, CrossKV
from quintet.nn.heads import merge_heads
from quintet.nn.rope import Rope, rope_1d
from quintet.shared.export.pieces import (
    PROGRAM,
    ROWS,
    captions_of,
    check_captions,
    program,
    row_inputs,
    text_input,
)


def encode(self: Any, text: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a caption in each layer that attends to it."""
    context = Context(*self.model.encode_text(text.shape[0], text))
    return cross_kvs(self.model, context), context.mask


def cross_kvs(model: Any, context: Context) -> Tensor:
    """(b, layers, 2, h, n, e): keys and values of a context in each layer that attends to it."""
    kvs = [block.cross_kv(context) for block in model.coarse]
    return torch.stack([torch.stack(kv[:2], 1) for kv in kvs if kv is not None], 1)


class Past:
    """Keys and values of earlier positions, and the new ones."""

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> None:
        self.keys, self.values, self.mask = keys, values, mask

    def step(self, block: Block, x: Tensor, rope: Rope | None, kv: CrossKV | None) -> Tensor:
        """`Block.step`, with a cache that grows."""
        q, k, v = block.attention.project(block.attention_norm(x), rope)
        self.keys, self.values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        out = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self.mask)
        return block.after_attention(x + block.attention.to_out(merge_heads(out)), kv)

    def new(self) -> Tensor:
        """(b, 2, h, e) of the last position."""
        return torch.stack((self.keys[:, :, -1], self.values[:, :, -1]), 1)


class TracedFace(FaceGenerator):
    """A face from the inputs of a graph."""

    def __init__(
        self, model: MeshTransformer, table: Tensor, inputs: dict[str, Tensor], ordered: bool
    ) -> None:
        self.model, self.config, self.table, self.inputs = model, model.config, table, inputs
        self.tokens = model.config.tokens_per_face
        self.coarse, self.fine = [*model.coarse], [*model.fine]
        self.fine_positions = [None] * self.tokens  # type: ignore[assignment]
        distinct = not model.config.pointers
        self.sampling: Any = SimpleNamespace(distinct=distinct, ordered=ordered)
        self.previous = torch.where(inputs["position"] == 0, -1, inputs["codes"])
        heads, head_dim = self.config.fine_heads, self.config.fine_head_dim
        none = model.start.new_zeros(inputs["rows"].shape[0], heads, 0, head_dim)
        self.pasts = [Past(none, none) for _ in self.fine]

    def coarse_hidden(self, kv: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hidden states (rows, d), and keys and values (rows, layers, 2, h, e) of this position."""
        model, position, cache = self.model, self.inputs["position"], self.inputs["cache"]
        face = model.face_proj(model.embed(self.inputs["codes"], self.table).flatten(1))
        x = self.repeat_if_guided(torch.where(position == 0, model.start, face))[:, None]
        length = cache.shape[0]
        known = torch.arange(length) < position
        known = torch.cat((known, known.new_ones(1))).expand(1, 1, 1, -1)
        rope, new, crosses = rope_1d(position, self.config.head_dim), list[Tensor](), 0
        for number, block in enumerate(self.coarse):
            keys, values = cache[:, :, number].permute(2, 1, 3, 0, 4).unbind(0)
            past, cross = Past(keys, values, known), None
            if block.cross is not None and kv is not None and mask is not None:
                of_layer = kv[:, crosses]
                cross = CrossKV(of_layer[:, 0], of_layer[:, 1], mask[:, None, None])
                crosses += 1
            x = past.step(block, x, rope, cross)
            new.append(past.new())
        return model.coarse_norm(x)[:, 0], torch.stack(new, 1)

    def fine_step(self, x: Tensor, at: Any) -> Tensor:
        x = x[:, None]
        for block, past in zip(self.fine, self.pasts):
            x = past.step(block, x, None, None)
        return self.model.fine_norm(x)[:, 0]

    def repeat_if_guided(self, rows: Tensor) -> Tensor:
        return rows.index_select(0, self.inputs["rows"])

    def guide(self, logits: Tensor) -> Tensor:
        cond = logits.index_select(0, torch.arange(self.inputs["codes"].shape[0]))
        uncond = logits.index_select(0, self.inputs["uncond"])
        return uncond + self.inputs["scale"] * (cond - uncond)

    def end(self, coarse: Tensor) -> Tensor:
        """(b,): the probability that the mesh has ended."""
        logit, temperature = self.guide(self.model.end_logits(coarse)), self.inputs["temperature"]
        chance = torch.sigmoid(logit / temperature.clamp_min(1e-6))
        return torch.where(temperature > 0, chance, (logit > 0).to(chance.dtype))

    def draw(self, logits: Tensor, number: int) -> Tensor:
        temperature, count = self.inputs["temperature"], logits.shape[-1]
        warm = logits / temperature.clamp_min(1e-6)
        least = self.inputs["top_k"].clamp(1, count) - 1
        ordered = warm.sort(-1, descending=True).values
        warm = warm.masked_fill(warm < ordered.index_select(1, least), float("-inf"))
        noise = self.inputs["noise"][:, number, :count]
        drawn = (warm - torch.log(-torch.log(noise))).argmax(-1)
        return torch.where(temperature > 0, drawn, logits.argmax(-1))


def next_face(
    self: Any,
    codes: Tensor,
    noise: Tensor,
    position: Tensor,
    cache: Tensor,
    top_k: Tensor,
    temperature: Tensor,
    scale: Tensor,
    rows: Tensor,
    uncond: Tensor,
    context: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = {"codes": codes, "noise": noise, "position": position, "cache": cache, "top_k": top_k}
    inputs |= {"temperature": temperature, "scale": scale, "rows": rows, "uncond": uncond}
    face = TracedFace(self.model, self.table, inputs, self.ordered)
    coarse, new = face.coarse_hidden(context, mask)
    none = torch.zeros_like(codes[:, 0], dtype=torch.bool)
    return face.generate_face(coarse, torch.zeros_like(codes), none), face.end(coarse), new


def face_inputs(model: MeshTransformer, count: int, earlier: int) -> dict[str, Tensor]:
    """Examples for so many meshes, under guidance, after so many faces."""
    config, generator = model.config, torch.Generator().manual_seed(earlier)
    draws = config.tokens_per_face * model.head.parts
    shape = (earlier, 2 * count, config.layers, 2, config.heads, config.head_dim)
    codes = (count, config.tokens_per_face)
    return {
        "codes": torch.randint(config.codebook_size, codes, generator=generator),
        "noise": torch.rand(count, draws, most_values(model), generator=generator),
        "position": torch.tensor([earlier]),
        "cache": torch.randn(shape, generator=generator),
        "top_k": torch.tensor([most_values(model) - (earlier > 2)]),
    }


def most_values(model: MeshTransformer) -> int:
    """Values of a token, at most."""
    return max(getattr(model.head, "levels", (model.config.codebook_size,)))


def face_piece(
    model: MeshTransformer,
    contexts: dict[str, tuple[Tensor, str]],
    ordered: bool = False,
) -> tuple[Piece, dict[str, Any]]:
    """The graph of the next face, and what its loop has to know. `contexts` are values for three
    meshes of what it attends to, with their descriptions."""
    config = model.config
    traced, checked = face_inputs(model, 2, 2), face_inputs(model, 3, 5)
    draws, values = traced["noise"].shape[1:]
    heads = f"{config.heads}, {config.head_dim}"
    codes = f"(batch, {config.tokens_per_face}) int64"
    described = {
        "codes": (f"{codes}: the face before; any, in the first step", ("batch",)),
        "noise": (f"(batch, {draws}, {values}) float32 in 0..1, uniform", ("batch",)),
        "position": ("(1) int64: number of the face", ()),
        "cache": (
            f"(faces, rows, {config.layers}, 2, {heads}) float32: new of each face before; at the"
            " first position any, of one face",
            ("faces", "rows"),
        ),
        "top_k": (f"(1) int64: values to draw from, at most {values}", ()),
    }
    inputs = {n: Input(traced[n], checked[n], *about) for n, about in described.items()}
    inputs |= row_inputs()
    for name, (rows, description) in contexts.items():
        few, more = torch.cat([rows[:2]] * 2), torch.cat([rows] * 2)
        inputs[name] = Input(few, more, description, ROWS)
    network: Any = graph(model, next_face)
    network.register_buffer("table", model.code_embed())
    network.ordered = ordered
    outputs = {
        "face": f"{codes}: the next face",
        "end": "(batch) float32: the probability that the mesh has ended before it",
        "new": f"(rows, {config.layers}, 2, {heads}) float32: for the cache",
    }
    about = {"key": "mesh", "fps": 0, "corners": config.corners}
    about |= {"cache": [config.layers, 2, config.heads, config.head_dim], "draws": draws}
    about |= {"values": values, "tokens": config.tokens_per_face, "max_faces": config.max_faces}
    return Piece("face", "codes of the next face", network, inputs, outputs), about


def kvs_about(model: MeshTransformer, kv: Tensor, what: str) -> str:
    shape = f"{kv.shape[1]}, 2, {model.config.heads}, {kv.shape[4]}, {model.config.head_dim}"
    return f"(rows, {shape}) float32: keys and values of {what}"


@torch.no_grad()
def pieces(model: MeshTransformer, recipe: Any) -> Exportable:
    config, autoencoder = model.config, model.autoencoder
    check_captions(config)
    if config.pointers:
        return Exportable([], POINTERS)
    own: list[Piece] = []
    contexts: dict[str, tuple[Tensor, str]] = {}
    if captions_of(config):
        text = text_input(model)
        kv, mask = encode(graph(model, encode), text.checked)
        outputs = {
            "context": kvs_about(model, kv, "captions"),
            "mask": f"(rows, {kv.shape[4]}) bool: the first alone is true where the caption is left"
            " out",
        }
        own.append(Piece("context", "captions", graph(model, encode), {"text": text}, outputs))
        mask[-1, 1:] = False
        contexts = {"context": (kv, outputs["context"]), "mask": (mask, outputs["mask"])}
    piece, about = face_piece(model, contexts)
    about |= {"bins": autoencoder.config.bins, "captions": captions_of(config)}
    settings = {"count": 8, "seed": 0, "temperature": 0.8, "top_k": int, "cond_scale": 1.0}
    files = program(about, {**settings, "max_faces": int}, faces, driver)
    own += [piece, decoder_piece(autoencoder)]
    return Exportable(own, f"Starting from given faces is not exported. {PROGRAM}", files)
