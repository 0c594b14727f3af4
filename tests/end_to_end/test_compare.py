"""`quintet compare` as a person gives it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Quintet, Said, picture

from quintet.cli import main


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another quantiser, with fewer codes."""
    run = tmp_path_factory.mktemp("other") / "run"
    settings = ["--steps", "2", "--model.levels", "4", "4"]
    with pytest.raises(SystemExit) as ended:
        main(["train", "image/vqgan_tiny", "--run", str(run), *TINY, *settings])
    assert not ended.value.code
    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for index in range(3):
        picture(tmp_path / f"pictures/{index}.png", index, 40 + 9 * index, 60 - index)
    return tmp_path / "pictures"


def test_runs_and_exports_stand_in_one_table(
    trained: Path, exported: Path, other: Path, pictures: Path, quintet: Quintet
) -> None:
    said = quintet("compare", pictures, trained, exported, other, "--device", "cpu")
    assert said.status == 0, said.err
    header, *rows = said.out.splitlines()[:4]
    assert "PSNR, dB" in header
    assert "bits/pixel" in header
    assert "40 x 56, sides divisible by 8" in said.out
    assert "sorted by bits per pixel" in said.out
    result = json.loads(said.out.splitlines()[-1])
    found = {one["name"]: one for one in result["tokenizers"]}
    assert result["tokenizers"][0]["name"] == str(other)  # the lowest rate
    assert str(other) in rows[0]
    assert found[str(other)]["scores"]["bits_per_pixel"]["value"] == 4 / 64
    run, export = found[str(trained)], found[str(exported)]
    assert run["weights"] == export["weights"] != found[str(other)]["weights"]
    assert run["scores"]["psnr"] == export["scores"]["psnr"]
    receipts = {one["scores"]["psnr"]["digest"] for one in found.values()}
    assert len(receipts) == 1


def test_a_comparison_says_what_each_run_was_trained_on(
    trained: Path, exported: Path, pictures: Path, tmp_path: Path, quintet: Quintet
) -> None:
    run, copies = tmp_path / "run", tmp_path / "copies"
    for index in range(8):
        picture(tmp_path / f"data/{index}.png", index, 40 + 9 * index, 60 - index)
    train = ["train", "image/vqgan_tiny", tmp_path / "data", "--run", run, *TINY, "--steps", 1]
    assert quintet(*train).status == 0
    held_out = json.loads((run / "data.json").read_text())["valid"]
    expected = len({"0.png", "1.png", "2.png"} - {*held_out})
    pictures.rename(copies)  # of the same content as the first of the data
    said = quintet("compare", copies, run, trained, exported, "--device", "cpu")
    assert said.status == 0, said.err
    counts = {one["name"]: one["trained_on"] for one in answer_of(said)["tokenizers"]}
    assert counts == {str(run): expected, str(trained): 0, str(exported): None}
    assert f"{expected} of 3" in said.out
    assert f"{run} was trained on {tmp_path / 'data'}: its numbers are optimistic" in said.out
    assert f"{trained} was trained on built-in data\n" in said.out


def answer_of(said: Said) -> dict[str, Any]:
    return json.loads(said.out.splitlines()[-1])


def test_the_page_holds_everything_and_loads_nothing(
    trained: Path, other: Path, pictures: Path, tmp_path: Path, quintet: Quintet
) -> None:
    page = tmp_path / "page.html"
    words = ("compare", pictures, trained, other, "--page", page, "--device", "cpu")
    assert quintet(*words).status == 0
    html = page.read_text()
    assert html.count("data:image/png;base64,") == 3 * 3
    assert html.count("<circle") == 2
    assert "<script" not in html
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    assert quintet(*words).status == 0  # its own page may be written again
    page.write_text("mine")
    said = quintet(*words)
    assert said.status == 2
    assert "choose another --page" in said.err
    assert page.read_text() == "mine"


def test_continuous_latents_stand_in_the_same_table(
    trained: Path, continuous: Path, pictures: Path, tmp_path: Path, quintet: Quintet
) -> None:
    page = tmp_path / "page.html"
    said = quintet("compare", pictures, continuous, trained, "--page", page, "--device", "cpu")
    assert said.status == 0, said.err
    header, first, second = said.out.splitlines()[:3]
    assert header.split()[-1] == "channels/position"
    assert str(trained) in first
    assert first.endswith("–")
    assert str(continuous) in second
    assert "continuous" in second.replace(str(continuous), "")
    assert second.endswith(" 3")
    assert page.read_text().count("<circle") == 1
    alone = quintet("compare", pictures, continuous, "--page", page, "--device", "cpu")
    assert alone.status == 0, alone.err
    assert "bits/pixel" not in alone.out
    assert "Continuous latents have no rate" in page.read_text()


def test_names_in_the_page_are_escaped(
    exported: Path, pictures: Path, tmp_path: Path, quintet: Quintet
) -> None:
    named = tmp_path / "<b onclick=x>"
    named.symlink_to(exported)
    page = tmp_path / "page.html"
    assert quintet("compare", pictures, named, "--page", page, "--device", "cpu").status == 0
    assert "<b onclick" not in page.read_text()


def test_what_cannot_be_compared_is_a_sentence(
    trained: Path, pictures: Path, tmp_path: Path, quintet: Quintet
) -> None:
    import quintet as library

    library.VideoTokenizer(init_dim=8).save_pretrained(tmp_path / "video")
    library.VQGanVAE(dim=8, channels=1).save_pretrained(tmp_path / "grey")
    (tmp_path / "empty").mkdir()
    for words, answer in (
        ((pictures,), "name a run or a model"),
        ((pictures, tmp_path / "video"), "only image tokenizers and audio codecs can be compared"),
        ((pictures, tmp_path / "grey"), "has 1 channels"),
        ((pictures, tmp_path / "none"), "none"),
        ((tmp_path / "empty", trained), "holds no pictures"),
        ((tmp_path / "nowhere", trained), "is not a file or a folder"),
        ((pictures, trained, "--size", "30", "30"), "divisible by 8"),
        ((pictures, trained, "--count", "0"), "--count is 0"),
    ):
        said = quintet("compare", *words)
        assert said.status == 2, words
        assert answer in said.err


def test_a_count_takes_the_first_pictures(trained: Path, pictures: Path, quintet: Quintet) -> None:
    said = quintet("compare", pictures, trained, "--count", "2", "--device", "cpu")
    result = json.loads(said.out.splitlines()[-1])
    assert result["tokenizers"][0]["scores"]["psnr"]["receipt"]["count"] == 2
