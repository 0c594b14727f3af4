import json
import os
import pickle
from pathlib import Path

import pytest

from quintet.files import OUTPUTS, atomic_write, marking_outputs
from quintet.media import folder
from quintet.media.errors import BadFile
from quintet.media.folder import files, listing, read_metadata, relative_name
from quintet.media.splits import passed_over


def touch(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def names(root: Path) -> list[str]:
    return [relative_name(root, path) for path in files(root, [".png", ".jpg"])]


def test_files_come_sorted_from_sub_folders_in_any_case(tmp_path):
    for name in ("b/2.png", "a/1.JPG", "c.png", "a/1.txt", "b.png"):
        touch(tmp_path / name)
    assert names(tmp_path) == ["a/1.JPG", "b.png", "b/2.png", "c.png"]


def test_hidden_files_and_folders_are_left_out(tmp_path):
    for name in (".hidden.png", ".cache/a.png", "a.png", ".png"):
        touch(tmp_path / name)
    assert names(tmp_path) == ["a.png"]


def test_links_out_of_the_folder_are_skipped_and_others_followed(tmp_path):
    outside = touch(tmp_path / "outside/secret.png").parent
    root = touch(tmp_path / "data/a.png").parent
    (root / "link-out.png").symlink_to(outside / "secret.png")
    (root / "folder-out").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "inside.png").symlink_to(root / "a.png")
    (root / "broken.png").symlink_to(root / "gone.png")
    assert names(root) == ["a.png", "inside.png"]


def test_links_out_and_formats_that_are_not_read_are_counted(tmp_path):
    outside = touch(tmp_path / "outside/secret.png").parent
    root = touch(tmp_path / "data/a.png").parent
    for name in ("b.TIF", "c.tif", "sub/d.heic", "notes.txt", ".hidden.tif"):
        touch(root / name)
    (root / "link-out.png").symlink_to(outside / "secret.png")
    (root / "sub/folder-out").symlink_to(outside)
    (root / "loop").symlink_to(root)
    found = listing(root, [".png"], (".tif", ".heic"))
    assert found.names == ["a.png"]
    assert found.others == {".tif": 2, ".heic": 1}
    assert found.links == 2
    lines = list(passed_over(found, "save them as png"))
    assert lines[0] == "left out, formats that are not read: 2 .tif, 1 .heic; save them as png"
    assert lines[1].startswith("left out, links that lead out of the folder: 2")


def test_a_neighbour_with_the_same_beginning_is_outside(tmp_path):
    touch(tmp_path / "data-secret/a.png")
    root = touch(tmp_path / "data/b.png").parent
    (root / "c.png").symlink_to(tmp_path / "data-secret/a.png")
    assert names(root) == ["b.png"]


def test_a_folder_reached_by_a_link_is_walked(tmp_path):
    touch(tmp_path / "real/a.png")
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    assert names(tmp_path / "alias") == ["a.png"]


def test_a_pipe_named_like_an_image_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    assert names(tmp_path) == []


def test_a_missing_folder_and_a_file_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(BadFile, match="does not exist; give the folder"):
        files(tmp_path / "gone", [".png"])
    with pytest.raises(BadFile, match="is a file, not a folder; give its folder"):
        files(touch(tmp_path / "a.png"), [".png"])


def test_a_bad_file_survives_a_worker_and_a_terminal():
    bad = pickle.loads(pickle.dumps(BadFile("a\x1b[31m\udcff.png", "is empty", "remove it")))
    assert str(bad) == "a�[31m�.png: is empty; remove it"
    str(bad).encode()


