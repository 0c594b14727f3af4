"""What clients ask of a server is what `quintet sample` writes, byte for byte."""

import io
import json
import os
import re
import socket
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Client, serving

from quintet.media.meshes.files import write_mesh
from quintet.media.pixels import write_png
from quintet.serve.worker import Capacity


def written(cli: Any, folder: Path, model: Path, *words: object) -> dict[str, bytes]:
    """What the command writes into a folder `out` where its inputs are."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        said = cli("sample", model, *words, "--out", "out", "--device", "cpu")
    finally:
        os.chdir(before)
    assert said.status == 0, said.err
    paths = [folder / name for name in said.out.splitlines() if (folder / name).is_file()]
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes() for path in paths}


def image(seed: int = 0, side: int = 16) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


SAME: list[tuple[str, dict[str, Any], list[object]]] = [
    ("maskgit", {"text": ["a star", "two rings"], "count": 2, "seed": 4, "steps": 2}, []),
    ("image_flow", {"text": ["a star"], "count": 2, "seed": 2**40, "steps": 2}, []),
    ("image_flow", {"text": ["a star"], "count": 1, "size": [8, 16], "steps": 2}, []),
    ("transformer", {"count": 2, "seed": 1, "max_faces": 4, "format": "obj"}, []),
    ("voicebox", {"text": ["ba do. ki ba."], "seed": 3, "steps": 2, "seconds": 0.5}, []),
    ("music_flow", {"text": ["a tone"], "count": 1, "seed": 2, "steps": 2, "seconds": 0.3}, []),
    ("video_maskgit", {"text": ["a star"], "count": 1, "seed": 5, "steps": 2}, []),
]


@pytest.mark.by_default("maskgit-*", "transformer-*", "voicebox-*")
@pytest.mark.parametrize(("name", "flags", "words"), SAME)
def test_an_answer_equals_the_command(
    name: str,
    flags: dict[str, Any],
    words: list[object],
    served: Client,
    exports: Any,
    cli: Any,
    tmp_path: Path,
) -> None:
    for flag, value in flags.items():
        values = value if isinstance(value, list) else [value]
        words = [*words, f"--{flag.replace('_', '-')}", *values]
    expected = written(cli, tmp_path, exports[name], *words)
    assert served.files(f"/v1/models/{name}/sample", flags) == expected
    assert expected


def test_uploaded_files_give_what_the_command_makes_of_them(
    served: Client, exports: Any, cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "a photo.png").write_bytes(image())
    expected = written(cli, tmp_path, exports["vae"], "a photo.png")
    found = served.files("/v1/models/vae/sample", files=[("input", "a photo.png", image())])
    assert found == expected


def test_painting_takes_files_of_flags(
    served: Client, exports: Any, cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "i.png").write_bytes(image())
    write_png(
        tmp_path / "m.png", np.pad(np.full((16, 8, 3), 255, np.uint8), ((0, 0), (8, 0), (0, 0)))
    )
    words = ["--image", "i.png", "--mask", "m.png", "--count", 1, "--steps", 2, "--text", "a star"]
    expected = written(cli, tmp_path, exports["image_flow"], *words)
    mask = (tmp_path / "m.png").read_bytes()
    files = [("image", "i.png", image()), ("mask", "m.png", mask)]
    values = {"count": 1, "steps": 2, "text": "a star"}
    assert served.files("/v1/models/image_flow/sample", values, files=files) == expected


def test_a_song_goes_on_from_an_uploaded_file(
    served: Client, exports: Any, cli: Any, tmp_path: Path, voice: Path
) -> None:
    (tmp_path / "song.wav").write_bytes(voice.read_bytes())
    words = ["--text", "a tone", "--count", 1, "--steps", 2, "--seconds", 0.6]
    expected = written(cli, tmp_path, exports["music_flow"], *words, "--continue", "song.wav")
    files = [("continue", "song.wav", voice.read_bytes())]
    values = {"text": "a tone", "count": 1, "steps": 2, "seconds": 0.6}
    assert served.files("/v1/models/music_flow/sample", values, files=files) == expected
    assert "00-a-tone-000.wav" in expected


def test_requests_that_share_a_batch_are_those_of_each_alone(exports: Any) -> None:
    """And one that fails leaves the others alone."""
    texts = ["a star", "two rings on white", "a red star"] * 4
    bodies = [
        {"text": [text], "count": 1 + n % 2, "seed": n, "steps": 2} for n, text in enumerate(texts)
    ]
    bodies.append({"text": [" "], "count": 1, "steps": 2})
    path = "/v1/models/image_flow/sample"
    models = [("image_flow", exports["image_flow"])]
    with serving(models, Capacity(window=0.05)) as client, ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: client.ask(path, body), bodies))
        assert client.server.worker.counts["batched"] > client.server.worker.counts["batches"]
        alone = [client.ask(path, body) for body in bodies]
    assert [(a[0], a[2]) for a in together] == [(a[0], a[2]) for a in alone]
    assert [a[0] for a in alone] == [200] * 12 + [400]


def test_one_file_or_a_zip_comes_by_accept(served: Client) -> None:
    flags = {"text": ["a star"], "count": 2, "steps": 2, "seed": 3}
    path = "/v1/models/maskgit/sample"
    files = served.files(path, flags)
    status, headers, body = served.ask(path, flags, Accept="image/png")
    assert (status, headers["content-type"], headers["x-quintet-seed"]) == (200, "image/png", "3")
    assert body == files["00-a-star-000.png"]
    _, _, body = served.ask(path, flags, Accept="application/zip")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files


def test_rankings_name_files_as_the_client_does(served: Client, voice: Path) -> None:
    files = [("input", "a.wav", voice.read_bytes()), ("input", "b.wav", voice.read_bytes())]
    found = served.json("/v1/models/mulan/sample", {"text": "slow"}, files=files)
    assert re.fullmatch(r"  1\. [+-]\d\.\d+  [ab]\.wav", found["lines"][1])
    assert "quintet-serve" not in json.dumps(found)


REFUSED: list[tuple[str, Any, str]] = [
    ("maskgit", {"text": "a star"}, "text is 'a star'; it must be a list"),
    ("maskgit", {"txt": ["a"]}, "has no flag 'txt'"),
    ("maskgit", {"count": 33}, "count is 33; 32 at most"),
    ("maskgit", {"count": 0}, "must be above 0"),
    ("maskgit", {"count": True}, "count is True; it must be int"),
    ("maskgit", {"count": 8, "text": ["a"] * 9}, "72 samples; 64 at most"),
    ("maskgit", {"text": ["a"] * 17}, "text has 17 values; 16 at most"),
    ("maskgit", {"text": ["a" * 4001]}, "4001 characters; 4000 at most"),
    ("maskgit", {"text": ["a\0"]}, "not valid text"),
    ("maskgit", {"cond_scale": 1e999}, "Infinity is no number"),
    ("maskgit", {"cond_scale": -1e9}, "1000 at most"),
    ("maskgit", {"image": "/etc/passwd"}, "image takes a file of this request"),
    ("maskgit", {"device": "cuda"}, "has no flag 'device'"),
    ("image_flow", {"size": [4096, 16]}, "size is 4096; 1024 at most"),
    ("voicebox", {"text": ["a"], "voice": "../anna.wav"}, "voice takes a file .* one of anna"),
    ("voicebox", {"text": ["a"], "vocoder": "/"}, "vocoder takes a file"),
    ("vae", {}, "give images"),
    ("maskgit", [1], "must be a JSON object"),
    ("maskgit", b"{", "not valid JSON"),
    ("maskgit", b"[" * 100_000, "not valid JSON"),
    ("maskgit", b"\xff", "not valid JSON"),
]


@pytest.mark.parametrize(("name", "body", "sentence"), REFUSED)
def test_wrong_values_are_refused_with_a_sentence(
    name: str, body: Any, sentence: str, served: Client
) -> None:
    assert re.search(sentence, served.refusal(400, f"/v1/models/{name}/sample", body))


def test_wrong_files_are_refused_with_a_sentence(served: Client) -> None:
    path = "/v1/models/vae/sample"
    refusal = served.refusal(400, path, files=[("input", "../../a.png", b"no image")])
    assert refusal.startswith("a.png: is not one of")
    twice = [("input", "x/a.png", image()), ("input", "y\\a.png", image())]
    assert "two files are named a.png" in served.refusal(400, path, files=twice)
    assert "takes no file" in served.refusal(400, path, files=[("count", "a.png", image())])
    many = [("input", f"{n}.png", b"") for n in range(17)]
    assert "Too many files" in served.refusal(400, path, files=many)
    served.refusal(415, path, b"<a/>", Content_Type="text/xml")
    served.refusal(400, path, b"--x", Content_Type="multipart/form-data; boundary=a")
    served.refusal(400, path, b"--x", Content_Type="multipart/form-data")
    assert "there are image_flow" in served.refusal(404, "/v1/models/none/sample", {})


def test_no_path_of_the_server_is_shown(served: Client, exports: Any) -> None:
    refusal = served.refusal(400, "/v1/models/voicebox/sample", {"text": ["a"], "vocoder": "anna"})
    assert "anna" in refusal
    for name in ("vae", "mulan", "maskgit"):
        body = {} if name != "maskgit" else {"image": "anna"}
        refusal = served.refusal(400, f"/v1/models/{name}/sample", body)
        assert str(exports[name].parent) not in refusal
    assert str(exports["vae"].parent) not in json.dumps(served.json("/v1/models"))


class Waits:
    """Work that lasts until it is let go."""

    key = None
    samples = 1

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def run(self) -> str:
        self.begun.set()
        self.end.wait(10)
        return "done"


def test_a_full_queue_and_a_late_answer_are_refused(exports: Any) -> None:
    path, body = "/v1/models/maskgit/sample", {"count": 1, "steps": 1}
    models, blocker = [("maskgit", exports["maskgit"])], Waits()
    with serving(models, Capacity(queue=1, seconds=0.4)) as client:
        client.server.worker.submit(blocker, lambda answer: None)
        blocker.begun.wait(5)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.ask, path, body)
            while not client.server.worker.waiting:
                time.sleep(0.005)
            status, headers, _ = client.ask(path, body)
            assert (status, headers["retry-after"]) == (503, "2")
            assert waiting.result()[0] == 504
        assert client.server.worker.waiting == []
        blocker.end.set()
        assert client.ask(path, body)[0] == 200


def test_a_request_whose_client_is_gone_is_dropped(exports: Any) -> None:
    blocker = Waits()
    with serving([("maskgit", exports["maskgit"])]) as client:
        worker = client.server.worker
        worker.submit(blocker, lambda answer: None)
        blocker.begun.wait(5)
        with socket.create_connection(("127.0.0.1", client.access.port)) as connection:
            head = "POST /v1/models/maskgit/sample HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
            wait_until(lambda: worker.waiting)
        wait_until(lambda: not worker.waiting)
        assert worker.counts["dropped"] == 1
        blocker.end.set()


def test_work_ends_between_steps_when_its_client_is_gone(exports: Any) -> None:
    body = json.dumps({"count": 32, "steps": 250}).encode()
    head = f"POST /v1/models/it/sample HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    with serving([("it", exports["image_flow"])]) as client:
        worker = client.server.worker
        with socket.create_connection(("127.0.0.1", client.access.port)) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            wait_until(lambda: worker.running)
        began = time.monotonic()
        wait_until(lambda: not worker.running)
        assert time.monotonic() - began < 2  # all steps take much longer
        assert client.ask("/v1/models/it/sample", {"count": 1, "steps": 1})[0] == 200


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_health_metrics_and_descriptions(served: Client, capfd: Any) -> None:
    assert served.json("/health")["status"] == "ok"
    served.ask("/v1/models/maskgit/sample", {"text": ["a secret star"], "steps": 1, "count": 1})
    assert "secret" not in capfd.readouterr().err
    assert "quintet_requests_total" in served.ask("/metrics")[2].decode()
    models = served.json("/v1/models")["data"]
    assert {model["id"] for model in models} == set(served.server.models)
    described = served.json("/openapi.json")
    assert "/v1/models/maskgit/sample" in described["paths"]
    page = served.ask("/docs")[2].decode()
    assert "<script" not in page
    assert "Classifier-free guidance scale" in page


def test_reconstruction_of_a_mesh(served: Client, tmp_path: Path, exports: Any) -> None:
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    faces = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]])
    write_mesh(tmp_path / "a.obj", corners, faces)
    mesh = (tmp_path / "a.obj").read_bytes()
    with serving([("autoencoder", exports["transformer"] / "autoencoder")]) as client:
        files = client.files("/v1/reconstructions", files=[("file", "a.obj", mesh)])
    assert {"a.original.glb", "a.reconstruction.glb"} <= set(files)
