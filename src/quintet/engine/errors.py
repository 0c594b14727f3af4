"""Errors that are a sentence for the user; the command line prints them and exits with status 2."""


class RunError(Exception):
    """The run cannot start or continue; the message names what is wrong and the remedy."""


class Stopped(Exception):
    """The run stopped cleanly at a checkpoint because of a signal or the clock."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status