def jsonl(root: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return touch(root / "metadata.jsonl", "\n".join(lines))


def test_jsonl_is_read_by_any_spelling_and_other_columns_are_kept(tmp_path):
    jsonl(
        tmp_path,
        {"file_name": "a.png", "text": "one", "speaker": 3},
        "",
        {"file": "sub/b.png", "caption": "two"},
        {"path": "./c.png", "captions": ["three", "drei"]},
        {"file_name": "sub\\d.png", "text": None, "sentence": "four"},
        {"file_name": "e.png"},
    )
    rows = read_metadata(tmp_path)
    assert rows["a.png"] == {"file_name": "a.png", "text": "one", "speaker": 3}
    assert [rows[name]["text"] for name in ("sub/b.png", "c.png", "sub/d.png")] == [
        "two",
        "three",
        "four",
    ]
    assert "caption" not in rows["sub/b.png"]
    assert rows["c.png"]["captions"] == ["three", "drei"]
    assert rows["e.png"].get("text") is None


def test_csv_is_read_with_quotes_and_a_byte_order_mark(tmp_path):
    touch(tmp_path / "metadata.csv", '\ufefffile_name,transcript,mood\na.png,"red, blue",calm\n')
    assert read_metadata(tmp_path) == {
        "a.png": {"file_name": "a.png", "text": "red, blue", "mood": "calm"}
    }


def test_a_table_with_bars_keeps_its_quotation_marks(tmp_path):
    touch(tmp_path / "metadata.csv", '\ufefffile_name|text|speaker\na.wav|"No", he said, "no|3\n')
    assert read_metadata(tmp_path) == {
        "a.wav": {"file_name": "a.wav", "text": '"No", he said, "no', "speaker": "3"}
    }


def test_no_metadata_is_no_error(tmp_path):
    assert read_metadata(tmp_path) == {}


def test_of_several_rows_for_a_file_the_first_counts(tmp_path):
    jsonl(tmp_path, {"file": "a.png", "text": "one"}, {"file": "a.png", "text": "two"})
    assert read_metadata(tmp_path)["a.png"]["text"] == "one"


@pytest.mark.parametrize(
    "name", ["../a.png", "b/../../a.png", "/etc/passwd", "C:\\a.png", "..\\a.png", "a\0.png"]
)
def test_metadata_cannot_name_a_path_outside(tmp_path, name):
    jsonl(tmp_path, {"file_name": "ok.png"}, {"file_name": name})
    with pytest.raises(BadFile, match=r"metadata.jsonl: line 2: .* leads out of the folder; give"):
        read_metadata(tmp_path)


def test_metadata_cannot_name_a_path_that_leads_outside_by_a_link(tmp_path):
    touch(tmp_path / "outside/secret.png")
    root = jsonl(tmp_path / "data", {"file_name": "door/secret.png"}).parent
    (root / "door").symlink_to(tmp_path / "outside")
    with pytest.raises(BadFile, match="leads out of the folder"):
        read_metadata(root)


def test_metadata_that_is_itself_a_link_outside_is_refused(tmp_path):
    secret = touch(tmp_path / "secret.jsonl", '{"file_name": "a.png"}')
    root = touch(tmp_path / "data/a.png").parent
    (root / "metadata.jsonl").symlink_to(secret)
    with pytest.raises(BadFile, match="link that leads out of the folder; copy"):
        read_metadata(root)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"file_name": "a.png"', "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"text": "lost"}', "line 2 names no file; give a column `file_name`"),
        ('{"file_name": 7}', "line 2 names no file"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, reason):
    jsonl(tmp_path, {"file_name": "ok.png"}, line)
    with pytest.raises(BadFile, match=reason):
        read_metadata(tmp_path)


def test_a_csv_field_without_end_and_bytes_that_are_no_text_are_refused(tmp_path):
    touch(tmp_path / "metadata.csv", "file_name,text\na.png," + "x" * 200_000)
    with pytest.raises(BadFile, match="line 2 is not CSV"):
        read_metadata(tmp_path)
    (tmp_path / "metadata.csv").write_bytes(b"file_name,text\na.png,\xff\xfe\n")
    with pytest.raises(BadFile, match="is not UTF-8"):
        read_metadata(tmp_path)


def test_metadata_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "METADATA_MAX_BYTES", 10)
    jsonl(tmp_path, {"file_name": "a.png"})
    with pytest.raises(BadFile, match="split the data folder"):
        read_metadata(tmp_path)


def test_runs_exports_and_caches_are_no_data(tmp_path: Path) -> None:
    for name in ("a.png", "run/exhibits/step-00000004/b.png", "model/c.png", "cache/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "run/config.json").write_text('{"quintet": "0.1.0", "recipe": "image/vqgan"}')
    (tmp_path / "model/config.json").write_text('{"quintet": "0.1.0", "model": "image/vqgan"}')
    (tmp_path / "cache/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert listing(tmp_path, [".png"]).names == ["a.png"]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/config.json").write_text('{"architectures": ["ViT"]}')
    (tmp_path / "foreign/e.png").write_bytes(b"x")
    assert listing(tmp_path, [".png"]).names == ["a.png", "foreign/e.png"]
    with pytest.raises(BadFile, match="run, an export or a cache"):
        listing(tmp_path / "run", [".png"])


def test_outputs_of_commands_are_counted_and_are_no_data_beside_files_of_the_user(tmp_path):
    for name in ("own.png", "sub/own.png", "sub/old.png"):
        touch(tmp_path / name)
    with marking_outputs():
        for name in ("made.png", "sub/old.png", 'sub/a "b"\n.jpg', "sub/made.txt"):
            atomic_write(tmp_path / name, b"x")
    with open(tmp_path / OUTPUTS, "a") as marks:  # a line that a kill has cut
        marks.write('"cut.p\n')
    atomic_write(tmp_path / "later.png", b"x")
    found = listing(tmp_path, [".png", ".jpg"])
    assert found.names == ["later.png", "own.png", "sub/own.png"]
    assert found.outputs == 3
    (line,) = passed_over(found)
    assert line.startswith("left out, outputs of `sample` or `evaluate`: 3; delete")
    assert len(listing(tmp_path, [".png", ".jpg"], outputs=True).names) == 6
    assert [path.name for path in files(tmp_path, [".txt"])] == []
