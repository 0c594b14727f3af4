"""The live page of runs: what has changed, and nothing outside of the folder."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from watched import make_run, report, write

from quintet.engine.errors import RunError
from quintet.engine.runs import requests
from quintet.engine.runs.folder import RunFolder
from quintet.watch.site import MAX_SHOWN, Site, is_held


def evaluation(step: int) -> dict[str, Any]:
    return {"step": step, "val/loss": 2.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "runs/a")
    write(run / "metrics.jsonl", *map(report, range(1, 6)), evaluation(5))
    return run


@pytest.fixture
def site(run: Path) -> Site:
    return Site(run, writes=True)


class Page:
    """What the script of the page keeps."""

    def __init__(self, site: Site, *names: str):
        self.site, self.names, self.have = site, names, {}

    def news(self) -> dict[str, Any]:
        news = self.site.news(self.names, self.have)
        self.have = json.loads(json.dumps({key: news[key] for key in ("digests", "at")}))
        return json.loads(json.dumps(news))


def test_the_first_answer_has_all_parts_and_the_next_none(site: Site) -> None:
    page = Page(site, "a")
    first = page.news()
    assert "vae/loss" in first["parts"]["curves-0"]
    assert "5 of 100" in first["parts"]["progress-0"]
    second = page.news()
    assert second["parts"] == {}
    assert second["points"] == {"curves-0": [{}]}


def test_every_part_has_its_place_on_the_page(site: Site) -> None:
    html = site.page([])
    for part in site.news(["a"], {})["digests"]:
        assert f'id="{part}"' in html


def test_a_report_costs_a_few_points_and_the_progress(run: Path, site: Site) -> None:
    page = Page(site, "a")
    page.news()
    write(run / "metrics.jsonl", report(6))
    news = page.news()
    assert set(news["parts"]) == {"progress-0"}
    (points,) = news["points"]["curves-0"]
    assert points["vae/loss"] == [[6], [1.0]]
    assert len(json.dumps(news)) < 3000


def test_a_new_line_of_a_plot_sends_the_curves(run: Path, site: Site) -> None:
    page = Page(site, "a")
    page.news()
    write(run / "metrics.jsonl", evaluation(6))  # two points make a line
    assert "validation" in page.news()["parts"]["curves-0"]


def test_a_resume_and_a_restarted_server_send_the_curves(run: Path, site: Site) -> None:
    page = Page(site, "a")
    page.news()
    RunFolder(run).forget_after(3)
    assert "curves-0" in page.news()["parts"]
    page.site = Site(run, writes=True)
    assert "curves-0" in page.news()["parts"]
    assert "curves-0" not in page.news()["parts"]


@pytest.mark.parametrize("have", [{"digests": 3, "at": []}, {"at": {"a": "x"}}, {"digests": []}])
def test_a_page_that_has_nonsense_gets_everything(have: Any, site: Site) -> None:
    assert site.news(["a"], have)["parts"]["curves-0"]


def test_new_samples_are_rendered_once(run: Path, site: Site) -> None:
    page = Page(site, "a")
    page.news()
    folder = run / "exhibits/step-00000005"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8), "teal").save(folder / "sheet.png")
    assert "data:image/png" in page.news()["parts"]["samples-0"]
    assert "samples-0" not in page.news()["parts"]
    Image.new("RGB", (9, 8), "red").save(folder / "sheet.png")
    assert "samples-0" in page.news()["parts"]


def test_warnings_and_the_time_left_are_shown(run: Path, site: Site) -> None:
    write(run / "events.jsonl", {"step": 5, "message": "health: too <b>odd</b>"})
    news = site.news(["a"], {})
    assert news["states"]["a"]["warnings"] == 1
    assert "too &lt;b&gt;odd" in news["parts"]["health-0"]
    assert "<dt>time left</dt><dd>47.5 s</dd>" in news["parts"]["progress-0"]
    assert "free on disk" in news["parts"]["progress-0"]


def state(site: Site) -> str:
    return site.news(["a"], {})["states"]["a"]["kind"]


def test_the_state_tells_a_run_that_goes_on_from_one_that_is_over(run: Path, site: Site) -> None:
    assert state(site) == "running"  # it has just written
    os.utime(run / "metrics.jsonl", (0, 0))
    assert state(site) == "stopped"
    write(run / "metrics.jsonl", report(100))
    assert state(site) == "finished"
    run.rename(run.with_name("b"))
    assert state(site) == "gone"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")
def test_a_run_is_known_by_its_lock(run: Path, site: Site) -> None:
    assert not is_held(run)
    folder = RunFolder(run)
    folder.lock()
    assert is_held(run)
    assert state(site) == "running"
    folder.unlock()
    assert not is_held(run)
    assert state(site) == "stopped"
    with pytest.raises(RunError, match="has stopped"):
        site.ask("a", "save")
    (run / ".lock").write_text("another start")  # of another machine
    assert state(site) == "running"


# -- several runs ---------------------------------------------------------------------------------


@pytest.fixture
def runs(run: Path) -> Path:
    other = make_run(run.parent / "deep/b", steps=50)
    write(other / "metrics.jsonl", *map(report, range(1, 4)))
    os.utime(run / "metrics.jsonl", (1, 1))
    return run.parent


def test_runs_of_a_folder_are_found_newest_first(runs: Path) -> None:
    make_run(runs / ".hidden/c")
    make_run(runs / "a/exhibits/d")
    (runs / "link").symlink_to(runs / "a")
    assert list(Site(runs, writes=True).paths()) == ["deep/b", "a"]


def test_the_newest_run_is_shown_unless_others_are_chosen(runs: Path) -> None:
    site = Site(runs, writes=True)
    assert re.findall('data-run="([^"]*)"', site.page([])) == ["deep/b"]
    assert re.findall('data-run="([^"]*)"', site.page(["a", "deep/b", "a"])) == ["a", "deep/b"]


def test_points_of_several_runs_come_in_the_order_of_the_plot(runs: Path) -> None:
    page = Page(Site(runs, writes=True), "a", "deep/b")
    assert '["deep/b", ' not in page.news()["parts"]["curves-0"]
    write(runs / "deep/b/metrics.jsonl", report(9))
    first, second = page.news()["points"]["curves-0"]
    assert first == {}
    assert second["vae/loss"] == [[9], [1.0]]


@pytest.mark.parametrize("name", ["..", "../runs/a", "/etc", "a/../a", "a\x00", "", "link"])
def test_a_name_that_is_no_run_of_the_folder_opens_nothing(name: str, runs: Path) -> None:
    (runs / "link").symlink_to(runs / "a")
    site = Site(runs, writes=True)
    assert site.news([name], {})["states"] == {}
    assert "data-run" not in site.page([name])
    with pytest.raises(RunError, match="there is no run"):
        site.ask(name, "save")


def test_a_page_shows_as_many_runs_as_there_are_colours(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(MAX_SHOWN + 3)]
    for name in names:
        make_run(tmp_path / name)
    assert len(Site(tmp_path, writes=True).news(names, {})["states"]) == MAX_SHOWN


def test_a_folder_without_runs_waits_for_one(tmp_path: Path) -> None:
    site = Site(tmp_path, writes=True)
    assert "There are no runs" in site.page([])
    make_run(tmp_path / "later")
    assert 'data-run="later"' in site.page([])
    with pytest.raises(RunError, match="name a run, or a folder of runs"):
        Site(tmp_path / "missing", writes=True)


# -- requests -------------------------------------------------------------------------------------


@pytest.fixture
def held(run: Path) -> Iterator[RunFolder]:
    folder = RunFolder(run)
    folder.lock()
    yield folder
    folder.unlock()


def test_a_button_writes_a_request_that_the_page_shows_until_it_is_taken(
    site: Site, held: RunFolder
) -> None:
    site.page([])
    assert site.ask("a", "save") == ["save"]
    assert site.news(["a"], {})["states"]["a"]["asked"] == ["save"]
    assert requests.take(held)[0] == ["save"]
    assert site.news(["a"], {})["states"]["a"]["asked"] == []


def test_a_page_to_read_has_no_buttons_and_writes_nothing(run: Path, held: RunFolder) -> None:
    site = Site(run, writes=False)
    assert "data-action" not in site.page([])
    with pytest.raises(RunError, match="read-only"):
        site.ask("a", "stop")
    assert not requests.file_of(run).exists()


def test_watching_changes_nothing_in_the_folder(run: Path, site: Site) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    site.page([])
    site.news(["a"], {})
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


def test_a_new_run_is_offered_without_loading_the_page_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(Site(run.parent, writes=False), "a")
    assert 'value="a" checked' in page.news()["parts"]["chooser"]
    make_run(run.parent / "b")
    assert page.news()["parts"] == {}  # the folder was searched a moment ago
    monkeypatch.setattr("quintet.watch.site.LISTED", 0.0)
    assert 'value="b"' in page.news()["parts"]["chooser"]
