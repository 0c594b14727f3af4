"""The six tiny recipes, smaller still, and what each of them becomes when nobody disturbs it."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quintet
from adopting import adopts
from quintet import rooms
from quintet.engine.config import Recipe, differences, to_json
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import read_lines
from quintet.files import PARTIAL, digest_of

FOLDER = Path("runs/campaign").resolve()
"""Where the campaign keeps its runs; set by --out."""
STEPS, SAVE_EVERY, EVALUATE_EVERY = 10, 2, 5

# Where a recipe has such a field, at whatever depth, a smaller value.
SMALLER = {
    "steps": STEPS,
    "save_every": SAVE_EVERY,
    "evaluate_every": EVALUATE_EVERY,
    "log_every": 1,
    "batch_size": 2,
    "workers": 0,
    "trackers": (),
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "valid_limit": 2,
    "builtin_count": 16,  # so that epochs end within the run
    "adversarial_from": 0.5,
    "max_faces": 24,
    "count": 1,
    "reference_count": 4,
    "compared": 4,
}
OF_ROOM: dict[str, dict[str, Any]] = {
    "image": {"dim": 8, "size": (16, 16), "layers": 1, "text_dim": 32},
    "mesh": {
        "dim": 32,
        "message_dim": 16,
        "layers": 1,
        "heads": 1,
        "fine_heads": 1,
        "text_layers": 1,
        "text_dim": 32,
        "max_faces": 12,
    },
    "music": {"dim": 32, "dim_latent": 32, "layers": 1, "text_dim": 32, "text_layers": 1},
    "speech": {
        "dim": 32,
        "depth": 2,
        "heads": 1,
        "max_seconds": 1.5,
        "duration_depth": 1,
        "sample_rate": 8000,
        "n_fft": 256,
        "hop_length": 128,
        "n_mels": 20,
    },
    "video": {"dim": 8, "init_dim": 16, "max_dim": 32, "size": (16, 16), "frames": 5},
}
TIMED = ("seconds", "samples_per_second", "waiting")


def names() -> list[str]:
    """Those that need no model from elsewhere."""
    tiny = [name for name in rooms.names() if name.endswith("_tiny")]
    return [name for name in tiny if not adopts(rooms.recipe_function(name)())]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A small recipe."""

    name: str

    @functools.cached_property
    def recipe(self) -> Recipe:
        room = self.name.partition("/")[0]
        recipe = replaced(rooms.recipe_function(self.name)(), SMALLER | OF_ROOM[room])
        stages = {s: str(Subject(f"{m}_tiny").reference(1)) for s, m in recipe.stages.items()}
        return dataclasses.replace(recipe, **stages)

    def words(self, path: Path, *more: object) -> list[str]:
        """The command that starts this run or goes on with it."""
        default = rooms.recipe_function(self.name)()
        changed = differences(to_json(default), to_json(self.recipe))
        flags = [word for name, (_, value) in changed.items() for word in flag(name, value)]
        given = ["train", self.name, "--run", str(path), "--resume", *flags]
        return [*given, *map(str, more)]

    def reference(self, size: int) -> Path:
        """An undisturbed run with a checkpoint of every step, made once."""
        from campaign.children import Program

        made = f"{_sources()} {self.recipe}"
        place = FOLDER / "reference" / hashlib.sha256(made.encode()).hexdigest()[:12]
        path = place / f"{self.name.replace('/', '-')}-{size}"
        if not (path / "digests.json").exists():
            keep = ("--save-every", 1, "--keep-last", 2 * STEPS)
            program = Program(self.words(path, *keep), path, size)
            if set(program.wait(600)) != {0}:
                raise RuntimeError(f"an undisturbed run failed:\n{program.said()}")
            (path / "digests.json").write_text(json.dumps(digests(path)), encoding="utf-8")
        return path


@functools.cache
def _sources() -> str:
    """Digest of the program: another one may rightly come to other numbers."""
    found = hashlib.sha256()
    for file in sorted(Path(quintet.__file__).parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def replaced(value: Any, wanted: Mapping[str, Any]) -> Any:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        if field.name in wanted:
            changes[field.name] = wanted[field.name]
        elif dataclasses.is_dataclass(getattr(value, field.name)):
            changes[field.name] = replaced(getattr(value, field.name), wanted)
    return dataclasses.replace(value, **changes)


def flag(name: str, value: Any) -> list[str]:
    words = value if isinstance(value, list) else [value]
    return [f"--{name.replace('_', '-')}", *map(str, words)]


def digests(path: Path) -> dict[str, dict[str, str]]:
    """Of every file of every checkpoint: equal state gives equal bytes."""
    pages = [checkpoint.read_about(entry) for entry in sorted(path.glob("checkpoints/step-*"))]
    return {
        str(page["step"]): {name: facts["sha256"] for name, facts in page["files"].items()}
        for page in pages
    }


def reports(path: Path) -> list[dict[str, Any]]:
    """All that the run reported, without what the clock says."""
    found = read_lines(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else []
    return [{k: v for k, v in line.items() if k not in TIMED} for line in found]


def shown(path: Path) -> dict[str, str]:
    """Digests of all exhibits."""
    files = sorted(file for file in path.glob("exhibits/**/*") if file.is_file())
    return {str(file.relative_to(path)): digest_of(file) for file in files}


def differs(path: Path, reference: Path, ended: bool) -> str:
    """Where a run is not the undisturbed one, as far as it has come; empty where it is."""
    folder = path / "checkpoints"
    wanted = json.loads((reference / "digests.json").read_text(encoding="utf-8"))
    for step in checkpoint.steps_in(folder):
        problem = checkpoint.examine(checkpoint.path_of(folder, step))
        if problem:
            return f"the checkpoint of step {step} is damaged: {problem}"
    for step, files in digests(path).items():
        if files != wanted.get(step):
            return f"the checkpoint of step {step} is not the undisturbed one's"
    if not ended:
        return ""
    if STEPS not in checkpoint.steps_in(folder):
        return f"it has no checkpoint of step {STEPS}"
    if reports(path) != reports(reference):
        return "its reports are not the undisturbed ones"
    if shown(path) != shown(reference):
        return "its exhibits are not the undisturbed ones"
    stray = [p.name for p in (*folder.glob(PARTIAL), *path.glob(PARTIAL))]
    return f"it left {stray[0]} behind" if stray else ""
