"""Latency and memory of `quintet serve` under load, and its answers to bad requests.

    python benchmarks/serving.py load ready/image --clients 64 --seconds 120 --flags '{"steps": 4}'
    python benchmarks/serving.py load ready/speech --endpoint speech --clients 1 16 --seconds 20
    python benchmarks/serving.py bad ready/image --count 10000
    python benchmarks/serving.py speech ready/speech --count 10

Each starts a server of its own and prints one JSON line; `load` one for each number of clients. It
compares the first answers with the same requests sent alone, and exits with status 1 if some differ
(speech may, on a GPU: `difference` is the largest, of samples in -1..1); `bad` exits with status 1
if an answer has no sentence or status 500; `speech` times streamed sentences, to the first sound
and to the last.
"""

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

PIECES = [
    *(None, True, -1, 0, 33, 2**63, 2**64, 1e300, -0.0, "", "a star", "\x00", "\ud800", "é" * 5000),
    *("/etc/passwd", "../../etc/passwd", "file:///etc/passwd", "C:\\x", "~", "%2e%2e/", "{{7*7}}"),
    *([], {}, [[]], ["a"] * 20, [None], {"a": {"b": []}}, "NaN", "Infinity", "'; DROP TABLE x"),
]
NAMES = ["text", "count", "seed", "steps", "image", "mask", "like", "size", "device", "model"]
NAMES += ["prompt", "n", "input", "voice", "response_format", "file", "out", "", "__class__", "é"]
PATHS = ["/v1/models/%s/sample", "/v1/images/generations", "/v1/images/edits", "/v1/audio/speech"]
PATHS += ["/v1/embeddings", "/v1/videos", "/v1/meshes", "/v1/reconstructions", "/v1/tokens"]
TRICKS = ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.js/../../x"]
TRICKS += ["/v1/models/..%2f..%2fetc/sample", "/v1/videos/../../x", "/page.css%00.html", "/\\x"]
MEDIA = [
    b"",
    b"\x89PNG\r\n\x1a\n" + bytes(40),
    b"RIFF\xff\xff\xff\xffWAVEfmt ",
    b"GIF89a\xff\xff\xff",
]
MEDIA += [b"\0\0\0\x18ftypmp42" + bytes(50), b"glTF\2\0\0\0", b"{}", b"PK\3\4", b"\xff\xd8\xff\xe0"]
JSON = "application/json"
Request = tuple[str, str, bytes, dict[str, str]]


def bad_request(draw: random.Random, model: str) -> Request:
    """Method, path, body and headers: nothing that a server should work on for long."""
    kind = draw.choice(["json", "json", "bytes", "form", "path", "headers", "method"])
    path = draw.choice(PATHS).replace("%s", draw.choice([model, model, "x", "..", "%00"]))
    if kind == "json":
        names = draw.sample(NAMES, draw.randint(0, 5))
        values: dict[str, Any] = {name: draw.choice(PIECES) for name in names}
        # A valid request among them is small: it is the server's bounds that are tried.
        values |= {"count": draw.choice([0, -1, 99, "1"]), "n": draw.choice([0, -1, 99, "1"])}
        return "POST", path, json.dumps(values).encode(), {"Content-Type": "application/json"}
    if kind == "bytes":
        body = draw.choice([b"{", b"[" * 50_000, draw.randbytes(200), b'{"a":' * 3000, b"null"])
        media = draw.choice(["application/json", "text/plain", "multipart/form-data", "", "\xff"])
        return "POST", path, body, {"Content-Type": media}
    if kind == "form":
        return form(draw, path)
    if kind == "path":
        return draw.choice(["GET", "POST"]), draw.choice(TRICKS), b"", {}
    if kind == "headers":
        name = draw.choice(["Host", "Origin", "Authorization", "X-A", "Accept", "Cookie"])
        value = draw.choice(
            ["evil.example", "null", "http://evil.example", "x" * 70_000, "é", ";="]
        )
        return "POST", path, b"[]", {name: value}
    return draw.choice(["PUT", "DELETE", "PATCH", "TRACE", "A"]), path, b"", {}


