"""Our image room and another package on one machine, one after the other; only the ratio counts.

    python benchmarks/beside_peer.py --peer "python bench_peers.py image_vqgan --size base …"

The other command must print a JSON line with `samples_per_s`. Ours is `image_speed.py --size peer`.
Exits with 1 where ours is less than three times as fast.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def last_json(command: list[str]) -> dict[str, Any]:
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True, help="the other package's benchmark command")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    peer = last_json(shlex.split(asked.peer))
    words = ["--batch-size", str(asked.batch_size), "--steps", str(asked.steps), "--no-eager"]
    ours = last_json([sys.executable, str(HERE / "image_speed.py"), "--size", "peer", *words])
    ratio = ours["images_per_second"] / peer["samples_per_s"]
    print(json.dumps({"peer": peer}))
    print(json.dumps({"ours": ours}))
    print(json.dumps({"benchmark": "beside_peer", "ratio": ratio}))
    sys.exit(1 if ratio < 3 else 0)


if __name__ == "__main__":
    main()
