"""The command line, as a benchmark calls it: what it says goes to standard error, where figures are
not looked for."""

import subprocess
import sys


def quintet(*words: object) -> None:
    command = [sys.executable, "-m", "quintet", *map(str, words)]
    subprocess.run(command, check=True, stdout=sys.stderr)
