"""The files that a code host reads: the workflow runs the commands of README.md, forms and citation
are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import quintet

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMS = sorted(path.name for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def job() -> dict[str, Any]:
    return read(GITHUB / "workflows/test.yml")["jobs"]["test"]


def test_the_workflow_runs_the_commands_of_the_readme(job: dict[str, Any]) -> None:
    commands = [step["run"].removeprefix(".venv/bin/") for step in job["steps"] if "run" in step]
    assert commands == ["make test", "make types", "quintet demo"]
    assert all(re.search(rf"^make {verb}$", README, re.MULTILINE) for verb in ("test", "demo"))


def test_the_workflow_covers_both_processors_and_the_oldest_python(job: dict[str, Any]) -> None:
    cells = job["strategy"]["matrix"]["include"]
    assert {cell["os"] for cell in cells} == {"ubuntu-24.04", "ubuntu-24.04-arm"}
    assert all(isinstance(cell["python"], str) for cell in cells)  # the number 3.10 would be 3.1
    oldest = min(tuple(map(int, cell["python"].split("."))) for cell in cells)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={oldest[0]}.{oldest[1]}"' in project


def test_the_workflow_can_only_read_and_names_versions_of_its_actions() -> None:
    workflow = read(GITHUB / "workflows/test.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads the key `on` as true
    used = [step["uses"] for step in workflow["jobs"]["test"]["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", name) for name in used)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "config.yml"])
def test_a_form_has_fields_with_labels_and_unique_names(name: str) -> None:
    form = read(GITHUB / "ISSUE_TEMPLATE" / name)
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_the_citation_names_this_version_and_licence() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == quintet.__version__
    assert citation["license"] == "Apache-2.0"
    assert citation["authors"]
