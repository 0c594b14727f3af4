"""Models as folders and on the Hub: a local server speaks as much of the Hub as the client asks."""

import base64
import hashlib
import json
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import Pretrained

TOKEN = "hf_of_the_test"


def image() -> Pretrained:
    return quintet.VQGanVAE(
        dim=8, patch_size=4, channel_multipliers=(1, 2), num_res_blocks=(1,), levels=(4, 4)
    )


def video() -> Pretrained:
    return quintet.VideoTokenizer(init_dim=8, layers=("residual", "compress_time"), levels=(4, 4))


def music() -> Pretrained:
    small = {"n_fft": 256, "n_mels": 16, "dim": 16, "layers": 1, "heads": 1, "head_dim": 16}
    text = {"text_dim": 16, "text_layers": 1, "text_heads": 1, "text_head_dim": 16}
    return quintet.MuLaN(sample_rate=8000, **small, **text, dim_latent=8, quantiser_bits=3)


def mesh() -> quintet.MeshAutoencoder:
    return quintet.MeshAutoencoder(dim=16, message_dim=8, encoder_layers=1, decoder_layers=1)


def writer() -> Pretrained:
    small = {"dim": 16, "layers": 1, "heads": 1, "head_dim": 16, "fine_layers": 1}
    return quintet.MeshTransformer(autoencoder=mesh(), **small, fine_heads=1, text_layers=1)


def speech() -> Pretrained:
    small = {"dim": 16, "depth": 1, "heads": 1, "head_dim": 16, "text_dim": 8}
    return quintet.VoiceBox(**small, align_dim=8, duration_dim=64, duration_depth=1)


MODELS = [image, video, music, mesh, writer, speech]


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert one.config == other.config
    theirs = other.state_dict()
    assert one.state_dict().keys() == theirs.keys()
    assert all(value.equal(theirs[name]) for name, value in one.state_dict().items())


# -- a Hub on this machine ----------------------------------------------------------------------


class Hub:
    """What was pushed, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.created: list[dict[str, Any]] = []

    def sha(self, repo: str) -> str:
        return hashlib.sha1(repr(sorted(self.files[repo].items())).encode()).hexdigest()


class Speaks(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        self.hub.asked.append(path)
        found = re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/(.+)", path)
        repo = found[1] if found else "/".join(path.split("/")[3:5])
        files = self.hub.files.get(repo)
        if files is None:
            return self.answer({}, 404, X_Error_Code="RepoNotFound")
        sha = self.hub.sha(repo)
        if "/revision/no" in path or (found and found[2] == "no"):
            return self.answer({}, 404, X_Error_Code="RevisionNotFound")
        if "/tree/" in path:
            return self.answer(
                [{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in files.items()]
            )
        if not found:
            siblings = [{"rfilename": name} for name in files]
            return self.answer({"id": repo, "sha": sha, "siblings": siblings})
        if found[3] not in files:
            return self.answer({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        content = files[found[3]]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(content, ETag=etag, X_Repo_Commit=sha)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.hub.created.append(asked)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.hub.files.setdefault(name, {})
            return self.answer({"url": f"http://{self.headers['Host']}/{name}", "id": name})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        repo = "/".join(self.path.split("/")[3:5])
        if "/preupload/" in self.path:
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            listed = json.loads(body)["files"]
            return self.answer({"files": [{"path": f["path"], **modes} for f in listed]})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.hub.files[repo][line["value"]["path"]] = content
        url = f"http://{self.headers['Host']}/{repo}/commit/1"
        return self.answer({"commitUrl": url, "commitOid": self.hub.sha(repo)})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    found = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Speaks,), {"hub": found}))
    place = f"http://127.0.0.1:{server.server_address[1]}"
    template = f"{place}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that makes a folder when it is loaded; the test fails if the folder appears."""
    canary = tmp_path / "canary"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(canary),)

    yield pickle.dumps(Trap())
    assert not canary.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image().save_pretrained(tmp_path / "model")


def change(folder: Path, **changes: Any) -> None:
    about = json.loads((folder / "config.json").read_text())
    config = about["config"] | changes.pop("config", {})
    (folder / "config.json").write_text(json.dumps({**about, **changes, "config": config}))


# -- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS)
def test_every_model_round_trips_through_a_folder(
    make: Callable[[], Pretrained], tmp_path: Path
) -> None:
    model = make()
    assert model.save_pretrained(tmp_path / "model") == tmp_path / "model"
    back = type(model).from_pretrained(str(tmp_path / "model"), revision="ignored here")
    assert_same(model, back)
    assert not back.training


@pytest.mark.by_default("writer", "image")
@pytest.mark.parametrize("make", MODELS)
def test_every_model_round_trips_through_the_hub(make: Callable[[], Pretrained], hub: Hub) -> None:
    model = make()
    url = model.push_to_hub("me/model", token=TOKEN, private=True)
    assert url.endswith("/me/model/commit/1")
    assert {"README.md", "config.json", "model.safetensors"} <= hub.files["me/model"].keys()
    assert "private" in json.dumps(hub.created)
    assert f"Bearer {TOKEN}" in hub.tokens
    assert_same(model, type(model).from_pretrained("me/model", token=TOKEN))