def form(draw: random.Random, path: str) -> Request:
    line, parts = "line", []
    for _ in range(draw.randint(0, 4)):
        name = draw.choice(NAMES).encode()
        file = draw.choice(['"; filename="../../x.png"', '"; filename="a.wav"', '"', ""]).encode()
        parts.append(b'Content-Disposition: form-data; name="' + name + file)
        parts[-1] += b"\r\n\r\n" + draw.choice(MEDIA)
    body = b"".join(b"--line\r\n" + part + b"\r\n" for part in parts)
    body += draw.choice([b"--line--\r\n", b"--li", b""])
    return "POST", path, body, {"Content-Type": f"multipart/form-data; boundary={line}"}


def problem(host: str, port: int, request: Request) -> tuple[int, str]:
    """The status of the answer, and what is wrong with it, if anything."""
    method, path, body, headers = request
    with closing(http.client.HTTPConnection(host, port, timeout=30)) as client:
        try:
            client.putrequest(method, path, skip_host="Host" in headers)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                client.putheader(name, value.encode("latin-1", "replace"))
            client.endheaders(body)
            answer = client.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if len(str(headers)) > 60_000:  # the server stops reading a header without end
                return 0, ""
            return 0, f"{type(error).__name__}: {error}"
    if answer.status < 400:
        return answer.status, ""
    if answer.status == 500:
        return 500, text.decode("utf-8", "replace")
    try:
        sentence = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        sentence = text.decode("latin-1")
    return answer.status, "" if len(sentence) > 5 else "no sentence"


