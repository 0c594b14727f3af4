"""MeshTransformer: writes meshes face by face (MeshGPT, arXiv 2311.15475).

Shapes: b meshes, f faces (padded with -1), t = corners x depth codes of a face, d width.

    codes (b, f, t) -> coarse decoder over faces: position i has read faces 0 to i-1 and the caption
                    -> "the mesh ends here", one logit before every face
                    -> fine decoder over the t codes of face i, each after those before it

A face is always whole: that a mesh ends is decided between faces only, and this decision is in the
loss of every mesh. A mesh of `max_faces` faces ends by itself.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.pretrained import Pretrained
from quintet.mesh.assemble import Mesh, assemble
from quintet.mesh.config import MeshTransformerConfig
from quintet.mesh.heads import CodeHead, CodeTable, DigitHead
from quintet.mesh.keywords import transformer_config
from quintet.mesh.writer import FaceWriter, Sampling
from quintet.nn.attention import Block, Context, linear
from quintet.nn.quantise import full_precision, without_autocast
from quintet.nn.rotary import line_rotation
from quintet.nn.text import ByteTokenizer, FrozenText, TextEncoder


class Written(NamedTuple):
    """What a batch of meshes costs, one number for each mesh; all (b,)."""

    loss_sum: Tensor
    """fp32: the sum over the mesh's codes and over its decisions to go on or to end."""
    tokens: Tensor
    """Codes of the mesh."""
    end_loss: Tensor
    """The share of `loss_sum` that the decisions have, without a gradient."""
    decisions: Tensor
    """One before every face, and one after the last unless the mesh is full."""
    correct: Tensor
    """Codes that were the likeliest."""
    end_correct: Tensor
    """Decisions that were the likelier."""


# Where shapes must be fixed, padding is computed and thrown away: on a GPU, and where compiled.
# On a CPU it would be most of the work.


def has_fixed_shapes(codes: Tensor) -> bool:
    return codes.device.type != "cpu" or torch.compiler.is_compiling()


def real_faces(codes: Tensor) -> Tensor:
    """Indices of the faces that are no padding, in (b f)."""
    return (codes[..., 0] >= 0).flatten().nonzero()[:, 0]


def kept(rows: Tensor, real: Tensor | None) -> Tensor:
    """(b, f, ...) -> (n, ...): all faces, or the real ones."""
    return rows.flatten(0, 1) if real is None else rows.flatten(0, 1)[real]


