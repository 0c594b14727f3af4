"""The command line. Every answer is a sentence; a traceback comes only with --debug."""

import importlib
import os
import sys

from quintet import __version__
from quintet.cli.common import HELP, fail, say
from quintet.console import protected
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError, Stopped
from quintet.media.errors import BadFile, Incompatible

COMMANDS = {
    "list": "list_",
    "train": "train",
    "resume": "resume",
    "evaluate": "evaluate",
    "judges": "judges",
    "sample": "sample",
    "compare": "compare",
    "pack": "pack:pack_folder",
    "export": "export",
    "report": "report",
    "replay": "replay",
    "doctor": "doctor.command",
    "demo": "demo.command",
}
"""Each command, and the module here that has a function of its name, or the one named with it."""

INCOMPATIBLE = "quintet.media.errors.Incompatible: "


def main(arguments: list[str] | None = None) -> None:
    # Before torch is imported. Threads that spin while they wait slow down whatever else runs:
    # beside one busy process of two threads, training on two cores took 54 s instead of 15.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    with protected():
        status = answered(given)
        sys.stdout.flush()
    sys.exit(status)


def answered(given: list[str]) -> int:
    """Run a command; its errors become sentences and exit statuses."""
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    try:
        return run_command(given)
    except (RunError, ConfigError, BadFile, Incompatible) as error:
        if debug:
            raise
        # Out of a worker process it comes with the traceback that it had there.
        return fail(str(error).rpartition(INCOMPATIBLE)[2].rstrip("\n"))
    except Stopped as stop:
        say(str(stop))
        return stop.status
    except ImportError as error:
        if debug or "quintet[" not in str(error):  # an extra that is not installed says its name
            raise
        return fail(str(error).strip().splitlines()[-1].removeprefix("ImportError: "))
    except (RuntimeError, MemoryError) as error:
        from quintet.engine.machine.memory import ran_out

        first = (str(error).splitlines() or ["out of memory"])[0]
        if not debug and ran_out(error):
            asked = "what config.json or the flags ask"
            return fail(f"there is not enough memory for {asked}: {first}")
        if not debug and first.startswith("CUDA error"):  # seldom raised where the traceback says
            hint = "a run goes on from its last checkpoint with quintet resume; --debug tells more"
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


def run_command(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if given[0] == "--version":
        print(__version__)
        return 0
    if given[0] not in COMMANDS:
        raise RunError(f"there is no command '{given[0]}'; there are {', '.join(COMMANDS)}")
    place, _, function = COMMANDS[given[0]].partition(":")
    module = importlib.import_module(f"quintet.cli.{place}")
    getattr(module, function or given[0])(given[1:])
    return 0
