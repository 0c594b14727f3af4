import ast
import dataclasses
import json
import math
import subprocess
import sys
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quintet
from quintet.engine.config import (
    ConfigError,
    OptimizerConfig,
    Recipe,
    differences,
    from_json,
    to_json,
)
from quintet.engine.settings import free_names
from quintet.image.config import ImageDataConfig
from quintet.image.vqgan.config import VQGanVAEConfig
from quintet.shared.tokenizer.config import DiscriminatorConfig

HOUSE = Path(quintet.__file__).parent
PAGES = [HOUSE / "engine" / "config.py", *HOUSE.glob("*/config.py")]
KINDS = [OptimizerConfig, Recipe, VQGanVAEConfig, DiscriminatorConfig, ImageDataConfig]


@dataclass(frozen=True, kw_only=True)
class Inner:
    needed: int
    share: float = 0.5
    choice: Literal["a", "b"] = "a"
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[str, ...] = ()
    maybe: int | None = None
    flag: bool = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=lambda: Inner(needed=1))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


@pytest.mark.parametrize("page", sorted(set(PAGES)), ids=lambda page: page.parent.name)
def test_every_setting_has_a_sentence_under_it(page):
    for kind in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
        if not isinstance(kind, ast.ClassDef) or not any(is_dataclass(d) for d in decorators(kind)):
            continue
        for here, below in zip(kind.body, [*kind.body[1:], None]):
            if isinstance(here, ast.AnnAssign):
                text = getattr(getattr(below, "value", None), "value", None)
                assert isinstance(below, ast.Expr), f"{kind.name}.{ast.unparse(here.target)}"
                assert isinstance(text, str), f"{kind.name}.{ast.unparse(here.target)}"
                assert text.strip().endswith("."), f"{kind.name}: {text!r} is no sentence"


def decorators(kind: ast.ClassDef) -> list[str]:
    return [ast.unparse(d) for d in kind.decorator_list]


def is_dataclass(decorator: str) -> bool:
    return decorator.split("(")[0].endswith("dataclass")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_frozen_and_given_by_keyword(kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kind(), dataclasses.fields(kind)[0].name, 1)
    with pytest.raises(TypeError):
        kind(1)


# -- to JSON and back -----------------------------------------------------------------------


def values(kind: Any) -> st.SearchStrategy:
    """Any value of an annotated type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return settings_of(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if a is type(None) else values(a) for a in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    plain = {int: st.integers(0, 9), float: st.floats(0, 1), str: st.text(max_size=4)}
    return st.booleans() if kind is bool else plain[kind]


def settings_of(kind: type) -> st.SearchStrategy:
    """Any instance that the type itself accepts."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    # What is drawn and refused by __post_init__ falls back to the default, field by field.
    return st.fixed_dictionaries({}, optional=fields).map(lambda found: accepted(kind, found))


def accepted(kind: type, found: dict[str, Any]) -> Any:
    given_: dict[str, Any] = {"needed": 3} if kind is Inner else {}
    for name, value in found.items():
        try:
            kind(**{**given_, name: value})
        except ValueError:
            continue
        given_[name] = value
    return kind(**given_)


@pytest.mark.parametrize("kind", [*KINDS, Inner, Outer])
def test_settings_survive_json_and_back(kind):
    @given(settings_of(kind))
    @settings(max_examples=40)
    def survives(config):
        assert from_json(kind, json.loads(json.dumps(to_json(config), allow_nan=False))) == config

    survives()


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=2)
    ),
    max_leaves=4,
)


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=200)
def test_whatever_stands_in_the_file_is_accepted_whole_or_refused_by_name(kind, data):
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(kind)]))
    item = data.draw(plain_json)
    try:
        config = from_json(kind, {name: item}, "part")
    except ConfigError as error:
        assert name in str(error)  # noqa: PT017
        assert "part" in str(error)  # noqa: PT017
    else:
        json.dumps(to_json(config), allow_nan=False)
        assert from_json(kind, to_json(config)) == config


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"inner": {"needed": 1, "stray": 2}}, r"inner\.stray"),
        ({"stray": 1}, "stray"),
        ({"inner": {}}, r"inner\.needed"),
        ({"inner": {"needed": True}}, r"inner\.needed is True"),
        ({"inner": {"needed": 1.0}}, r"inner\.needed"),
        ({"inner": {"needed": "1"}}, r"inner\.needed"),
        ({"inner": {"needed": None}}, r"inner\.needed"),
        ({"inner": {"needed": 1, "share": True}}, r"inner\.share"),
        ({"inner": {"needed": 1, "share": "x"}}, r"inner\.share"),
        ({"inner": {"needed": 1, "choice": "c"}}, r"inner\.choice.*'a', 'b'"),
        ({"inner": {"needed": 1, "pair": [1]}}, r"inner\.pair has 1 values"),
        ({"inner": {"needed": 1, "pair": [True, 1]}}, r"inner\.pair\[0\]"),
        ({"inner": {"needed": 1, "many": "abc"}}, r"inner\.many"),
        ({"inner": {"needed": 1, "many": [1]}}, r"inner\.many\[0\]"),
        ({"inner": {"needed": 1, "maybe": "x"}}, r"inner\.maybe"),
        ({"inner": {"needed": 1, "flag": 1}}, r"inner\.flag"),
        ({"inner": 3}, "inner must be an object"),
        ({"optimizer": {"learning_rate": -1.0}}, r"optimizer\.learning_rate is -1\.0"),
        ([], "must be an object"),
    ],
)
def test_a_wrong_file_is_refused_with_the_dotted_name(data, name):
    with pytest.raises(ConfigError, match=name):
        from_json(Outer, data)


