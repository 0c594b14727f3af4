"""A family of a new room is served from its own folder, with endpoints and a part of the page."""

from pathlib import Path
from typing import Any

import pytest
from serving import serving

import quintet
from test_new_room import FILES, forget, write

SERVE = {
    "line/serve.py": """
        from starlette.responses import JSONResponse

        from quintet.serve.asking import Endpoint, asked
        from quintet.serve.flags import sampling

        async def lines(server, request):
            body = await asked(request)
            model = server.model(body.one("model", str), is_line)
            answer = await server.run(request, sampling(model, {"at": body.one("at", float, 1.0)}))
            return JSONResponse({"value": float(answer.files["value.txt"])})

        def is_line(model):
            return model.has("at")

        FIELDS = {"at": "Where."}
        ENDPOINTS = [Endpoint("/v1/lines", lines, "A value.", fields=FIELDS, does=is_line)]
        SCRIPT = "quintet.viewers.push((line) => null);"
    """
}


def test_a_new_family_brings_its_endpoint_and_its_part_of_the_page(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({**FILES, **SERVE}, "served", tmp_path / "rooms")
    monkeypatch.setattr(quintet, "__path__", [*quintet.__path__, str(tmp_path / "rooms")])
    run = tmp_path / "run"
    try:
        assert cli("train", "served/line_tiny", "--run", run, "--device", "cpu").status == 0
        with serving([("line", Path(f"{run}@4"))]) as client:
            (value,) = client.files("/v1/models/line/sample", {"at": 2}).values()
            assert client.json("/v1/lines", {"at": 2}) == {"value": float(value)}
            assert "at is 'x'; it must be float" in client.refusal(
                400, "/v1/models/line/sample", {"at": "x"}
            )
            assert {"/v1/lines", "/v1/models/line/sample"} <= set(
                client.json("/openapi.json")["paths"]
            )
            assert b"quintet.viewers.push((line) => null);" in client.ask("/page.js")[2]
    finally:
        forget("quintet.served")
