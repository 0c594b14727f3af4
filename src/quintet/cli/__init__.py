"""The command line. Errors are printed as sentences; --debug shows the traceback."""

import importlib
import os
import sys
from collections.abc import Callable

from quintet import __version__
from quintet.cli.common import fail, overview, say
from quintet.cli.stored_runs import with_mirrors
from quintet.console import protected
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError, Stopped
from quintet.media.errors import BadFile, Incompatible
from quintet.suggest import among, command

COMMANDS = {
    "list": "list_",
    "train": "train",
    "resume": "resume",
    "launch": "launch.command",
    "evaluate": "evaluate",
    "judges": "judges",
    "sample": "sample",
    "serve": "serve",
    "compare": "compare",
    "pack": "pack:pack_folder",
    "encode": "encode",
    "export": "export",
    "report": "report",
    "watch": "watch",
    "replay": "replay",
    "doctor": "doctor.command",
    "demo": "demo.command",
}
"""The module of each command; its function has the command's name unless one follows the colon."""

INCOMPATIBLE = "quintet.media.errors.Incompatible: "


def main(arguments: list[str] | None = None, run: Callable[[list[str]], int] | None = None) -> None:
    """`run` answers for the commands of another entry."""
    # Must be set before torch is imported. Spinning OpenMP threads slow down other processes: next
    # to one busy process of two threads, training on two cores took 54 s instead of 15 s.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    with protected():
        status = answered(words, run)
        sys.stdout.flush()
    sys.exit(status)


def answered(arguments: list[str], run: Callable[[list[str]], int] | None = None) -> int:
    """Run a command, or by `run` one of another entry; errors become sentences and statuses."""
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    try:
        return (run or run_command)(arguments)
    except (RunError, ConfigError, BadFile, Incompatible) as error:
        if debug:
            raise
        # DataLoader workers put their traceback in front of the message.
        return fail(str(error).rpartition(INCOMPATIBLE)[2].rstrip("\n"))
    except Stopped as stop:
        say(str(stop))
        return stop.status
    except ImportError as error:
        if debug or "quintet[" not in str(error):  # "quintet[…]" names an extra to install
            raise
        return fail(str(error).strip().splitlines()[-1].removeprefix("ImportError: "))
    except (RuntimeError, MemoryError) as error:
        from quintet.engine.machine.memory import ran_out

        first = (str(error).splitlines() or ["out of memory"])[0]
        if not debug and ran_out(error):
            settings = "the settings in config.json and the flags"
            return fail(f"there is not enough memory for {settings}: {first}")
        if not debug and first.startswith("CUDA error"):  # asynchronous: the traceback misleads
            resume = command("resume", "RUN")
            hint = f"{resume} continues a run from its last checkpoint; --debug shows more"
            return fail(f"the GPU failed ({first}); {hint}")
        raise
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except OSError as error:
        if debug or error.errno is None:
            raise
        where = f": {error.filename}" if error.filename else ""
        return fail(f"{os.strerror(error.errno)}{where}")


def run_command(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    if arguments[0] not in COMMANDS:
        raise RunError(
            f"there is no command '{arguments[0]}'; {among(arguments[0], list(COMMANDS))}"
        )
    place, _, function = COMMANDS[arguments[0]].partition(":")
    module = importlib.import_module(f"quintet.cli.{place}")
    words = with_mirrors(arguments[0], arguments[1:])
    getattr(module, function or arguments[0])(words)
    return 0
