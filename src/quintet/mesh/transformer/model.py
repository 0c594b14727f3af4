"""MeshTransformer: autoregressive generation of meshes, face by face (MeshGPT, arXiv 2311.15475).

Shapes: b meshes, f faces (padded with -1), t = corners x depth codes of a face, d width.

    codes (b, f, t) -> coarse decoder over faces: position i sees faces 0 to i-1 and the caption
                    -> end-of-mesh logit before every face
                    -> causal fine decoder over the t codes of face i

A mesh can end only between faces, and the loss of every mesh includes this decision. Generation
stops at `max_faces` faces without one.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.calls import MESH_GENERATE, MESH_TRANSFORMER_CALL, call_keywords
from quintet.compat.models import MESH_TRANSFORMER, arguments, model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.mesh.geometry import discretise
from quintet.mesh.transformer.assemble import Meshes, assemble
from quintet.mesh.transformer.config import MeshTransformerConfig
from quintet.mesh.transformer.generator import BLOCK, Sampling, generate
from quintet.mesh.transformer.heads import CodeEmbedding, CodeHead, DigitHead
from quintet.nn.attention import Block, Context, linear
from quintet.nn.norms import RMSNorm
from quintet.nn.packing import Packing, sum_by_owner
from quintet.nn.precision import full_precision, residual_stream, without_autocast
from quintet.nn.quantisers.base import check_ids
from quintet.nn.rope import rope_1d
from quintet.shared.conditioning import CaptionConditioned, in_blocks
from quintet.shared.generation.generator import Seed


class MeshLosses(NamedTuple):
    """Losses and counts of each mesh in a batch; all (b,)."""

    loss_sum: Tensor
    """fp32: sum over the codes and the end-of-mesh decisions."""
    tokens: Tensor
    """Number of codes."""
    end_loss: Tensor
    """Part of `loss_sum` that is due to the end-of-mesh decisions, detached."""
    decisions: Tensor
    """Number of decisions: one before each face, one after the last unless the mesh is full."""
    correct: Tensor
    """Codes predicted correctly."""
    end_correct: Tensor
    """Decisions predicted correctly."""


def has_fixed_shapes(codes: Tensor) -> bool:
    """GPUs and compiled graphs need fixed shapes; a CPU computes rows that count and no others."""
    return codes.device.type != "cpu" or torch.compiler.is_compiling()


def pack_codes(codes: Tensor) -> tuple[Tensor, Tensor, int]:
    """Padded codes (b, f, t) as rows (r, t), the rows of each mesh (b,), and the most of a mesh."""
    count, width = codes.shape[:2]
    if has_fixed_shapes(codes):  # padding stays, and is ignored
        return codes.flatten(0, 1), torch.full((count,), width, device=codes.device), width
    lengths = ((codes[..., 0] >= 0).sum(1) + 1).clamp_max(width)
    return codes[torch.arange(width) < lengths[:, None]], lengths, width


class MeshTransformer(CaptionConditioned, Pretrained, nn.Module):
    """Mesh generator, built from a configuration, its fields as keywords, or an autoencoder."""

    Config = MeshTransformerConfig
    compiles_whole = True

    def __init__(self, config: Any = None, *, autoencoder: Any = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if isinstance(config, nn.Module):
            config, autoencoder = None, config
        base: MeshTransformerConfig = config or MeshTransformerConfig()
        if autoencoder is not None:
            base = base.with_codebook_of(autoencoder.config)
        self.config = config = updated(base, model_keywords(MESH_TRANSFORMER, keywords, base))
        self.set_autoencoder(autoencoder)
        dim, tokens = config.dim, config.tokens_per_face
        self.code_embed = CodeEmbedding(dim, config.codebook_size, config.depth, config.levels)
        self.start = nn.Parameter(torch.randn(dim))
        self.face_proj = linear(tokens * dim, dim)
        self.coarse = nn.ModuleList(self.block(i) for i in range(config.layers))
        self.coarse_norm = RMSNorm(dim)
        self.end_head = nn.Linear(dim, 1)
        nn.init.constant_(self.end_head.bias, -math.log(20))  # prior: few decisions end a mesh
        self.slot_embed = nn.Parameter(torch.randn(tokens, dim) * 0.5)
        self.code_proj = linear(dim, dim)
        self.fine = nn.ModuleList(
            Block(dim, config.fine_heads, config.fine_head_dim, dropout=config.dropout)
            for _ in range(config.fine_layers)
        )
        self.fine_norm = RMSNorm(dim)
        by_digits = config.head == "digits" and len(config.levels) > 0
        self.head = DigitHead(dim, config.levels, config.depth) if by_digits else CodeHead()
        self.init_text(config)

    def set_autoencoder(self, autoencoder: nn.Module | None) -> None:
        """Attach the frozen autoencoder, in a tuple so that it is not registered as a submodule."""
        self._autoencoder = (autoencoder,)
        if autoencoder is not None:
            autoencoder.eval().requires_grad_(False)

    @property
    def autoencoder(self) -> Any:
        return self._autoencoder[0]

    # -- custom training loops ----------------------------------------------------------------

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if not args and not {"text", "mask", "drop"} & {*keywords}:
            return self.loss(**call_keywords(MESH_TRANSFORMER_CALL, keywords))
        return super().__call__(*args, **keywords)

    def loss(
        self,
        vertices: Tensor | None = None,
        faces: Tensor | None = None,
        face_edges: Tensor | None = None,
        codes: Tensor | None = None,
        texts: Sequence[str] | None = None,
        text_drop: float = 0.1,
    ) -> Tensor:
        """`transformer(vertices=…, faces=…, texts=…)`: the loss per code of a batch of meshes, or
        of their codes (b, f, t). Faces are learned in the order given."""
        if codes is None:
            if self.autoencoder is None or vertices is None or faces is None:
                raise ValueError("give vertices and faces, and an autoencoder; or codes")
            codes = self.autoencoder.tokenize(vertices, faces, face_edges)
        else:
            self.check_codes(codes)
        assert codes is not None
        text, mask = (None, None) if texts is None else self.tokenize_captions(texts)
        drop = None
        if text is not None and self.training:
            drop = torch.rand(len(text), device=text.device) < text_drop
        losses: MeshLosses = super().__call__(codes.to(self.start.device), text, mask, drop)
        return losses.loss_sum.sum() / losses.tokens.sum()

    # -- training -----------------------------------------------------------------------------

    def regions(self) -> list[nn.Module]:
        return [*self.coarse, *self.fine]

    def forward(
        self,
        codes: Tensor,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> MeshLosses:
        """Losses of codes (b, f, t), padded with -1; or packed, (rows, t), with `lengths` (b,): the
        faces of a mesh and a row of -1 for its end (a full mesh has none), then the next mesh.

        `text`: byte ids (b, n), or embeddings (b, n, text_dim) with their `mask` (b, n).
        `drop` (b,): true where the caption is dropped.
        """
        if lengths is None:
            self.check(codes)
            codes, lengths, width = pack_codes(codes)
        else:
            width = self.config.max_faces
        chosen: Any = slice(None)
        if not has_fixed_shapes(codes):
            width, chosen = int(lengths.max()), codes[:, 0] >= 0
        count, packing = len(lengths), Packing.of(lengths, len(codes), width)
        owner, position = packing.owner, packing.position
        table = self.code_embed()
        embeddings = self.embed(codes, table)
        context = self.encode_text(count, text, mask, drop)
        coarse = self.coarse_hidden(embeddings, packing, context)
        hidden = self.fine_hidden(coarse[chosen], embeddings[chosen])
        loss, correct = self.code_losses(hidden, table, codes[chosen])
        faces = sum_by_owner((codes[:, 0] >= 0).long(), owner, count)
        end_logits, last = self.end_logits(coarse), faces[owner.clamp_min(0)]
        ends, decides = position == last, position <= last
        targets = ends.to(end_logits.dtype)
        bce = F.binary_cross_entropy_with_logits(end_logits, targets, reduction="none")
        end_loss = sum_by_owner(bce * decides, owner, count)
        end_correct = ((end_logits > 0) == ends) & decides
        return MeshLosses(
            sum_by_owner(loss, owner[chosen], count) + end_loss,
            faces * codes.shape[1],
            end_loss.detach(),
            sum_by_owner(decides.long(), owner, count),
            sum_by_owner(correct, owner[chosen], count),
            sum_by_owner(end_correct.long(), owner, count),
        )

    def coarse_hidden(
        self, embeddings: Tensor, packing: Packing, context: Context | None
    ) -> Tensor:
        """Coarse hidden states (rows, d) of code embeddings (rows, t, d), shifted by one face."""
        faces = self.face_proj(embeddings.flatten(1))
        is_first = packing.position == 0
        x = torch.where(is_first[:, None], self.start, faces.roll(1, 0))[None]
        x = residual_stream(x)
        rope = rope_1d(packing.position, self.config.head_dim)
        for block in self.coarse:
            x = block(x, rope, causal=True, context=context, packing=packing)
        return self.coarse_norm(x)[0]

    def fine_hidden(self, coarse: Tensor, embeddings: Tensor) -> Tensor:
        """Hidden states (n, t, d) that predict the codes of n faces, from coarse ones (n, d)."""
        previous = F.pad(self.code_proj(embeddings[:, :-1]), (0, 0, 1, 0))
        x = residual_stream(previous + self.slot_embed + coarse[:, None])
        for block in self.fine:
            x = block(x, causal=True)
        return self.fine_norm(x)

    def embed(self, codes: Tensor, table: Tensor) -> Tensor:
        """(..., t) codes to normalised embeddings (..., t, d); padding is embedded as code 0."""
        level = torch.arange(codes.shape[-1], device=codes.device) % self.config.depth
        ids = codes.clamp_min(0) + level * self.config.codebook_size
        return F.rms_norm(F.embedding(ids, table.flatten(0, 1)), (self.config.dim,))

    def end_logits(self, coarse: Tensor) -> Tensor:
        return full_precision(self.end_head(coarse)[..., 0])

    def code_losses(self, hidden: Tensor, table: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) sums over each face: losses in fp32, and correct predictions."""
        depth = self.config.depth
        losses: list[Tensor] = []
        correct: list[Tensor] = []
        for level in range(depth):
            rows, targets = hidden[:, level::depth].flatten(0, 1), codes[:, level::depth].flatten()
            tokens = self.head.losses(level, rows, targets, table)
            losses.append(tokens.loss.view(len(codes), -1).sum(-1))
            correct.append(tokens.correct.view(len(codes), -1).sum(-1))
        return torch.stack(losses).sum(0), torch.stack(correct).sum(0)

    def check(self, codes: Tensor) -> None:
        tokens, max_faces = self.config.tokens_per_face, self.config.max_faces
        if codes.ndim != 3 or codes.shape[2] != tokens:
            raise ValueError(f"expected codes (b, faces, {tokens}), not {tuple(codes.shape)}")
        if codes.shape[1] > max_faces:
            raise ValueError(f"a batch of {codes.shape[1]} faces exceeds max_faces {max_faces}")

    # -- generation ---------------------------------------------------------------------------

    @torch.no_grad()
    def generate_codes(
        self,
        context: Context | None,
        count: int,
        *,
        max_faces: int | None = None,
        prompt: Tensor | None = None,
        kept: Tensor | None = None,
        dtype: torch.dtype | None = None,
        exact: bool = False,
        **keywords: Any,
    ) -> Tensor:
        """Generate codes (count, max_faces, t), padded with -1.

        `context` comes from `encode_text`; `prompt` (count, faces, t) holds the first faces, and
        `kept` faces in order that come wherever they are due. On CUDA weights are cast to bf16
        unless `dtype` is given. `exact`: the same bits in any batch. `keywords` are fields of
        `Sampling`.
        """
        sampling = Sampling(**keywords)
        if self.config.pointers:
            sampling = replace(sampling, distinct=False)
        limit = min(max_faces or self.config.max_faces, self.config.max_faces)
        own = self.start.dtype
        dtype = dtype or (torch.bfloat16 if self.start.is_cuda and own.itemsize == 4 else own)
        with without_autocast(self.start):
            return generate(self, context, count, limit, sampling, prompt, dtype, kept, exact)

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
        seed: Seed = 0,
        prompt: Tensor | None = None,
        max_faces: int | None = None,
        return_codes: bool = False,
        exact: bool = False,
        **older: Any,
    ) -> Meshes | Tensor:
        """Generate one mesh per text, `batch_size` meshes, or one per `prompt`: the codes of its
        first faces, (b, f, t) or flattened. `older` are arguments of meshgpt-pytorch.

        A mesh depends on the seed and its index in the batch, or on its own of pairs of both, and
        not on the batch size: if `exact` to the last bit, at some cost for many at once.
        """
        if self.autoencoder is None and not return_codes:
            raise ValueError(
                "decoding codes to meshes needs the autoencoder: use"
                " MeshTransformer(autoencoder=…), set_autoencoder(…) or return_codes=True"
            )
        if max_faces is not None and max_faces < 1:
            raise ValueError(f"max_faces must be 1 or more, not {max_faces}")
        older = arguments(MESH_GENERATE, older, {"max_faces"}, self.config, self.generate)
        max_faces = older.get("max_faces", max_faces)
        texts = [texts] if isinstance(texts, str) else texts
        if prompt is not None:
            prompt = self.check_prompt(prompt)
            batch_size = batch_size or (len(prompt) if texts is None else None)
        if texts is not None and batch_size not in (None, len(texts)):
            if len(texts) != 1:
                raise ValueError(f"{len(texts)} texts do not match batch_size {batch_size}")
            texts = [*texts] * (batch_size or 1)
        count = batch_size or (1 if texts is None else len(texts))
        context = self.encode_text(count) if texts is None else self.encode_captions(texts)
        codes = self.generate_codes(
            context,
            count,
            max_faces=max_faces,
            prompt=prompt,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            cond_scale=1.0 if texts is None else cond_scale,
            seed=seed,
            exact=exact,
        )
        return codes if return_codes else self.decode_meshes(codes, exact)

    def check_prompt(self, prompt: Tensor) -> Tensor:
        """(b, f, t) of the codes of whole faces, of any shape (b, …)."""
        tokens = self.config.tokens_per_face
        if prompt.ndim < 2 or math.prod(prompt.shape[1:]) % tokens:
            raise ValueError(
                f"expected a prompt (b, faces, {tokens}), or whole faces of {tokens} codes each,"
                f" not {tuple(prompt.shape)}"
            )
        self.check_codes(prompt)
        return prompt.reshape(len(prompt), -1, tokens)

    def check_codes(self, codes: Tensor) -> None:
        check_ids(codes, self.config.codebook_size, "give codes of this autoencoder", least=-1)

    def decode_meshes(self, codes: Tensor, exact: bool = False) -> Meshes:
        """Decode codes (b, f, t) to vertices and faces on the autoencoder's device."""
        codes = codes.to(next(self.autoencoder.parameters()).device)
        decode, rows = self.autoencoder.decode_codes, BLOCK if codes.is_cuda else 1
        coordinates, mask = in_blocks(decode, rows, codes) if exact else decode(codes)
        corners, labels = self.config.corners, codes
        if self.config.pointers:  # equal positions are one vertex, not equal codes
            bins = discretise(coordinates, self.autoencoder.config.bins).flatten(2)
            labels = torch.where(mask[..., None], bins, -1)
        return Meshes(assemble(c, x, corners) for c, x in zip(labels.cpu(), coordinates.cpu()))

    # -- saving -------------------------------------------------------------------------------

    def write_stages(self, path: Path) -> None:
        if self.autoencoder is not None:
            self.autoencoder.save_pretrained(path / "autoencoder")

    def read_stages(self, path: Path) -> None:
        if (path / "autoencoder").is_dir():
            from quintet.mesh.autoencoder.model import MeshAutoencoder

            self.set_autoencoder(MeshAutoencoder.from_pretrained(path / "autoencoder"))


Model = MeshTransformer