@contextmanager
def server(model: str, *more: str) -> Iterator[tuple[str, int, int]]:
    """Host, port and process of a server of the model `it`."""
    command = [sys.executable, "-m", "quintet", "serve", f"it={model}", "--port", "0", *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().rstrip("/")
            host, _, port = address.removeprefix("http://").partition(":")
            yield host, int(port), process.pid
        finally:
            process.terminate()
            process.wait()


def memory(pid: int) -> int:
    """Resident megabytes."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


WORDS = ["a red star on white", "two blue rings", "a yellow ball in the middle"]
SYLLABLES = ["ba", "do", "ki", "ma", "to", "ri", "so", "la"]
ENDPOINTS = {
    "sample": "/v1/models/it/sample",
    "speech": "/v1/audio/speech",
    "embeddings": "/v1/embeddings",
    "meshes": "/v1/meshes",
}


def body_of(endpoint: str, number: int) -> dict[str, Any]:
    words = WORDS[number % 3]
    spoken = " ".join(SYLLABLES[(number + n) % 8] for n in range(5 + number % 4))
    return {
        "sample": {"text": [words], "count": 1, "seed": number},
        "speech": {"input": spoken, "response_format": "pcm", "seed": number},
        "embeddings": {"input": f"{words}, number {number}"},
        "meshes": {"prompt": words, "n": 1, "seed": number},
    }[endpoint]


def ask(host: str, port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes, float]:
    """Status and body of the answer, and the time of its first bytes."""
    with closing(http.client.HTTPConnection(host, port, timeout=300)) as client:
        sent = {"Content-Type": JSON, "Accept": "application/zip"}
        client.request("POST", path, json.dumps(body), sent)
        answer = client.getresponse()
        begun = answer.read(2)
        heard = time.monotonic()
        return answer.status, begun + answer.read(), heard


def batch_counts(host: str, port: int) -> dict[str, float]:
    with closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    pairs = (line.split() for line in lines if line.startswith("quintet_batch"))
    return {name: float(value) for name, value in pairs}


def load(options: argparse.Namespace) -> int:
    same = True
    with server(options.model, "--queue", "256") as (host, port, pid):
        path, flags = ENDPOINTS[options.endpoint], json.loads(options.flags)
        send = lambda n: ask(host, port, path, {**body_of(options.endpoint, n), **flags})
        for number in range(2):  # to warm up
            status, answer, _ = send(number)
            assert status == 200, answer
        for clients in options.clients:
            row = loaded(send, clients, options.seconds, lambda: batch_counts(host, port))
            same = same and row["same_alone"].split()[0] == row["same_alone"].split()[2]
            row |= {"model": options.model, "endpoint": options.endpoint, "memory_mb": memory(pid)}
            print(json.dumps(row), flush=True)
    return 0 if same else 1


def loaded(send: Any, clients: int, seconds: float, counts: Any) -> dict[str, Any]:
    """What several clients measure that each ask for one thing after the other."""
    before, begun = counts(), time.monotonic()
    end = begun + seconds
    times: list[tuple[float, float]] = []
    statuses: Counter[int] = Counter()
    first: dict[int, bytes] = {}

    def client(number: int) -> None:
        turn = 0
        while time.monotonic() < end:
            began = time.monotonic()
            status, answer, heard = send(number + turn * clients)
            statuses[status] += 1
            if status == 200:
                times.append((heard - began, time.monotonic() - began))
                if turn == 0:
                    first[number] = answer
            turn += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, after = time.monotonic() - begun, counts()
    gained = {name: value - before[name] for name, value in after.items()}
    pairs = [(send(n)[1], answer) for n, answer in list(first.items())[:16]]
    firsts, lasts = (sorted(each) for each in zip(*times))
    at = lambda values, share: round(values[int(share * (len(values) - 1))] * 1000)
    return {
        "clients": clients,
        "answers": len(times),
        "per_second": round(len(times) / took, 2),
        "first_p50_ms": at(firsts, 0.5),
        "p50_ms": at(lasts, 0.5),
        "p99_ms": at(lasts, 0.99),
        "statuses": dict(statuses),
        "per_batch": round(gained["quintet_batched_total"] / gained["quintet_batches_total"], 1),
        "same_alone": f"{sum(a == b for a, b in pairs)} of {len(pairs)}",
        "difference": max(difference(*pair) for pair in pairs),
        "load": os.getloadavg()[0],
    }


def difference(a: bytes, b: bytes) -> float:
    """The largest of two sounds, of samples in -1..1; 0 of equal answers, 2 of other lengths."""
    if a == b:
        return 0.0
    if len(a) != len(b) or len(a) % 2:
        return 2.0
    return max(abs(x - y) for x, y in zip(*(array("h", each) for each in (a, b)))) / 32768


def bad(options: argparse.Namespace) -> int:
    draw, statuses, problems = random.Random(options.seed), Counter[int](), list[Any]()
    with server(options.model) as (host, port, pid):
        before, began = memory(pid), time.monotonic()
        for _ in range(options.count):
            request = bad_request(draw, "it")
            status, wrong = problem(host, port, request)
            statuses[status] += 1
            if wrong:
                problems.append((request[:2], request[2][:200].decode("latin-1"), wrong))
        with socket.create_connection((host, port)):
            pass  # still there
        row = {
            "requests": options.count,
            "seconds": round(time.monotonic() - began, 1),
            "statuses": dict(sorted(statuses.items())),
            "problems": problems[:5],
            "memory_mb": [before, memory(pid)],
        }
    print(json.dumps(row))
    return 1 if problems else 0


def speech(options: argparse.Namespace) -> int:
    times: list[tuple[float, float]] = []
    size = 0
    with server(options.model) as (host, port, _):
        for seed in range(options.count + 2):
            body = {"model": "it", "input": options.text, "response_format": "pcm", "seed": seed}
            sent = json.dumps({**body, **json.loads(options.flags)})
            with closing(http.client.HTTPConnection(host, port, timeout=300)) as client:
                began = time.monotonic()
                client.request("POST", "/v1/audio/speech", sent, {"Content-Type": JSON})
                answer = client.getresponse()
                size = len(answer.read(2))
                first = time.monotonic() - began
                size += len(answer.read())
                times.append((first, time.monotonic() - began))
                assert answer.status == 200, answer.status
    row: dict[str, Any] = {"text": options.text, "bytes": size, "load": os.getloadavg()[0]}
    for name, taken in zip(("first", "last"), zip(*times[2:])):  # two to warm up
        row[f"{name}_s"] = {"median": statistics.median(taken), "worst": max(taken)}
    print(json.dumps(row))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["load", "bad", "speech"])
    parser.add_argument("model")
    parser.add_argument("--endpoint", choices=[*ENDPOINTS], default="sample")
    parser.add_argument("--clients", type=int, nargs="+", default=[64])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--flags", default="{}")
    parser.add_argument("--count", type=int, help="requests: of bad 10,000, of speech 10")
    parser.add_argument("--text", default="ba do ki ma to ri")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.count = options.count or (10_000 if options.what == "bad" else 10)
    if options.what != "speech":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return {"load": load, "bad": bad, "speech": speech}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
