"""Kill a run at random moments and resume it: the end must be that of an undisturbed run.

    python benchmarks/kills.py [--kills 50] [--processes 1]

A toy GAN with a large state, so that most of its time goes into writing checkpoints. After every
SIGKILL each checkpoint under a final name is examined: all must be sound. At the end every tensor
is compared, bit for bit, with a run that nobody killed.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    from harness import Processes, assert_same, run, steps_reported, tensors
    from quintet.engine import checkpoint
    from toy import ToyRecipe

    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    recipe = ToyRecipe(
        steps=12 * asked.kills,
        batch_size=4,
        workers=0,
        log_every=1,
        save_every=3,
        evaluate_every=50,
        critic_start=40,
        width=20_000,
        keep_last=3,
        trackers=(),
    )
    found = {"kills": 0, "while_writing": 0, "before_the_first": 0, "stray": 0, "damaged": 0}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "cut"
        folder = path / "checkpoints"
        while found["kills"] < asked.kills:
            processes = Processes(recipe, path, "continue", asked.processes)
            before = steps_reported(path)
            target = before + chance.randint(0, 12)
            try:
                processes.wait_until(lambda t=target: steps_reported(path) >= t)
                if chance.random() < 0.7:
                    processes.wait_until(lambda: any(folder.glob(f"{checkpoint.TEMPORARY}*")), 10)
            except AssertionError:
                break  # it came to its end
            time.sleep(chance.random() * 0.03)
            found["while_writing"] += any(folder.glob(f"{checkpoint.TEMPORARY}*"))
            processes.signal(signal.SIGKILL)
            processes.wait()
            found["kills"] += 1
            steps = checkpoint.steps_in(folder)
            found["before_the_first"] += not steps
            found["stray"] += len(list(folder.glob(f"{checkpoint.TEMPORARY}*")))
            sound = [checkpoint.examine(checkpoint.path_of(folder, step)) is None for step in steps]
            found["damaged"] += sound.count(False)
            print(
                f"kill {found['kills']}: at step {steps_reported(path)}, kept {steps}", flush=True
            )
        run(recipe, path, "continue", asked.processes)
        run(recipe, Path(place) / "straight", "new", asked.processes)
        assert_same(tensors(Path(place) / "straight", recipe.steps), tensors(path, recipe.steps))
    print(json.dumps({"benchmark": "kills", "processes": asked.processes, **found, "equal": True}))
    sys.exit(1 if found["damaged"] else 0)


if __name__ == "__main__":
    main()
