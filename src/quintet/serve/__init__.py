"""Serving over HTTP. Nothing here imports the extra `serve` before a server is started."""