def test_a_transformer_includes_its_autoencoder(hub: Hub) -> None:
    model: Any = writer()
    model.save_pretrained("me/writer", push_to_hub=True, repo_id="me/writer", token=TOKEN)
    shutil.rmtree("me")
    assert_same(model.autoencoder, type(model).from_pretrained("me/writer").autoencoder)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_downloaded_models_load_offline(hub: Hub, tmp_path: Path) -> None:
    model = image()
    model.push_to_hub("me/model", token=TOKEN)
    with pytest.raises(RunError, match="me/model"):
        quintet.VQGanVAE.from_pretrained("me/model", local_files_only=True)
    own = tmp_path / "own"
    quintet.VQGanVAE.from_pretrained("me/model", cache_dir=own)
    asked = len(hub.asked)
    assert_same(
        model, quintet.VQGanVAE.from_pretrained("me/model", cache_dir=own, local_files_only=True)
    )
    assert len(hub.asked) == asked
    snapshot = next(own.glob("*/snapshots/*"))
    assert_same(model, quintet.VQGanVAE.from_pretrained(snapshot))  # links into the cache are fine


def test_force_download_fetches_again_and_a_revision_is_asked_for(hub: Hub) -> None:
    image().push_to_hub("me/model", token=TOKEN)
    sha = hub.sha("me/model")
    for words in ({}, {"force_download": True}, {"revision": sha}):
        quintet.VQGanVAE.from_pretrained("me/model", **words)
    fetched = [path for path in hub.asked if path.endswith("/model.safetensors")]
    assert len(fetched) >= 2
    assert any(f"/resolve/{sha}/config.json" in path for path in hub.asked)
    with pytest.raises(RunError, match="me/model"):
        quintet.VQGanVAE.from_pretrained("me/model", revision="no")


def test_the_card_of_an_export_is_uploaded(hub: Hub, tmp_path: Path) -> None:
    card = tmp_path / "exported"
    (card / "samples").mkdir(parents=True)
    (card / "README.md").write_text("# the long one\n")
    (card / "samples/a.png").write_bytes(b"png")
    (card / "samples/b.png").symlink_to("/etc/hostname")
    (card / "notes.txt").write_text("mine")
    image().push_to_hub("me/model", token=TOKEN, card=card)
    files = hub.files["me/model"]
    assert files["README.md"] == b"# the long one\n"
    assert set(files) == {"README.md", "samples/a.png", "config.json", "model.safetensors"}
    with pytest.raises(RunError, match=r"README\.md"):
        image().push_to_hub("me/model", token=TOKEN, card=tmp_path / "nothing")


def test_an_unknown_keyword_is_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match="trust_me"):
        quintet.VQGanVAE.from_pretrained(folder, trust_me=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="push_to_hub=True"):
        image().save_pretrained(folder, private=True)


# -- what is refused ----------------------------------------------------------------------------


def test_only_safetensors_are_ever_fetched(trap: bytes, hub: Hub) -> None:
    image().push_to_hub("me/model", token=TOKEN)
    more = ["pytorch_model.bin", "model.pt", "modeling.py", "optimizer.pkl", "other.safetensors"]
    hub.files["me/model"] |= dict.fromkeys(more, trap)
    quintet.VQGanVAE.from_pretrained("me/model")
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors"}


def test_a_pickle_alone_is_refused_here_and_on_the_hub(trap: bytes, folder: Path, hub: Hub) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(trap)
    with pytest.raises(RunError, match=r"only pytorch_model\.bin; .* a pickle can run code"):
        quintet.VQGanVAE.from_pretrained(folder)
    hub.files["me/model"] = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(RunError, match=r"holds no model\.safetensors"):
        quintet.VQGanVAE.from_pretrained("me/model")
    assert not [path for path in hub.asked if path.endswith(".bin")]


def test_another_models_weights_are_not_even_fetched(hub: Hub) -> None:
    hub.files["me/bert"] = {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x"}
    hub.files["me/nothing"] = {"model.safetensors": b"x"}
    mesh().push_to_hub("me/mesh", token=TOKEN)
    for name, words in {
        "me/bert": "not image/vqgan",
        "me/mesh": "mesh/autoencoder, not image/vqgan",
        "me/nothing": r"no config\.json",
        "me/absent": "neither a folder nor a model on the Hub",
        "not a name": "neither a folder nor a model on the Hub",
    }.items():
        with pytest.raises(RunError, match=words) as error:
            quintet.VQGanVAE.from_pretrained(name)
        assert "\n" not in str(error.value)
    assert not [path for path in hub.asked if path.endswith("model.safetensors")]


def test_a_configuration_that_names_code_is_refused(folder: Path) -> None:
    change(folder, auto_map={"AutoModel": "modeling.Own"})
    with pytest.raises(RunError, match="auto_map"):
        quintet.VQGanVAE.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 10**12}, r"config\.dim is 1e\+12"),
        ({"dim": 2**19}, "this model expects"),
        ({"num_res_blocks": [2**20]}, "describes a larger model"),
        ({"channel_multipliers": [1] * 100_000}, "describes a larger model"),
        ({"attention_layers": 2}, "names missing"),
        ({"quantiser": "vq", "codebook_bits": 30}, "does not fit"),
        ({"levels": [4] * 300}, r"model|fit|be:"),
        ({"dim": -3}, "dim"),
    ],
)
def test_absurd_sizes_are_refused_before_memory_is_allocated(
    changes: dict[str, Any], words: str, folder: Path
) -> None:
    change(folder, config=changes)
    with pytest.raises(RunError, match=words):
        quintet.VQGanVAE.from_pretrained(folder)


def test_a_configuration_of_megabytes_is_not_read(folder: Path) -> None:
    change(folder, note="x" * 1_100_000)
    with pytest.raises(RunError, match="not a model configuration"):
        quintet.VQGanVAE.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_out_of_the_folder_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(RunError, match="leads out of"):
        quintet.VQGanVAE.from_pretrained(folder)


def test_the_size_check_leaves_no_hook_behind(folder: Path) -> None:
    change(folder, config={"num_res_blocks": [2**20]})
    with pytest.raises(RunError):
        quintet.VQGanVAE.from_pretrained(folder)
    assert len(list(torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(500))))) == 500
