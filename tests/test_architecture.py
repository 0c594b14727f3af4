"""The layers and rules of the architecture, read off the syntax trees."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import quintet

PACKAGE = Path(quintet.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(page.parent.name for page in PACKAGE.glob("*/recipes.py"))
FAMILIES = sorted(page.parent for room in ROOMS for page in (PACKAGE / room).glob("*/config.py"))
LIGHT = ["recipes.py", "config.py", "sample.py", "demo.py"]  # read for help, which must be instant


@cache  # by text: each file is asked about a dozen times
def parsed(text: str) -> dict[type[ast.AST], list[Any]]:
    """The nodes of a file's syntax tree by their type."""
    nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        nodes[type(node)].append(node)
    return dict(nodes)


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Millions of nodes would slow down every collection of garbage in later tests."""
    yield
    parsed.cache_clear()
    calls.cache_clear()


def nodes_of(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    nodes = parsed(path.read_text(encoding="utf-8"))
    return [node for kind in kinds for node in nodes.get(kind, ())]


def module_of(path: Path) -> list[str]:
    parts = ["quintet", *path.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


def names_of(node: ast.AST, path: Path) -> Iterator[str]:
    """Full names of the modules, or of names in modules, that one statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = module_of(path)
        if path.name != "__init__.py":
            base = base[:-1]
        base = base[: len(base) - node.level + 1] if node.level else []
        start = [*base, *(node.module or "").split(".")] if node.module else base
        yield from (".".join([*start, alias.name]) for alias in node.names)


def imports(path: Path) -> set[str]:
    """Everything that a file imports, wherever in it."""
    statements = nodes_of(path, ast.Import, ast.ImportFrom)
    return {name for node in statements for name in names_of(node, path)}


def imports_on_load(path: Path) -> set[str]:
    """What is imported when the module is: not inside functions, not for the type checker."""
    found: set[str] = set()
    waiting: list[ast.AST] = nodes_of(path, ast.Module)
    while waiting:
        node = waiting.pop()
        found.update(names_of(node, path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return found


def is_under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def offenders(files, packages, find=imports) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files
        for name in sorted(find(path))
        if any(is_under(name, package) for package in packages)
    ]


def inside(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def parts(*names: str) -> list[str]:
    return [f"quintet.{name}" for name in names]


SERVERS = ["serve", "watch"]
ENTRY_POINTS = ["cli", "rooms", "__main__"]  # what starts everything is imported by nothing below


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("engine", ["nn", "media", "shared", *SERVERS, "report", *ENTRY_POINTS, *ROOMS]),
        ("nn", ["engine", "media", "shared", *SERVERS, "report", *ENTRY_POINTS, *ROOMS]),
        ("media", ["engine", "nn", "shared", *SERVERS, "report", *ENTRY_POINTS, *ROOMS]),
        ("shared", ["report", "judges", *SERVERS, *ENTRY_POINTS, *ROOMS]),
        ("report", ["nn", "shared", *SERVERS, *ENTRY_POINTS, *ROOMS]),
        ("watch", ["nn", "shared", *ENTRY_POINTS, *ROOMS]),
        ("judges", ["report", *SERVERS, *ENTRY_POINTS, *ROOMS]),
        ("serve", ["cli", "judges", "watch", *ROOMS]),
    ],
)
def test_imports_point_one_way(part, forbidden):
    assert inside(part), f"there is no {part}"
    assert offenders(inside(part), parts(*forbidden)) == []


CONTRACT = [PACKAGE / "engine" / f"{n}.py" for n in ("task", "when", "config", "errors", "keys")]


def test_the_contract_of_engine_and_rooms_imports_nothing_below_it():
    """For the type checker neither: a task can be read and tested without the machine."""
    may = [*(".".join(module_of(path)) for path in CONTRACT), "quintet.triton"]
    may += ["quintet.engine.data.plans", "quintet.engine.keys_kernel"]
    names = {name for path in CONTRACT for name in imports(path) if is_under(name, "quintet")}
    assert {_module(name) for name in names} <= set(may)


def test_only_what_is_above_them_imports_judges():
    above = [*inside("judges"), *inside("cli"), *inside("report")]
    assert offenders([path for path in FILES if path not in above], parts("judges")) == []


@pytest.mark.parametrize("part", ["engine", "nn", "media", "compat", "shared", *ROOMS])
def test_no_lower_layer_reaches_a_room_through_the_package_itself(part):
    """`import quintet` and then `quintet.load` would be an arrow that no import shows."""
    found = [path for path in inside(part) if "quintet" in imports(path)]
    assert found == []
    assert not [path for path in inside(part) if "quintet.load" in uses(path)]


def uses(path: Path) -> set[str]:
    """Dotted names that a file's code uses."""
    return {ast.unparse(node) for node in nodes_of(path, ast.Attribute)}


