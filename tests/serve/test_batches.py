"""Speech, embeddings and meshes of several clients at once."""

import io
import threading
import wave
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Client, serving

from quintet.engine.errors import RunError, Stopped
from quintet.serve.flags import sampling
from quintet.serve.models import Answer, Served, run_all
from quintet.serve.worker import Capacity, Worker
from quintet.shared import ranking

SPEECH = {"steps": 2, "seconds": 0.2}


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of quick requests, in blocks of several texts."""
    monkeypatch.setattr(Served, "on_cpu", False)
    monkeypatch.setattr(ranking, "TEXT_ROWS", {"cpu": 4})


def both_ways(
    client: Client, path: str, bodies: Sequence[Any]
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Statuses and answers of requests at once, in one batch, and of each by itself."""
    worker, blocker = client.server.worker, Blocker()
    worker.submit(blocker, lambda answer: None)
    blocker.begun.wait(5)
    with ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(client.ask, path, body) for body in bodies]
        while len(worker.waiting) < len(bodies):
            threading.Event().wait(0.002)
        before = dict(worker.counts)
        blocker.end.set()
        at_once = [each.result() for each in asked]
    assert worker.counts["batches"] == before["batches"] + 1
    assert worker.counts["batched"] == before["batched"] + len(bodies)
    alone = [client.ask(path, body) for body in bodies]
    return [(a[0], a[2]) for a in at_once], [(a[0], a[2]) for a in alone]


class Blocker:
    """Work that keeps the device until it is let go."""

    key, samples, is_quick = None, 1, False

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def run(self) -> None:
        self.begun.set()
        assert self.end.wait(10)


def model(name: str, exports: Any) -> Served:
    return Served.open(name, exports[name], "cpu", {})


def always() -> None:
    """Somebody waits."""


# -- meshes -----------------------------------------------------------------------------------


def test_meshes_that_share_a_batch_are_those_of_each_alone(exports: Any) -> None:
    bodies = [
        {"prompt": f"a table with {n} legs", "n": 1 + n, "seed": n, "max_faces": 2}
        for n in range(2)
    ]
    bodies.append({"n": 1, "seed": 1, "max_faces": 2})
    bodies.append({"prompt": "a lamp", "n": 0, "seed": 1, "max_faces": 2})  # fails
    with serving([("it", exports["transformer"])]) as client:
        at_once, alone = both_ways(client, "/v1/meshes", bodies)
    assert at_once == alone
    assert [status for status, _ in alone] == [200] * 3 + [400]


def test_other_settings_are_not_batched(exports: Any) -> None:
    mesh = model("transformer", exports)
    key = lambda **flags: sampling(mesh, flags).key
    assert key(text=["a"], count=1, seed=1) == key(text=["b"], count=2, seed=2) is not None
    assert len({key(), key(max_faces=3), key(temperature=0.5), key(cond_scale=2.0)}) == 4
    assert sampling(model("voicebox", exports), {"text": ["a"]}).key is None  # on a CPU


