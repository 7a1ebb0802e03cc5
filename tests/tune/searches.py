"""Searches, tasks and boards that are simple enough to know what must come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from mlc_deploy import Schedule, Target, te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import PrimFunc, structural_hash
from mlc_deploy.schedule.trace import Trace
from mlc_deploy.tune.extract import task_of
from mlc_deploy.tune.records import Candidate, Task
from mlc_deploy.tune.runner import Request
from mlc_deploy.tuned import Measured

HOST = Target("host")


def matmul(m: int = 32, n: int = 32, k: int = 32) -> PrimFunc:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    over = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, over] * b[over, j], over), name="c")
    return te.create_prim_func([a, b, c], "main")


def matmul_task(m: int = 32, n: int = 32, k: int = 32, target: Target = HOST) -> Task:
    return task_of(matmul(m, n, k), target, f"matmul_{m}_{n}_{k}")


def sampled(sch: Schedule) -> None:
    """A space of some hundreds of points."""
    i, j, k = sch.get_loops("c")
    i0, i1 = sch.split(i, sch.sample_perfect_tile(i, 2, 16))
    j0, j1 = sch.split(j, sch.sample_perfect_tile(j, 2, 16))
    sch.reorder(i0, j0, k, i1, j1)
    if sch.sample_categorical([0, 1], [0.5, 0.5]):
        sch.vectorize(j1)


class Sampling:
    """Random points of a space, none twice; what it is told makes no difference."""

    def __init__(
        self,
        task: Task,
        seed: int,
        known: Sequence[Trace] = (),
        space: Callable[[Schedule], None] = sampled,
    ) -> None:
        self.task, self.known, self.space = task, list(known), space
        self.seed, self.seen = seed, set[str]()
        self.told: list[tuple[str, float]] = []

    def propose(self, n: int) -> list[Candidate]:
        found: list[Candidate] = []
        for _ in range(10 * n):
            if len(found) == n:
                break
            self.seed += 1
            sch = Schedule(self.task.func, seed=self.seed)
            try:
                self.space(sch)
            except ScheduleError:
                continue
            candidate = Candidate(sch.trace, sch.func)
            if candidate.program not in self.seen:
                self.seen.add(candidate.program)
                found.append(candidate)
        return found

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        self.told += [(c.program, cost) for c, cost in results]


class Following(Sampling):
    """What it proposes depends on all that it was told."""

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        super().tell(results)
        for candidate, cost in results:
            self.seed = hash_of(f"{self.seed} {candidate.program} {cost}") % 2**32


DRAW = b"3"  # one in which no default kernel is bad, and every search meets some that are


def hash_of(text: str) -> int:
    from hashlib import blake2b

    return int.from_bytes(blake2b(text.encode(), digest_size=6, salt=DRAW).digest(), "little")


def cost_of(code: bytes) -> int:
    """Instructions, so to speak: a number that an object always gives. No object is so much cheaper
    than others that a tuner leaves its kernel alone."""
    return 50_000 + hash_of(code.hex()) % 50_000


class CountingBoards:
    """Stands for a pool of boards, and counts what an object would cost. `answer` may say
    something else for an object."""

    def __init__(self, answer: Callable[[Request], Measured | None] = lambda _: None) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        (request,) = args
        self.requests.append(request)
        future: Future[Any] = Future()
        said = self.answer(request)
        future.set_result(said or Measured("ok", (), cost_of(request.object), "emulated"))
        return future


class Naming(Executor):
    """Stands for workers that build: an object is the name of its program."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        func, _ = args
        future: Future[Any] = Future()
        future.set_result(structural_hash(func).encode())
        return future
