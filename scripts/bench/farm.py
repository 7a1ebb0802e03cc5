"""How well a farm keeps its boards busy: sleeping runs on real workers of Dask, on this machine.

    python scripts/bench/farm.py [--seconds 2] [--rounds 6] [--json FILE]

A trial is a build and a run, and both sleep, so that any number of boards and builders fits on few
cores; calls, queues and workers are those of a farm. As in tuning, two rounds are under way.

    busy       8 boards: the share of their time in which they run, at least 90 %
    doubling   trials per minute with 1, 2, 4 and 8 boards, at least 1.8 times each
    large      20 boards and 50 builders, of which a build takes half a run: at least 90 %
    shares     of two users who keep as much under way: 50 % each
    unequal    of two users, one of whom asked for three times as much: 75 % and 25 %
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mlc_deploy.farm.client import Farm, FarmBoards, matching
from tests.farm.farms import LocalFarm, wait_for
from tests.farm.jobs import build_asleep, run_asleep

MEMBER = """
import asyncio, logging, sys
from concurrent.futures import ThreadPoolExecutor
from mlc_deploy.farm.member import Place, join
from tests.farm import jobs
jobs.register()
logging.getLogger("distributed").setLevel(logging.WARNING)
boards, builders = int(sys.argv[2]), int(sys.argv[3])
places = [Place("local://")] * boards
asyncio.run(join(sys.argv[1], places, builders, print, workshop=ThreadPoolExecutor(builders)))
"""
AHEAD = 2  # rounds under way


@contextmanager
def farm_of(boards: int, builders: int, hosts: int = 1) -> Iterator[LocalFarm]:
    with tempfile.TemporaryDirectory() as folder, LocalFarm(Path(folder)) as made:
        for host in range(hosts):
            own = [str(n // hosts) for n in (boards, builders)]
            made.start(f"host{host}", sys.executable, "-c", MEMBER, made.address, *own)
        with made.connect() as farm:
            wait_for(farm, boards, builders)
        yield made


class User:
    """Who keeps rounds of trials under way."""

    def __init__(self, farm: Farm, batch: int, build: float, seconds: float) -> None:
        self.builder = farm.builder()
        self.boards = FarmBoards(farm, matching(farm.boards(), None, None, farm.address)[0])
        self.batch, self.build, self.seconds = batch, build, seconds
        self.under_way: deque[list[Future[float]]] = deque()
        self.ends: list[float] = []

    def begin(self) -> None:
        self.under_way.append([self._trial() for _ in range(self.batch)])

    def finish(self) -> None:
        self.ends += [future.result() for future in self.under_way.popleft()]

    def _trial(self) -> Future[float]:
        outcome: Future[float] = Future()

        def ran(of: Future[float]) -> None:
            if (error := of.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(of.result())

        def built(of: Future[None]) -> None:
            if (error := of.exception()) is not None:
                outcome.set_exception(error)
            else:
                self.boards.submit(run_asleep, self.seconds).add_done_callback(ran)

        self.builder.submit(build_asleep, self.build).add_done_callback(built)
        return outcome


def rounds(made: LocalFarm, count: int, batch: int, build: float, seconds: float) -> float:
    """Seconds that so many rounds take, from the first run's begin to the last one's end."""
    with made.connect() as farm:
        user = User(farm, batch, build, seconds)
        for _ in range(AHEAD):
            user.begin()
        for _ in range(count - AHEAD):
            user.finish()
            user.begin()
        while user.under_way:
            user.finish()
    return max(user.ends) - min(user.ends) + seconds


def busy(seconds: float, count: int) -> dict[str, float]:
    with farm_of(8, 8) as made:
        took = rounds(made, count, 16, 0.1 * seconds, seconds)
    return {"share": count * 16 * seconds / (8 * took)}


def doubling(seconds: float, count: int) -> dict[str, float]:
    found = {}
    for boards in (1, 2, 4, 8):
        with farm_of(boards, 8) as made:
            took = rounds(made, count, 2 * boards, 0.1 * seconds, seconds)
        found[f"{boards} boards, trials/min"] = 60 * count * 2 * boards / took
    return found


def large(seconds: float, count: int) -> dict[str, float]:
    with farm_of(20, 50, hosts=2) as made:
        took = rounds(made, count, 40, 0.5 * seconds, seconds)
    return {"share": count * 40 * seconds / (20 * took)}


def shares(seconds: float, count: int) -> dict[str, float]:
    return _shared(seconds, count, 1.0)


def unequal(seconds: float, count: int) -> dict[str, float]:
    return _shared(seconds, count, 3.0)


def _shared(seconds: float, count: int, share: float) -> dict[str, float]:
    """Of the trials that end while both have some waiting, once places are known."""
    with farm_of(8, 8) as made, made.connect(share=share) as one, made.connect() as other:
        users = [User(farm, 16, 0.0, seconds) for farm in (one, other)]
        began = time.time()
        first = began + AHEAD * 32 * seconds / 8
        last = first + count * 32 * seconds / 8

        def keep_busy(user: User) -> None:
            for _ in range(AHEAD):
                user.begin()
            while time.time() < last:
                user.finish()
                user.begin()
            while user.under_way:
                user.finish()

        threads = [threading.Thread(target=keep_busy, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ended = [sum(first < end <= last for end in user.ends) for user in users]
    return {"first user": ended[0] / sum(ended), "second user": ended[1] / sum(ended)}


PARTS: dict[str, Callable[[float, int], dict[str, float]]] = {
    "busy": busy, "doubling": doubling, "large": large, "shares": shares, "unequal": unequal,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="that a run takes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = {}
    for name, part in PARTS.items():
        if options.only in (None, name):
            record[name] = part(options.seconds, options.rounds)
            for what, figure in record[name].items():
                print(f"{name:<10} {what:<24} {figure:8.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
