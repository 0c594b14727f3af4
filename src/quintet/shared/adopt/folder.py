"""Folders of diffusers and transformers: config.json names the class, safetensors hold the weights.

Loading runs no code of the folder: the class is looked up in the library, custom code (auto_map)
and pickles are refused.
"""

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.engine.models.hub import CONFIG
from quintet.engine.models.pretrained import Pretrained, read_about, refuse_outside_links
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.shared.adopt.config import CONTRASTIVE, FOLDER, AdoptedConfig, OriginalConfig

WEIGHTS, MODEL = "diffusion_pytorch_model.safetensors", "model.safetensors"
"""Files of weights of diffusers and of transformers."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
C = TypeVar("C", bound=OriginalConfig)


def is_foreign(path: Path) -> bool:
    """Whether a folder is one of another library, and not a run or an export."""
    if (path / "model_index.json").is_file():
        raise RunError(f"{path} is a pipeline; name the folder of its autoencoder: {path / 'vae'}")
    if not (path / CONFIG).is_file():
        return False
    about = read_about(path)
    return "quintet" not in about and ("_class_name" in about or "architectures" in about)


def class_in(path: Path) -> str:
    """The class that the config.json of a folder names."""
    about = read_about(path)
    return str(about.get("_class_name") or (about.get("architectures") or [""])[0])


def load(path: Path, config_class: type[C] = AdoptedConfig) -> tuple[C, nn.Module]:
    """The network of a folder in fp32, and what rebuilds it."""
    about, named = read_about(path), class_in(path)
    library = "diffusers" if "_class_name" in about else "transformers"
    files = weight_files(path, WEIGHTS if library == "diffusers" else MODEL)
    config = config_class(
        library=library,
        class_name=named,
        settings=(path / CONFIG).read_text(encoding="utf-8"),
        **types_of(files),
    )
    kind = class_of(config)
    variant = next((f.name.split(".")[1] for f in files if f.name.count(".") > 1), None)
    how = {"torch_dtype" if library == "diffusers" else "dtype": torch.float32}
    with quiet():
        try:
            network = kind.from_pretrained(
                path, use_safetensors=True, local_files_only=True, variant=variant, **how
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise RunError(f"{path} cannot be loaded as {named}: {error}") from None
    return config, network


def build(config: OriginalConfig) -> nn.Module:
    """The network with arbitrary weights."""
    kind = class_of(config)
    with quiet():
        if config.library == "diffusers":
            return kind.from_config(config.values)
        return kind(kind.config_class.from_dict(config.values))


def save(config: OriginalConfig, network: Any, state: Mapping[str, Tensor], path: Path) -> None:
    """Write the original format; equal weights give an equal file."""
    weights = {name: value.cpu() for name, value in state.items()}
    if config.library == "diffusers":
        write_safetensors(path / WEIGHTS, weights)
    else:  # transformers gives some weights other names in files
        with quiet():
            network.save_pretrained(path, state_dict=weights, max_shard_size="1TB")
    (path / CONFIG).write_text(config.settings, encoding="utf-8")


def in_type_of(config: OriginalConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the types of the original."""
    types = json.loads(config.dtypes)
    return {
        name: value.detach().to(getattr(torch, types.get(name, config.dtype)))
        if value.is_floating_point()
        else value.detach()
        for name, value in state.items()
    }


def class_of(config: OriginalConfig) -> Any:
    name = config.library
    try:
        # Modules of some classes hold tensors (Cosmos), which must have values: a first import may
        # come where a model is built without.
        with torch.device("cpu"):
            library = importlib.import_module(name)
            base = library.ModelMixin if name == "diffusers" else library.PreTrainedModel
            kind = getattr(library, config.class_name, None)
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"a {config.class_name} needs {name}: pip install 'quintet[adopt]' ({error})"
        ) from None
    whole = isinstance(kind, type) and issubclass(kind, base)
    embeds = config.class_name in CONTRASTIVE
    if not whole or not (embeds or (hasattr(kind, "encode") and hasattr(kind, "decode"))):
        raise RunError(
            f"{config.class_name} is not an autoencoder of {name}"
            f" {library.__version__}; give {FOLDER}"
        )
    return kind


class Adopted(Pretrained):
    """A model around the network of a folder, exported in the format of that folder."""

    refusal: ClassVar[str]
    what: ClassVar[str]
    original: ClassVar[str] = FOLDER
    """Words for what to give."""
    config: Any
    network: Any

    @classmethod
    def _about(cls, path: Path) -> Any:
        about = read_about(path)
        if about.get("model") != cls.label():
            named = (about.get("config") or {}).get("class_name") or about.get("model")
            raise RunError(f"a {named} {cls.refusal} {cls.what}; give {cls.original}")
        return super()._about(path)

    def stored(self) -> dict[str, Tensor]:
        """The network's weights in the types of the original."""
        return in_type_of(self.config, self.network.state_dict())

    def exported(self) -> dict[str, Tensor]:
        own = self.network.state_dict()
        return {f"network.{n}": value.to(own[n].dtype) for n, value in self.stored().items()}

    def save_stage(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        super()._write(path)

    def _write(self, path: Path) -> None:
        save(self.config, self.network, self.stored(), path)


def weight_files(path: Path, name: str) -> list[Path]:
    """The safetensors of a folder; RunError if there are none. `name` is what they are called."""
    files = sorted(path.glob("*.safetensors"))
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in PICKLES)
    if not files and pickles:
        raise RunError(
            f"{path} holds {', '.join(pickles)}, which is not read, because a pickle can run code;"
            " where you trust it, write safetensors with the library that wrote it:"
            " MODEL.from_pretrained(FOLDER).save_pretrained(FOLDER) of diffusers or transformers,"
            f" or safetensors.torch.save_file(model.state_dict(), {str(path / name)!r})"
        )
    if not files:
        raise RunError(f"{path} holds no safetensors; give {FOLDER}")
    for file in files:
        refuse_outside_links(path, file)
    whole = [file for file in files if file.name.count(".") == 1]
    return whole or files


def types_of(files: list[Path]) -> dict[str, str]:
    """`dtype` of the weights; where files mix several, fp32, and `dtypes` of the others."""
    from safetensors import SafetensorError, safe_open

    names = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
    try:
        types = {
            name: weights.get_slice(name).get_dtype()
            for file in files
            for weights in [safe_open(file, framework="pt")]
            for name in weights.keys()  # noqa: SIM118
        }
    except (OSError, SafetensorError) as error:
        raise RunError(f"{files[0].parent}: {error}") from None
    floating = {name: names[kind] for name, kind in types.items() if kind in names}
    if len(kinds := set(floating.values())) == 1:
        return {"dtype": kinds.pop()}
    others = {name: kind for name, kind in sorted(floating.items()) if kind != "float32"}
    return {"dtypes": json.dumps(others)}


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Without the libraries' progress bars and warnings."""
    bars: Any = sys.modules.get("transformers.utils.logging")
    if bars is not None and not bars.is_progress_bar_enabled():
        bars = None
    if bars is not None:
        bars.disable_progress_bar()
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
        if bars is not None:
            bars.enable_progress_bar()
