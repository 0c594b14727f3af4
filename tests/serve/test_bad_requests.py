"""Bad requests are answered with sentences; the long form is `benchmarks/serving.py bad`."""

import importlib.util
import random
from pathlib import Path
from typing import Any

from serving import Client

BENCHMARK = Path(__file__).parents[2] / "benchmarks/serving.py"


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("serving_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_bad_request_has_an_answer_with_a_sentence(served: Client) -> None:
    bad, draw = benchmark(), random.Random(1)
    requests = [bad.bad_request(draw, "maskgit") for _ in range(200)]
    answers = [bad.problem("127.0.0.1", served.access.port, request) for request in requests]
    assert [(r[:2], a) for r, a in zip(requests, answers) if a[1]] == []
    assert sum(status == 200 for status, _ in answers) < 20
    assert served.json("/health")["status"] == "ok"
