"""`quintet judges` and `quintet evaluate --pair`, as a user calls them."""

import json
from pathlib import Path

import pytest
from command import Quintet, picture
from PIL import Image

from judges.conftest import all_judges


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path / "weights"))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Pictures, and their copies as JPEG."""
    for number in range(6):
        original = picture(tmp_path / "originals" / "sub" / f"{number}.png", number)
        copy = tmp_path / "copies" / "sub" / f"{number}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(original).save(copy, quality=80)
    return tmp_path / "originals", tmp_path / "copies"


def test_every_judge_is_listed_with_what_it_needs(quintet: Quintet, tmp_path: Path) -> None:
    answer = quintet("judges")
    assert answer.status == 0
    for judge in all_judges():
        assert judge.name in answer.out
        problem = judge().problem()
        assert problem is None or problem in answer.out
    assert str(tmp_path / "weights" / "inception.safetensors") in answer.out


def test_two_folders_are_judged_without_a_run(quintet: Quintet, folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    answer = quintet("evaluate", "--pair", str(originals), str(copies))
    assert answer.status == 0, answer.err
    scores = json.loads(answer.out.splitlines()[-1])
    assert set(scores) == {"psnr", "ssim"}
    assert scores["psnr"]["low"] < scores["psnr"]["value"] < scores["psnr"]["high"]
    assert scores["psnr"]["receipt"]["count"] == 6
    assert "not judged: lpips_vgg" in answer.err
    same = quintet("evaluate", "--pair", str(originals), str(originals), "--judges", "psnr")
    assert json.loads(same.out.splitlines()[-1])["psnr"]["value"] == 100


def test_the_receipt_says_how_pictures_were_prepared(
    quintet: Quintet, folders: tuple[Path, Path]
) -> None:
    pair = ["evaluate", "--pair", *map(str, folders), "--judges", "psnr"]
    scores = [
        json.loads(quintet(*pair, *size).out.splitlines()[-1])["psnr"]
        for size in ([], ["--size", "32"])
    ]
    assert scores[0]["receipt"]["reference"] == scores[1]["receipt"]["reference"]
    assert scores[0]["digest"] != scores[1]["digest"]


def test_numbers_of_one_receipt_stand_side_by_side_and_others_are_refused(
    quintet: Quintet, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    originals, copies = map(str, folders)
    calls = {"jpeg": [copies], "itself": [originals], "small": [copies, "--size", "32"]}
    files: dict[str, str] = {}
    for name, words in calls.items():
        answer = quintet("evaluate", "--pair", originals, *words, "--judges=psnr", "--json-line")
        files[name] = str(tmp_path / f"{name}.json")
        Path(files[name]).write_text(answer.out)
    answer = quintet("compare", files["jpeg"], files["itself"])
    assert answer.status == 0, answer.err
    assert "100" in answer.out
    answer = quintet("compare", files["jpeg"], files["small"])
    assert answer.status == 2
    assert "cannot be compared" in answer.err
    assert "size is as stored and 32 x 32" in answer.err
    changed = Path(files["small"]).read_text().replace("32 x 32", "as stored")
    Path(files["small"]).write_text(changed)
    answer = quintet("compare", files["jpeg"], files["small"])
    assert "the receipt of psnr has another digest" in answer.err
    assert "--page is for tokenizers" in quintet("compare", files["jpeg"], "--page=a.html").err
    Path(files["small"]).write_text("[1]")
    assert "does not end with a line of scores" in quintet("compare", files["small"]).err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--judges", "fid"], "the judge fid needs the Inception-v3"),
        (["--judges", "beauty"], "there is no judge 'beauty' of image; there are psnr"),
        (["--size", "0"], "--size is 0; it must be above 0"),
        (["--medium", "mesh"], "has no files that end in"),
    ],
)
def test_what_cannot_be_judged_is_said_in_a_sentence(
    quintet: Quintet, folders: tuple[Path, Path], flags: list[str], sentence: str
) -> None:
    answer = quintet("evaluate", "--pair", *map(str, folders), *flags)
    assert answer.status == 2
    assert sentence in answer.err
    assert "Traceback" not in answer.err
