"""What a user's first line does: each public name, each verb and each missing extra in a process
that has imported nothing of Quintet. In the process of other tests an earlier import would hide
what a lazy one forgets."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quintet
from quintet.cli import COMMANDS

DRIVER = """
import json, os, sys, traceback
# Slow to import, and not what is tested; the rest is fresh in each child.
import accelerate, numpy, numpy.random, rich.console, rich.table, torch, tyro, typeguard

for line in sys.stdin:
    code = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = "ended"
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as error:
            status = f"exit {error.code or 0}"
        except BaseException:
            status = traceback.format_exc()
        sys.stdout.flush()
        os.write(writer, status.encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        print("\\0" + json.dumps(pipe.read()), flush=True)
    os.waitpid(child, 0)
"""


class Fresh:
    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-c", DRIVER]
        self.program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, code: str) -> tuple[str, str]:
        """How it ended, and what it printed."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        print(json.dumps(code), file=self.program.stdin, flush=True)
        printed = ""
        while not (line := self.program.stdout.readline()).startswith("\0"):
            assert line, printed
            printed += line
        return json.loads(line[1:]), printed


@pytest.fixture(scope="module")
def fresh():
    driver = Fresh()
    yield driver
    driver.program.kill()
    driver.program.communicate()


# A trainer imports its model, and the others of its room what this one does.
KINDS = ("", "MeshTransformer", "VideoFlow", "VoiceBox")
QUICK = {f"{kind}Trainer" for kind in KINDS}
SLOW = {n for n in quintet.__all__ if n.endswith("Trainer") or f"{n}Trainer" in quintet.__all__}
NAMES = [
    pytest.param(n, marks=pytest.mark.slow if n in SLOW - QUICK else ()) for n in quintet.__all__
]


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_loads_by_itself(name: str, fresh: Fresh) -> None:
    assert fresh(f"from quintet import {name}")[0] == "ended"


@pytest.mark.by_default("train", "resume", "sample", "evaluate")
@pytest.mark.parametrize("verb", COMMANDS)
def test_each_verb_explains_itself(verb: str, fresh: Fresh) -> None:
    status, printed = fresh(f"from quintet.cli import main; main([{verb!r}, '--help'])")
    assert status == "exit 0", status + printed
    assert verb in printed


@pytest.mark.parametrize("verb", COMMANDS)
def test_each_verb_without_arguments_answers_in_sentences(
    verb: str, fresh: Fresh, tmp_path: Path
) -> None:
    """The demo would begin; a report and a doctor of nothing have their own defaults."""
    if verb == "demo":
        pytest.skip("it takes no argument and would train")
    where = f"import os; os.chdir({str(tmp_path)!r}); "
    status, printed = fresh(f"{where}from quintet.cli import main; main([{verb!r}])")
    assert status in ("exit 0", "exit 2"), status + printed
    assert "Traceback" not in printed


def test_a_ready_model_loads_without_the_compiler(fresh: Fresh) -> None:
    """Which takes longer to import than the model to load."""
    load = "import quintet, sys; quintet.load('ready/image-tokenizer')"
    assert fresh(f"{load}; assert 'torch._dynamo' not in sys.modules")[0] == "ended"


TRAINERS = [name for name in quintet.__all__ if name.endswith("Trainer")]
START = f"""
import json, sys, time

began = time.process_time()
import torch
torch_alone = time.process_time() - began
from quintet import VQGanVAE
import quintet.engine.models.pretrained
hub = "huggingface_hub" in sys.modules
from quintet import {", ".join(TRAINERS)}
beyond = time.process_time() - began - torch_alone
from quintet.engine import optim
from quintet.engine.config import OptimizerConfig
from quintet.nn.alignment import monotonic_search

for kind in ("adamw", "adam", "lion", "muon"):
    network = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    parameters, hidden = optim.trainable(network), optim.hidden_matrices(network)
    config = OptimizerConfig(optimizer=kind)
    optimizer = optim.build_optimizer(config, parameters, hidden if kind == "muon" else ())
    network(torch.ones(2, 4)).sum().backward()
    optimizer.step()
monotonic_search(torch.zeros(1, 5, 3), torch.tensor([5]), torch.tensor([3]))
compiler = "torch._dynamo" in sys.modules
print(json.dumps([torch_alone, beyond, hub, compiler]))
"""


def test_a_start_takes_two_seconds_beyond_torch_and_leaves_out_what_takes_longer() -> None:
    """torch's compiler takes seconds, and torch's own optimizers and custom operations ask for
    it; models need no client of the Hub."""
    ended = subprocess.run([sys.executable, "-c", START], check=True, capture_output=True)
    torch_alone, beyond, hub, compiler = json.loads(ended.stdout)
    slow = max(1.0, torch_alone / 2)  # where torch itself takes more than two seconds
    assert beyond < 2 * slow, f"{beyond:.2f} s beyond torch's own {torch_alone:.2f}"
    assert not hub
    assert not compiler


@pytest.mark.slow  # compiled in nn/test_alignment.py, where other tests have imported the compiler
def test_a_search_that_began_without_the_compiler_is_compiled() -> None:
    later = (
        "found = torch.compile(lambda x: monotonic_search(x, torch.tensor([5]), torch.tensor([3])),"
        " backend='eager')(torch.zeros(1, 5, 3)); assert found.sum() == 5"
    )
    subprocess.run([sys.executable, "-c", START + later], check=True)


INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and os.environ.pop("INTERRUPT", None):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.by_default("quintet.cli", "torch")
@pytest.mark.parametrize("module", ["quintet.cli", "quintet.cli.common", "tyro", "torch"])
def test_an_interrupt_while_modules_are_imported_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, "-m", "quintet", "train", "image/vqgan_tiny", "--run", tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": path, "INTERRUPT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (130, "quintet: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_the_installed_command_begins_where_an_interrupt_is_caught() -> None:
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"quintet": "quintet.__main__:main"}


HUB = "import os; os.environ['HF_HUB_OFFLINE'] = '1'; "


@pytest.mark.by_default("nobody/nothing")
@pytest.mark.parametrize("name", ["nobody/nothing", "runs/mistyped", "not a name"])
def test_a_model_that_is_no_folder_is_answered_in_a_sentence(name: str, fresh: Fresh) -> None:
    status, _ = fresh(f"{HUB}from quintet import VQGanVAE; VQGanVAE.from_pretrained({name!r})")
    assert f"RunError: {name} is" in status, status


WITHOUT = "import sys; sys.modules[{module!r}] = None; "
EXTRAS = {
    "hub": ("huggingface_hub", "from quintet import MuLaN; MuLaN.from_pretrained('a/b')"),
    "video": (
        "av",
        "from pathlib import Path; from quintet.media.clips.writer import write_mp4; import numpy;"
        "write_mp4(Path({folder!r}) / 'x.mp4', numpy.zeros((2, 16, 16, 3), 'uint8'), 8)",
    ),
    "audio": (
        "soundfile",
        "from pathlib import Path; from quintet.media.audio import read_audio;"
        "path = Path({folder!r}) / 'x.flac'; path.write_bytes(b'fLaC' + bytes(64));"
        "read_audio(path, rate=16000)",
    ),
    "text": (
        "transformers",
        "from pathlib import Path; from quintet.nn.text import FrozenText;"
        "folder = Path({folder!r}); (folder / 'config.json').write_text('');"
        "FrozenText(folder, length=8)",
    ),
    "shards": (
        "fsspec",
        "from quintet.cli import main; main(['train', 'image/vqgan_tiny', 'memory://x',"
        "'--run', {folder!r} + '/run'])",
    ),
    "parquet": (
        "pyarrow",
        "from pathlib import Path; (Path({folder!r}) / 'a.parquet').write_bytes(b'PAR1');"
        "from quintet.cli import main; main(['train', 'image/vqgan_tiny', {folder!r}])",
    ),
    "meshes": (
        "collada",
        "from pathlib import Path; from quintet.media.meshes.files import read_mesh;"
        "path = Path({folder!r}) / 'x.dae'; path.write_bytes(b'<COLLADA/>'); read_mesh(path)",
    ),
    "wandb": (
        "wandb",
        "from quintet.cli import main; main(['train', 'image/vqgan_tiny', '--trackers', 'wandb',"
        "'--run', {folder!r} + '/run', '--steps', '1'])",
    ),
    "onnx": (
        "onnx",
        "from quintet.engine.models.export import export; export(None, None, 'onnx')",
    ),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    extra: str, fresh: Fresh, tmp_path: Path
) -> None:
    module, code = EXTRAS[extra]
    status, printed = fresh(WITHOUT.format(module=module) + code.format(folder=str(tmp_path)))
    assert f"pip install 'quintet[{extra}]'" in status + printed, status + printed