# -- embeddings -------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_on_a_gpu")
def test_embeddings_that_share_a_batch_are_those_of_each_alone(exports: Any) -> None:
    inputs = [["a slow melody", "drums"], ["drums"], [f"song {n}" for n in range(5)], ["a"]]
    bodies = [{"input": each, "encoding_format": "base64"} for each in inputs]
    with serving([("it", exports["mulan"])]) as client:
        at_once, alone = both_ways(client, "/v1/embeddings", bodies)
    assert at_once == alone
    assert {status for status, _ in alone} == {200}


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_text_that_fails_leaves_the_others_alone(
    exports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = ranking.embed_texts

    def picky(network: Any, texts: Sequence[str]) -> Any:
        if "noise" in texts:
            raise RunError("no noise")
        return embed(network, texts)

    bodies = [{"input": "drums"}, {"input": "noise"}, {"input": ["a", "b"]}]
    with serving([("it", exports["mulan"])]) as client:
        monkeypatch.setattr(client.server.models["it"].module, "embed_texts", picky)
        at_once, alone = both_ways(client, "/v1/embeddings", bodies)
    assert [status for status, _ in at_once] == [200, 500, 200]
    assert [at_once[0], at_once[2]] == [alone[0], alone[2]]


# -- speech -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_on_a_gpu")
def test_speech_that_shares_a_batch_is_that_of_each_alone_but_for_rounding(
    exports: Any, voice: Path
) -> None:
    texts = ["ba do ki", "so", "Ma to ri ba. " * 24, "ki ba do ma to"]
    bodies = [
        {"input": text, "seed": n, "voice": "anna", "response_format": form, **SPEECH}
        for n, (text, form) in enumerate(zip(texts, ["wav", "pcm", "pcm", "wav"]))
    ]
    with serving([("it", exports["voicebox"])], files={"anna": voice}) as client:
        at_once, alone = both_ways(client, "/v1/audio/speech", bodies)
    for (status, sound), (_, expected), body in zip(at_once, alone, bodies):
        assert status == 200
        ours, theirs = samples(sound, body), samples(expected, body)
        assert len(ours) == len(theirs) > 1000
        assert np.abs(ours - theirs).max() < 0.01


def samples(sound: bytes, body: Any) -> Any:
    if body["response_format"] == "wav":
        with wave.open(io.BytesIO(sound)) as file:
            sound = file.readframes(file.getnframes())
    return np.frombuffer(sound, "<i2") / 32768


def test_each_is_answered_as_it_ends_and_one_that_is_gone_leaves_the_others_alone(
    exports: Any,
) -> None:
    speaks = model("voicebox", exports)

    def gone() -> None:
        raise Stopped("the client is gone", 0)

    texts = ["Ba do ki. " * 27, "so", "ba do"]
    works = [sampling(speaks, {"text": [text], "steps": 1, "seconds": 6.0}) for text in texts]
    answers = [*run_all(works, [always, always, gone])]
    assert [index for index, _ in answers] == [2, 1, 0]
    by_index = dict(answers)
    assert isinstance(by_index[2], Stopped)
    for index in (0, 1):
        expected = wav_of(works[index].run())
        assert len(wav_of(by_index[index])) == len(expected) > 1000


def wav_of(answer: Any) -> bytes:
    assert isinstance(answer, Answer), answer
    (sound,) = (content for name, content in answer.files.items() if name.endswith(".wav"))
    return sound


# -- the queue --------------------------------------------------------------------------------


class Quick:
    """Work that is done at once, alone or with others."""

    key, samples, is_quick = "quick", 1, True

    def run(self) -> str:
        return "alone"

    def run_all(self, works: Any, checks: Sequence[Callable[[], object]]) -> Iterator[Any]:
        yield 1, "together"
        raise OSError("no space left on device")


def test_a_quick_request_does_not_wait_for_others_on_an_idle_device() -> None:
    worker, answers, done = Worker(Capacity(window=30)), list[Any](), threading.Event()
    worker.submit(Quick(), lambda answer: (answers.append(answer), done.set()))
    assert done.wait(5)
    worker.close()
    assert answers == ["alone"]


def test_a_batch_that_cannot_go_on_is_answered(capfd: Any) -> None:
    worker, answers, blocker = Worker(Capacity()), list[Any](), Blocker()
    done = threading.Barrier(2, timeout=5)
    worker.submit(blocker, lambda answer: None)
    blocker.begun.wait(5)
    for _ in range(2):
        worker.submit(
            Quick(), lambda answer: (answers.append(answer), len(answers) == 2 and done.wait())
        )
    blocker.end.set()
    done.wait()
    assert worker.alive
    worker.close()
    assert answers[0] == "together"
    assert answers[1].status == 500
    assert "OSError" in capfd.readouterr().err