def test_there_is_no_circle_of_files_at_load_time():
    graph = {}
    for path in FILES:
        module = ".".join(module_of(path))
        names = {n for n in imports_on_load(path) if n.startswith("quintet.")}
        graph[module] = {_module(name) for name in names} - {module}
    state: dict[str, int] = {}

    def visit(module: str, trail: list[str]) -> None:
        state[module] = 1
        for other in graph.get(module, ()):
            assert state.get(other) != 1, " -> ".join([*trail, module, other])
            if other not in state:
                visit(other, [*trail, module])
        state[module] = 2

    for module in graph:
        if module not in state:
            visit(module, [])


def circles() -> list[list[str]]:
    """Groups of modules that reach each other by imports, wherever in a file: also in functions and
    for the type checker."""
    graph = {".".join(module_of(path)): {_module(name) for name in imports(path)} for path in FILES}
    order: list[str] = []
    visited: set[str] = set()

    def visit(module: str, arrows: dict[str, set[str]], found: list[str]) -> None:
        visited.add(module)
        for other in arrows[module]:
            if other in arrows and other not in visited:
                visit(other, arrows, found)
        found.append(module)

    for module in graph:
        if module not in visited:
            visit(module, graph, order)
    reverse = {module: {other for other in graph if module in graph[other]} for module in graph}
    visited.clear()
    groups: list[list[str]] = []
    for module in reversed(order):
        if module not in visited:
            groups.append([])
            visit(module, reverse, groups[-1])
    return [sorted(group) for group in groups if len(group) > 1]


def test_the_engine_has_no_circle_of_files_even_for_types():
    assert [group for group in circles() if any(is_under(m, "quintet.engine") for m in group)] == []


def test_few_files_are_in_circles_of_types_and_late_imports():
    """Rooms have some: a model that loads its generator. The number may only fall."""
    assert sum(map(len, circles())) <= 9


MOST_PARAMETERS = 12


def is_kernel(node: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_no_function_but_kernels_has_many_parameters():
    many = []
    for path in FILES:
        for node in nodes_of(path, ast.FunctionDef, ast.AsyncFunctionDef):
            own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len([argument for argument in own if argument.arg not in ("self", "cls")])
            if count > MOST_PARAMETERS and not is_kernel(node):
                many.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name} has {count}")
    assert many == []


def _module(name: str) -> str:
    """The module that a full name is, or is in."""
    parts = name.split(".")
    while len(parts) > 1:
        place = PACKAGE.parent.joinpath(*parts)
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            break
        parts.pop()
    return ".".join(parts)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_no_other_room_and_no_command_line(room):
    others = [other for other in ROOMS if other != room]
    assert offenders(inside(room), parts("report", "judges", *ENTRY_POINTS, *others)) == []


def test_nothing_outside_a_family_asks_which_model_it_is():
    """What belongs to a family is found through it (rooms.py), never by the type of an object."""
    asked = []
    for path in FILES:
        classes = {name.rpartition(".")[2]: name for name in imports(path)}
        for node in nodes_of(path, ast.Call):
            if ast.unparse(node.func) not in ("isinstance", "issubclass"):
                continue
            words = re.findall(r"\w+", ast.unparse(node.args[1]))
            homes = {classes[word].rpartition(".")[0] for word in words if word in classes}
            owners = [f for f in FAMILIES if any(is_under(h, dotted(f)) for h in homes)]
            if any(not path.is_relative_to(owner) for owner in owners):
                asked.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert asked == []


