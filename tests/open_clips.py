"""The CLIP of open_clip with its names of parameters, written anew from its paper and its files
(open_clip imports torchvision, which tests have not): to compare embeddings and files with."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TINY: dict[str, Any] = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 64, "vocab_size": 258, "width": 16, "heads": 2, "layers": 1},
}
PIXELS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ratio: float, act: type[nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        inner = int(width * ratio)
        layers = {
            "c_fc": nn.Linear(width, inner),
            "gelu": act(),
            "c_proj": nn.Linear(inner, width),
        }
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, cfg: dict[str, Any], heads: int, act: type[nn.Module]) -> None:
        super().__init__()
        ratio = cfg.get("mlp_ratio", 4.0)
        blocks = (Block(cfg["width"], heads, ratio, act) for _ in range(cfg["layers"]))
        self.resblocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Visual(nn.Module):
    def __init__(self, cfg: dict[str, Any], dim: int, act: type[nn.Module]) -> None:
        super().__init__()
        width, patch = cfg["width"], cfg["patch_size"]
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        count = (cfg["image_size"] // patch) ** 2 + 1
        self.positional_embedding = nn.Parameter(torch.randn(count, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(cfg, width // cfg["head_width"], act)
        self.proj = nn.Parameter(torch.randn(width, dim))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(pixels), 1, -1)
        x = torch.cat([first, patches], 1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x))[:, 0]) @ self.proj


class OpenClip(nn.Module):
    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__()
        text, dim = cfg["text_cfg"], cfg["embed_dim"]
        act = QuickGELU if cfg.get("quick_gelu") else nn.GELU
        self.visual = Visual(cfg["vision_cfg"], dim, act)
        self.transformer = Transformer(text, text["heads"], act)
        self.token_embedding = nn.Embedding(text["vocab_size"], text["width"])
        self.positional_embedding = nn.Parameter(torch.randn(text["context_length"], text["width"]))
        self.ln_final = nn.LayerNorm(text["width"])
        self.text_projection = nn.Parameter(torch.randn(text["width"], dim))
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))

    def encode_image(self, pixels: Tensor) -> Tensor:
        return nn.functional.normalize(self.visual(pixels), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        size = ids.shape[1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        x = self.token_embedding(ids) + self.positional_embedding[:size]
        x = self.ln_final(self.transformer(x, mask))[torch.arange(len(ids)), ids.argmax(1)]
        return nn.functional.normalize(x @ self.text_projection, dim=-1)


def network(**changes: Any) -> OpenClip:
    torch.manual_seed(0)
    made = OpenClip(TINY | changes)
    for parameter in made.parameters():  # as after training: no bias that is 0
        parameter.data += torch.randn_like(parameter) * 0.05
    return made.eval()


def write(path: Path, made: OpenClip, **changes: Any) -> None:
    """As open_clip writes its folder, without the tokenizer."""
    from safetensors.torch import save_file

    save_file(made.state_dict(), path / "open_clip_model.safetensors")
    about = {"model_cfg": TINY | changes, "preprocess_cfg": PIXELS}
    (path / "open_clip_config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