def test_an_integer_serves_as_a_float_and_nothing_else_is_converted():
    config = from_json(Inner, {"needed": 1, "share": 1})
    assert type(config.share) is float


def test_a_contradiction_in_a_room_is_refused_with_the_dotted_name():
    with pytest.raises(ConfigError, match=r"model\.num_res_blocks"):
        from_json(VQGanVAEConfig, {"num_res_blocks": [1, 2]}, "model")


@pytest.mark.parametrize("number", [math.nan, math.inf, 10**400], ids=["nan", "inf", "huge"])
def test_a_number_that_json_cannot_hold_is_refused_where_it_enters(number):
    with pytest.raises(ConfigError, match=r"run\.minutes"):
        from_json(Recipe, {"minutes": number}, "run")


# -- contradictions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (OptimizerConfig, {"learning_rate": 0.0}),
        (OptimizerConfig, {"learning_rate": math.nan}),
        (OptimizerConfig, {"learning_rate": math.inf}),
        (OptimizerConfig, {"warmup_steps": -1}),
        (OptimizerConfig, {"ema_decay": 1.0}),
        (OptimizerConfig, {"final_lr_ratio": 1.5}),
        (OptimizerConfig, {"max_grad_norm": -1.0}),
        (OptimizerConfig, {"betas": (0.9, 1.0)}),
        (OptimizerConfig, {"weight_decay": -0.1}),
        (OptimizerConfig, {"eps": -1e-8}),
        (OptimizerConfig, {"optimizer": "sgd"}),
        (OptimizerConfig, {"scheduler": "poly"}),
        (Recipe, {"steps": 0}),
        (Recipe, {"batch_size": 0}),
        (Recipe, {"accumulate": 0}),
        (Recipe, {"log_every": 0}),
        (Recipe, {"keep_last": 0}),
        (Recipe, {"max_skipped": 0}),
        (Recipe, {"workers": -1}),
        (Recipe, {"evaluate_every": -1}),
        (Recipe, {"save_every": -1}),
        (Recipe, {"seed": -1}),
        (Recipe, {"trackers": ("abacus",)}),
        (Recipe, {"minutes": -1.0}),
        (Recipe, {"schedule_steps": 0}),
        (Recipe, {"max_damaged": -0.1}),
        (Recipe, {"max_damaged": 10.0}),
        (Recipe, {"processes": 0}),
        (Recipe, {"device": "tpu"}),
        (Recipe, {"precision": "fp16"}),
        (Recipe, {"compile": "yes"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_what_cannot_be_is_refused_by_name_with_a_remedy(kind, wrong):
    with pytest.raises(ConfigError) as refused:
        kind(**wrong)
    assert next(iter(wrong)) in str(refused.value)
    assert "must be" in str(refused.value)


def test_fp16_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="bf16"):
        from_json(Recipe, {"precision": "fp16"})
    with pytest.raises(ConfigError, match=r"(?i)overflow|range|scal"):
        Recipe(precision="fp16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_res_blocks": (1, 2)},
        {"patch_size": 0},
        {"channel_multipliers": ()},
        {"levels": (1,)},
        {"quantiser": "lfq", "codebook_bits": 31},
    ],
    ids=str,
)
def test_an_image_model_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        VQGanVAEConfig(**wrong)


# -- differences ----------------------------------------------------------------------------


def test_differences_are_named_by_their_dotted_path():
    old = to_json(Outer())
    new = to_json(Outer(optimizer=OptimizerConfig(learning_rate=1e-3)))
    assert differences(old, new) == {"optimizer.learning_rate": (3e-4, 1e-3)}
    assert differences(old, old) == {}
    assert differences({}, {"a": 1}) == {"a": (None, 1)}


@pytest.mark.parametrize("name", ["seed", "precision", "deterministic", "init_from"])
def test_what_changes_the_result_may_not_change_on_resume(name):
    assert name not in free_names(Recipe())


# -- help is instant ------------------------------------------------------------------------


def test_settings_import_no_torch():
    code = (
        "import sys, quintet.engine.config, quintet.engine.when, quintet.engine.errors, "
        "quintet.image.config; "
        "print([m for m in ('torch', 'numpy', 'accelerate', 'tyro') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
