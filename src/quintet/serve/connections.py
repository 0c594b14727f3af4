"""Connections that end when they are silent: uvicorn waits for the headers without end."""

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 30.0
"""Seconds until a connection without a request is closed."""


class Connection(H11Protocol):
    """One client. `cycle` is its newest request, of which the headers have arrived."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.wait_for_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.wait_for_headers()

    def wait_for_headers(self) -> None:
        self.loop.call_later(SILENCE, self.close_unless_newer, self.cycle)

    def close_unless_newer(self, last: Any) -> None:
        if self.cycle is last:
            self.transport.close()