def dotted(folder: Path) -> str:
    return ".".join(module_of(folder / "__init__.py"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_family_has_what_training_needs(family):
    assert {"config.py", "model.py", "task.py", "sample.py"} <= {p.name for p in family.iterdir()}


@pytest.mark.parametrize("leaf", ["files.py"])
def test_a_leaf_that_all_may_import_imports_nothing_of_quintet(leaf):
    assert offenders([PACKAGE / leaf], ["quintet", "torch", "numpy"]) == []


def test_there_are_rooms():
    assert "image" in ROOMS


@pytest.mark.parametrize(
    ("package", "home"), [("accelerate", "engine/machine/world.py"), ("tyro", "cli")]
)
def test_only_one_place_knows(package, home):
    elsewhere = [path for path in FILES if not path.is_relative_to(PACKAGE / home)]
    assert offenders(elsewhere, [package]) == []


def test_torchvision_and_torchaudio_are_nowhere():
    assert offenders(FILES, ["torchvision", "torchaudio"]) == []


def light_files() -> list[Path]:
    found = [place / name for place in (*(PACKAGE / r for r in ROOMS), *FAMILIES) for name in LIGHT]
    found += [*(PACKAGE / "shared").rglob("*config.py"), *(PACKAGE / "shared").rglob("sampling.py")]
    engine = [PACKAGE / "engine" / name for name in ("config.py", "when.py", "errors.py")]
    return [path for path in (*found, *engine) if path.exists()]


@pytest.mark.parametrize("path", light_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_help_reads_imports_no_torch(path):
    assert offenders([path], ["torch", "accelerate"], imports_on_load) == []


def test_loading_all_that_help_reads_loads_no_torch():
    """Through whatever it imports in turn. The demo imports the makers of its page as it runs."""
    demo = PACKAGE / "cli" / "demo"
    commands = [p for p in inside("cli") if p.parent != demo or p.name == "command.py"]
    files = [*light_files(), *commands, *(PACKAGE / n for n in ("__init__.py", "rooms.py"))]
    modules = [".".join(module_of(path)) for path in files if path.exists()]
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


# -- what nobody does -----------------------------------------------------------------------


@cache
def calls(path: Path) -> list[tuple[str, int]]:
    return [(ast.unparse(node.func), node.lineno) for node in nodes_of(path, ast.Call)]


def test_no_file_that_is_read_can_run_code():
    unsafe = ["pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"]
    assert offenders(FILES, [*unsafe, "torch.load", "torch.package", "torch.hub"]) == []
    assert called("torch.hub.load", "torch.jit.load", "eval", "exec") == []
    (found,) = called("torch.load")
    assert found.startswith("engine/models/sandbox.py:")
    text = (PACKAGE / "engine/models/sandbox.py").read_text(encoding="utf-8")
    assert "weights_only=True, mmap=mmap" in text
    for path in FILES:
        assert "allow_pickle" not in path.read_text(encoding="utf-8"), path
        # Left out, it would be asked for at the prompt: it must be there and must be False.
        text = path.read_text(encoding="utf-8").replace("trust_remote_code=False", "")
        assert "trust_remote_code" not in text, path


def called(*names: str) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)}:{line} calls {name}"
        for path in FILES
        for name, line in calls(path)
        if name in names
    ]


def test_files_are_renamed_in_one_place():
    """Everything that is written goes through `quintet.files`: complete or absent."""
    names = ("os.replace", "os.rename", "os.renames", "os.link", "shutil.move")
    renames = [call for call in called(*names) if not call.startswith("files.py:")]
    assert renames == []
    attributes = re.compile(r"\b(partial|path|file|temporary|part)\.(replace|rename)\(")
    for path in FILES:
        assert not attributes.search(path.read_text(encoding="utf-8")), path


COMMAND = re.compile(
    r"(?<!usage: )(?<!<!-- )quintet "
    r"(list|train|resume|launch|evaluate|judges|sample|serve|compare|pack|encode|export|report|watch|replay|doctor|demo)\b"
)


def test_commands_are_suggested_in_one_place():
    """So that a test can run them all. The overview of the help is tested as such."""
    homes = [PACKAGE / "suggest.py", PACKAGE / "cli/common.py"]
    literals = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        if path not in homes
        for docs in [{id(line.value) for line in nodes_of(path, ast.Expr)}]
        for node in nodes_of(path, ast.Constant)
        if id(node) not in docs and isinstance(node.value, str) and COMMAND.search(node.value)
    ]
    assert literals == []
    assert all(site.startswith("suggest.py") for site in called("shlex.join", "shlex.quote"))


def test_nothing_asks_a_question():
    assert called("input", "getpass.getpass", "sys.stdin.readline") == []


def is_a_step(node: ast.expr) -> bool:
    """`step`, `run.step`, `steps_done`, or one of them less something."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return is_a_step(node.left)
    return isinstance(node, (ast.Name, ast.Attribute)) and "step" in ast.unparse(node)


def test_a_step_meets_a_modulo_only_in_when():
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        if path != PACKAGE / "engine" / "when.py"
        for node in nodes_of(path, ast.BinOp)
        if isinstance(node.op, ast.Mod) and is_a_step(node.left)
    ]
    assert found == []


def test_the_loop_fits_on_a_screen():
    lines = (PACKAGE / "engine" / "loop.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60


# -- the checks themselves ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "everywhere", "on_load"),
    [
        ("import torch.nn as nn", {"torch.nn"}, {"torch.nn"}),
        ("from torch import nn", {"torch.nn"}, {"torch.nn"}),
        ("from . import when", {"quintet.engine.when"}, {"quintet.engine.when"}),
        (
            "from ..nn.vq import VQ",
            {"quintet.nn.vq.VQ"},
            {"quintet.nn.vq.VQ"},
        ),
        ("def f():\n    import torch", {"torch"}, set()),
        ("class A:\n    import torch", {"torch"}, {"torch"}),
        ("try:\n    import torch\nexcept ImportError:\n    pass", {"torch"}, {"torch"}),
        (
            "if TYPE_CHECKING:\n    import torch\nelse:\n    import json",
            {"torch", "json"},
            {"json"},
        ),
    ],
)
def test_every_way_of_importing_is_seen(code, everywhere, on_load, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: code)
    path = PACKAGE / "engine" / "made_up.py"
    assert imports(path) == everywhere
    assert imports_on_load(path) == on_load
