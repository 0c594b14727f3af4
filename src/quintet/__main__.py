"""The entry of the command line, also of `torchrun -m quintet …` and `accelerate launch -m …`.

It imports next to nothing by itself: whoever presses Ctrl-C while the rest is imported gets a line,
not a traceback.
"""

import os
import sys


def main() -> None:
    try:
        from quintet.cli import main as run

        run()
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write("quintet: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
