"""Runs in object storage that answers badly, killed while they upload.

A case is a chain of kills of one run: the processes go on, in turn, on the machine where the one
before was killed and on a machine that has nothing but the address. Meanwhile requests are
dropped, cut, delayed, refused or left without an answer. After every kill all checkpoints in the
bucket must be sound, equal to those of the undisturbed run, and no older than before; at the end
the run equals one on disk.
"""

import dataclasses
import random
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import storage
from campaign import subjects
from campaign.table import Case, Result
from campaign.trial import Wrong, require
from harness import Processes, assert_same, run, steps_reported, tensors, trajectory
from quintet.engine.runs.checkpoint import examine, steps_in
from quintet.engine.runs.remote.bucket import Bucket
from quintet.engine.runs.remote.mirror import Mirror, complete
from toy import ToyRecipe

RECIPE = ToyRecipe(
    batch_size=4,
    save_every=4,
    log_every=1,
    evaluate_every=20,
    keep_last=2,
    device="cpu",
    precision="fp32",
    workers=0,
    slow_step=0.02,
)
RATE, LEASE, KILLS, CHAINS = 0.1, 2.0, 4, 10
STEPS_A_KILL = 15


class Chain:
    def __init__(self, number: int, kills: int):
        self.number, self.kills = number, kills
        self.recipe = dataclasses.replace(RECIPE, steps=STEPS_A_KILL * kills)
        self.chance = random.Random(number)
        self.lost = 0
        self.newest = 0

    def run(self) -> Result:
        place = subjects.FOLDER / "stores" / f"{self.number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        reference = place / "disk"
        run(self.recipe, reference)
        begun = time.monotonic()
        with storage.server() as address:
            proxy = storage.Proxy(address)
            proxy.at_random(RATE, self.number)
            try:
                self._chain(place, proxy, reference)
            except Wrong as wrong:
                return Result(False, self.lost, time.monotonic() - begun, str(wrong))
            finally:
                proxy.close()
        shutil.rmtree(place)
        note = f"{self.kills} kills; {', '.join(proxy.faults)}"
        faults = self.kills + len(proxy.faults)
        return Result(True, self.lost, time.monotonic() - begun, note, faults)

    def _chain(self, place: Path, proxy: storage.Proxy, reference: Path) -> None:
        url = "s3://bucket/run"
        for kill in range(self.kills + 1):
            machine = storage.environment(proxy.address, place / f"cache-{(kill + 1) // 2}", LEASE)
            path = storage.mirror_of(url, machine)
            processes = self._started(path, machine, place / f"{kill}.log")
            if kill == self.kills:
                require(processes.wait() == [0], processes.said()[-600:])
                break
            ahead = self.chance.randint(2, self.recipe.steps // self.kills)
            want = min(self.newest + ahead, self.recipe.steps - 8)
            processes.wait_until(lambda: steps_in_or(path) >= want)  # noqa: B023
            time.sleep(self.chance.random() * 0.1)
            processes.signal(signal.SIGKILL)
            processes.wait()
            self._judge(place, url, proxy, reference)
            self.lost = max(self.lost, steps_reported(path) - self.newest)
        proxy.fault = lambda method, path: None
        self._judge(place, url, proxy, reference)
        require(self.newest == self.recipe.steps, f"the bucket ends with {self.newest}")
        fresh = storage.environment(proxy.address, place / "judge")
        with storage.on_machine(fresh):
            alike = trajectory(Mirror.at(url).path) == trajectory(reference)
        require(alike, "its reports differ")

    def _started(self, path: Path, machine: dict[str, str], log: Path) -> Processes:
        """Refused while the lease of the killed process counts."""
        until = time.monotonic() + 60
        while True:
            processes = Processes(self.recipe, path, "resume_or_new", log=log, environment=machine)
            while processes.children[0].exitcode is None and not steps_in_or(path):
                if "resuming at" in processes.said() or "starting at" in processes.said():
                    return processes
                time.sleep(0.02)
            if processes.children[0].exitcode is None:
                return processes
            said = processes.said()
            require("holds it until" in said or "cannot be" in said, said[-600:])
            require(time.monotonic() < until, f"it does not start: {said[-600:]}")
            time.sleep(0.3)

    def _judge(self, place: Path, url: str, proxy: storage.Proxy, reference: Path) -> None:
        """What a machine finds that has nothing but the address."""
        calm, proxy.fault = proxy.fault, lambda method, path: None
        shutil.rmtree(place / "judge", ignore_errors=True)
        notes: list[str] = []
        with storage.on_machine(storage.environment(proxy.address, place / "judge")):
            held = Mirror.at(url).pull("all", notes.append)
            mirror = Mirror.at(url)
            steps = complete(Bucket(url).list())
        proxy.fault = calm
        require(not notes, f"{notes}")
        require(held or not steps, "checkpoints without a config.json")
        require(steps_in(mirror.checkpoints) == steps, f"{steps} in the bucket")
        newest = max(steps, default=0)
        require(newest >= self.newest, f"checkpoint {self.newest} is lost, {newest} is the newest")
        self.newest = newest
        for step in steps:
            path = mirror.checkpoints / f"step-{step:08d}"
            require(examine(path) is None, f"{path}: {examine(path)}")
            if step in steps_in(reference / "checkpoints"):
                assert_same(tensors(mirror.path, step), tensors(reference, step))


def steps_in_or(path: Path) -> int:
    return max(steps_in(path / "checkpoints"), default=0)


def cases(full: bool, seed: int) -> Iterator[Case]:
    numbers = range(seed, seed + (CHAINS if full else 1))
    for number, kills in product(numbers, (KILLS,) if full else (1, 2)):
        chain = Chain(number, kills)
        name = f"stores: chain {number}, {chain.kills} kills"
        yield Case(name, "object storage: bad answers, and kills during uploads", chain.run)
