"""A LoRA as an adapter of peft: adapter_config.json and adapter_model.safetensors, to be put onto
the original. peft itself is not needed to write it.

peft has layers of its own for linear and plain convolutional ones; `down` and `up` are what it
calls lora_A and lora_B, with the shape of kernels.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.files import write_json
from quintet.shared.adopt.low_rank import SCALE, LowRank

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model"
"""Prefix of names in the file."""
PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def save(network: nn.Module, low_rank: LowRank, path: Path) -> int:
    """Returns the number of tensors."""
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for name, (down, up) in low_rank.factors().items():
        layer = name.removesuffix(".weight")
        module = _plain(network, layer, name)
        ranks[layer], kernel = len(down), module.weight.shape[1:]
        ones = [1] * (len(kernel) - 1)
        tensors[f"{PREFIX}.{layer}.lora_A.weight"] = down.reshape(len(down), *kernel)
        tensors[f"{PREFIX}.{layer}.lora_B.weight"] = up.reshape(*up.shape, *ones)
    write_safetensors(path / WEIGHTS, {n: t.detach().float().cpu() for n, t in tensors.items()})
    write_json(path / CONFIG, _config(ranks))
    return len(tensors)


def _plain(network: nn.Module, layer: str, name: str) -> Any:
    module: Any = network.get_submodule(layer) if name.endswith(".weight") else None
    if type(module) not in PLAIN or getattr(module, "groups", 1) > 1:
        kind = type(module).__name__ if module is not None else "a normalised weight"
        raise RunError(
            f"peft has no layer for {name} ({kind}); drop --format peft: an export without holds"
            " the changes added to the weights"
        )
    return module


def _config(ranks: dict[str, int]) -> dict[str, Any]:
    most = max(ranks.values())
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "bias": "none",
        "inference_mode": True,
        "r": most,
        "lora_alpha": SCALE * most,
        "lora_dropout": 0.0,
        "target_modules": sorted(ranks),
        "rank_pattern": {layer: rank for layer, rank in ranks.items() if rank != most},
        "alpha_pattern": {layer: SCALE * rank for layer, rank in ranks.items() if rank != most},
    }