def by_mesh(faces: Tensor, codes: Tensor, real: Tensor | None) -> Tensor:
    """Sums (b,) of numbers (n,) of faces."""
    if real is None:
        return faces.view(codes.shape[:2]).sum(-1)
    return faces.new_zeros(codes.shape[0]).index_add(0, real // codes.shape[1], faces)


class MeshTransformer(Pretrained, nn.Module):
    """Build it from a configuration, from its fields as keywords, or around an autoencoder."""

    Config = MeshTransformerConfig

    def __init__(
        self, config: Any = None, *, autoencoder: nn.Module | None = None, **keywords: Any
    ) -> None:
        nn.Module.__init__(self)
        if isinstance(config, nn.Module):
            config, autoencoder = None, config
        self.config = config = transformer_config(config, autoencoder, keywords)
        self.hold(autoencoder)
        dim, tokens = config.dim, config.tokens
        self.table = CodeTable(dim, config.codes, config.depth, config.levels)
        self.start = nn.Parameter(torch.randn(dim))
        self.to_face = linear(tokens * dim, dim)
        self.coarse = nn.ModuleList(self.coarse_block(i) for i in range(config.layers))
        self.coarse_norm = nn.RMSNorm(dim)
        self.to_end = nn.Linear(dim, 1)
        nn.init.constant_(self.to_end.bias, -math.log(20))  # few of a mesh's decisions end it
        self.slots = nn.Parameter(torch.randn(tokens, dim) * 0.5)
        self.to_token = linear(dim, dim)
        self.fine = nn.ModuleList(
            Block(dim, config.fine_heads, config.fine_head_dim, dropout=config.dropout)
            for _ in range(config.fine_layers)
        )
        self.fine_norm = nn.RMSNorm(dim)
        by_digits = config.head == "digits" and len(config.levels) > 1
        self.head = DigitHead(dim, config.levels, config.depth) if by_digits else CodeHead()
        if config.text != "none":
            self.null = nn.Parameter(torch.randn(dim))
        if config.text == "bytes":
            heads = max(1, dim // 64)
            self.text_encoder = TextEncoder(dim, config.text_layers, heads, dropout=config.dropout)
        if config.text == "frozen":
            self.text_in = nn.Sequential(linear(config.text_dim, dim), nn.RMSNorm(dim))

    def coarse_block(self, index: int) -> Block:
        config = self.config
        looks = config.text != "none" and index // config.cross_every * config.cross_every == index
        return Block(config.dim, config.heads, config.head_dim, cross=looks, dropout=config.dropout)

    def hold(self, autoencoder: nn.Module | None) -> None:
        """Keep the frozen autoencoder at hand; in a tuple, so that it is no part of this module."""
        self._held = (autoencoder,)
        if autoencoder is not None:
            autoencoder.eval().requires_grad_(False)

    @property
    def autoencoder(self) -> Any:
        return self._held[0]

    # -- reading ------------------------------------------------------------------------------

    def forward(
        self,
        codes: Tensor,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
    ) -> Written:
        """Losses of meshes given as codes (b, f, t).

        `text`: ids of bytes (b, n), or embeddings (b, n, text_dim) with their `mask` (b, n).
        `drop` (b,): true where the caption is withheld.
        """
        self.check(codes)
        faces = (codes[..., 0] >= 0).sum(-1)
        real = None
        if not has_fixed_shapes(codes):
            codes = codes[:, : int(faces.max()) + 1]
            real = real_faces(codes)
        table = self.table()
        vectors = self.embed(codes, table)
        coarse = self.read(vectors, self.look(codes.shape[0], text, mask, drop))
        states = self.refine(kept(coarse, real), kept(vectors, real))
        loss, correct = self.code_losses(states, table, kept(codes, real))
        end = self.end_logits(coarse)
        place = torch.arange(codes.shape[1], device=codes.device)
        ends, decides = place == faces[:, None], place <= faces[:, None]
        cost = F.binary_cross_entropy_with_logits(end, ends.to(end.dtype), reduction="none")
        end_loss = (cost * decides).sum(-1)
        return Written(
            by_mesh(loss, codes, real) + end_loss,
            faces * codes.shape[2],
            end_loss.detach(),
            decides.sum(-1),
            by_mesh(correct, codes, real),
            (((end > 0) == ends) & decides).sum(-1),
        )

    def look(
        self,
        count: int,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
    ) -> Context | None:
        """What the coarse decoder sees of captions: a learned vector, and the text unless dropped.

        The learned vector is all that is left of a dropped caption, so there is always something
        to look at.
        """
        if self.config.text == "none":
            if text is not None:
                raise ValueError("this model takes no text (text is 'none'): leave it away")
            return None
        null = self.null.expand(count, 1, -1)
        seen = torch.ones(count, 1, dtype=torch.bool, device=null.device)
        if text is None:
            return Context(null, seen)
        found = self.encode(text, mask)
        visible = found.mask if drop is None else found.mask & ~drop[:, None]
        return Context(torch.cat((null, found.values), 1), torch.cat((seen, visible), 1))

    def encode(self, text: Tensor, mask: Tensor | None) -> Context:
        if self.config.text == "bytes":
            return self.text_encoder(text)
        if mask is None:
            mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
        return Context(self.text_in(text.to(self.null.dtype)), mask)

    def read(self, vectors: Tensor, context: Context | None) -> Tensor:
        """Coarse states (b, f, d): at i what faces 0 to i-1, as vectors (b, f, t, d), have said."""
        faces = self.to_face(vectors[:, :-1].flatten(2))
        x = torch.cat((self.start.expand(vectors.shape[0], 1, -1), faces), dim=1)
        places = torch.arange(vectors.shape[1], device=vectors.device)
        rotation = line_rotation(places, self.config.head_dim)
        for block in self.coarse:
            x = block(x, rotation, causal=True, context=context)
        return self.coarse_norm(x)

    def refine(self, coarse: Tensor, vectors: Tensor) -> Tensor:
        """States (n, t, d) that the codes of n faces are read off, from coarse states (n, d)."""
        before = F.pad(self.to_token(vectors[:, :-1]), (0, 0, 1, 0))
        y = before + self.slots + coarse[:, None]
        for block in self.fine:
            y = block(y, causal=True)
        return self.fine_norm(y)

    def embed(self, codes: Tensor, table: Tensor) -> Tensor:
        """(..., t) codes, level after level, to (..., t, d) of unit size; padding is as code 0."""
        level = torch.arange(self.config.tokens, device=codes.device) % self.config.depth
        ids = codes.clamp_min(0) + level * self.config.codes
        return F.rms_norm(F.embedding(ids, table.flatten(0, 1)), (self.config.dim,))

    def end_logits(self, coarse: Tensor) -> Tensor:
        return full_precision(self.to_end(coarse)[..., 0])

    def code_losses(self, states: Tensor, table: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) sums over each face: losses in fp32, and hits."""
        depth = self.config.depth
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        for level in range(depth):
            rows, targets = states[:, level::depth].flatten(0, 1), codes[:, level::depth].flatten()
            found = self.head.losses(level, rows, targets, table, self.config.smoothing)
            losses.append(found.loss.view(len(codes), -1).sum(-1))
            hits.append(found.correct.view(len(codes), -1).sum(-1))
        return torch.stack(losses).sum(0), torch.stack(hits).sum(0)

    def states(self, codes: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor]:
        """What every code is read off, (b, f, t, d), and the logits (b, f) of the end."""
        vectors = self.embed(codes, self.table())
        coarse = self.read(vectors, context)
        states = self.refine(coarse.flatten(0, 1), vectors.flatten(0, 1))
        return states.unflatten(0, codes.shape[:2]), self.end_logits(coarse)

    def check(self, codes: Tensor) -> None:
        if codes.ndim != 3 or codes.shape[2] != self.config.tokens:
            raise ValueError(
                f"expected codes (b, faces, {self.config.tokens}), not {tuple(codes.shape)}"
            )
        if codes.shape[1] > self.config.max_faces:
            raise ValueError(
                f"a batch of {codes.shape[1]} faces exceeds max_faces {self.config.max_faces}"
            )

    # -- writing ------------------------------------------------------------------------------

    @torch.no_grad()
    def write(
        self,
        context: Context | None,
        count: int,
        *,
        sampling: Sampling | None = None,
        max_faces: int | None = None,
        prompt: Tensor | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Any,
    ) -> Tensor:
        """Codes (count, max_faces, t) of new meshes, padded with -1.

        `context` is what `look` returned; `prompt` (count, faces, t) holds faces to begin with. On
        CUDA weights are cast to bf16 unless `dtype` says otherwise. `keywords` are `Sampling`'s.
        """
        sampling = sampling or Sampling(**keywords)
        longest = min(max_faces or self.config.max_faces, self.config.max_faces)
        own = self.start.dtype
        dtype = dtype or (torch.bfloat16 if self.start.is_cuda and own.itemsize == 4 else own)
        with without_autocast(self.start):
            table = self.table().to(dtype)
            twin = self.twin(dtype)
            return FaceWriter(twin, table, context, count, longest, sampling, prompt).run()

    def twin(self, dtype: torch.dtype) -> Self:
        """The same weights in another precision, in eval mode."""
        with torch.device("meta"):
            twin = type(self)(self.config)
        state = {name: value.to(dtype) for name, value in self.state_dict().items()}
        twin.load_state_dict(state, assign=True)
        return twin.eval().requires_grad_(False)

    @torch.no_grad()
    def context_of(self, texts: Sequence[str]) -> Context | None:
        """The context of captions given as strings."""
        device, length = self.start.device, self.config.text_length
        if self.config.text == "bytes":
            return self.eval_look(ByteTokenizer(length).encode(texts).to(device), None)
        if self.config.text == "frozen":
            if self.config.text_path is None:
                raise ValueError("to generate from texts, set text_path to the encoder's folder")
            found = FrozenText(self.config.text_path, length=length)(texts, device)
            return self.eval_look(found.values, found.mask)
        raise ValueError("this model was made without text: leave texts away, or train one with it")

    def eval_look(self, text: Tensor, mask: Tensor | None) -> Context | None:
        return self.twin(self.start.dtype).look(text.shape[0], text, mask)

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        cond_scale: float = 1.0,
        seed: int = 0,
        prompt: Tensor | None = None,
        max_faces: int | None = None,
        return_codes: bool = False,
    ) -> list[Mesh] | Tensor:
        """New meshes, one for each text, or `batch_size` of them.

        The same seed gives the same mesh at the same place of the batch, whatever its size.
        """
        if self.autoencoder is None and not return_codes:
            raise ValueError(
                "codes become meshes by the autoencoder: pass it to MeshTransformer(autoencoder=…)"
                " or hold(…), or ask for return_codes=True"
            )
        if max_faces is not None and max_faces < 1:
            raise ValueError(f"max_faces must be 1 or more, not {max_faces}")
        texts = [texts] if isinstance(texts, str) else texts
        if texts is not None and batch_size not in (None, len(texts)):
            if len(texts) != 1:
                raise ValueError(f"{len(texts)} texts do not make a batch of {batch_size}")
            texts = [*texts] * (batch_size or 1)
        count = batch_size or (1 if texts is None else len(texts))
        context = self.look(count) if texts is None else self.context_of(texts)
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            cond_scale=1.0 if texts is None else cond_scale,
            seed=seed,
        )
        codes = self.write(context, count, sampling=sampling, max_faces=max_faces, prompt=prompt)
        return codes if return_codes else self.meshes(codes)

    def meshes(self, codes: Tensor) -> list[Mesh]:
        """Codes (b, f, t) as vertices and faces, by the autoencoder, on its own device."""
        home = next(self.autoencoder.parameters()).device
        codes = codes.to(home)
        coordinates = self.autoencoder.decode_codes(codes)[0]
        corners = self.config.corners
        return [assemble(c, x, corners) for c, x in zip(codes.cpu(), coordinates.cpu())]

    # -- saving -------------------------------------------------------------------------------

    def write_stages(self, path: Path) -> None:
        if self.autoencoder is not None:
            self.autoencoder.save_pretrained(path / "autoencoder")

    def read_stages(self, path: Path) -> None:
        if (path / "autoencoder").is_dir():
            from quintet.mesh.autoencoder import MeshAutoencoder

            self.hold(MeshAutoencoder.from_pretrained(path / "autoencoder"))
