"""How well, how fast and how safely kernels are tuned.

    python scripts/bench/tune.py [PART ...] [--trials N] [--seeds N] [--minutes N]
                                 [--first-seed N] [--long N] [--board local://] [--json FILE]

quality      five workloads: the default, the best of the generated space alone, and of all spaces
guided       the cost model against chance, at equal trials, per seed (instructions, under QEMU)
throughput   trials per second of small kernels, and the share that the search takes
memory       resident bytes of this process and of its workers during a long run
kills        a tuning that is killed at 25 random moments against one that is not
faults       10 % crash, 5 % hang, 5 % compute something else, a board is lost and returns
boards       two boards against one, where a run takes far longer than a build
mobilenet    executed instructions of MobileNetV1 before and after some minutes of tuning

`quality`, `throughput` and `boards` time on this machine, and mean something on a quiet one alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy import Target, te  # noqa: E402
from mlc_deploy.cli.main import main as command  # noqa: E402
from mlc_deploy.driver.builder import build_object, builder  # noqa: E402
from mlc_deploy.graph.lower import unscheduled_fused  # noqa: E402
from mlc_deploy.ir import structural_hash  # noqa: E402
from mlc_deploy.tune.api import Options, measuring, opened, run  # noqa: E402
from mlc_deploy.tune.boards import Board, BoardPool, Incident  # noqa: E402
from mlc_deploy.tune.extract import task_of  # noqa: E402
from mlc_deploy.tune.records import Task  # noqa: E402
from mlc_deploy.tune.runner import Request, measure  # noqa: E402
from mlc_deploy.tune.space import PostOrderApply  # noqa: E402
from mlc_deploy.tune.tune import State  # noqa: E402
from mlc_deploy.tuned import Database, Measured  # noqa: E402
from mlc_rpc import Lost, Unreachable  # noqa: E402
from scripts.bench.kernels import Layer, conv, layer_function, multiplies  # noqa: E402
from tests.models.architectures import model_and_inputs  # noqa: E402
from tests.tune.whole import killed_and_resumed, results, tuned  # noqa: E402

Figures = dict[str, Any]
EMULATED = "qemu://cortex-a72"
WORKLOADS = (
    Layer("matmul 512^3", "matmul", (512, 512), (512, 512)),
    conv("conv 3x3 64 56x56", (64, 56, 56), (64, 64, 3, 3), pad=1),
    conv("conv 1x1 256 14x14", (256, 14, 14), (256, 256, 1, 1)),
    conv("depthwise 3x3 128 56x56", (128, 56, 56), (128, 1, 3, 3), 1, 1, 128),
    Layer("dense 784-128", "dense", (1, 784), (128, 784), {"transpose_b": True}),
)
SMALL = (
    conv("conv 1x1 64 14x14", (64, 14, 14), (64, 64, 1, 1)),
    Layer("dense 256-64", "dense", (1, 256), (64, 256), {"transpose_b": True}),
)
MANY = (
    *SMALL,
    conv("conv 3x3 16 14x14", (16, 14, 14), (32, 16, 3, 3), pad=1),
    Layer("matmul 64^3", "matmul", (64, 64), (64, 64)),
)
LOST_EVERY = 20  # requests
RUNS = 16  # careful ones of a candidate, where runs are to dominate: 3 s, and 0.1 s for a build


def task(layer: Layer, target: Target) -> Task:
    begun = unscheduled_fused(layer_function(layer, target), target, "main")
    return Task(layer.name, begun.func, target, begun.schedule, 1, None, 2.0 * multiplies(layer))


def tune(
    tasks: Sequence[Task],
    options: Options,
    board: str | Sequence[str] | BoardPool,
    database: Database | None = None,
    wrap: Callable[[Any], Any] = lambda boards: boards,
    report: Callable[[Incident], None] = lambda _: None,
    watch: Callable[[State], None] = lambda _: None,
) -> State:
    database = Database() if database is None else database  # an empty one is false
    target = tasks[0].target
    with opened(board, target, report) as boards:
        with measuring(target, options, boards, database) as by:
            by.boards = wrap(by.boards)
            return run(tasks, options, by, watch)


def quality(given: argparse.Namespace) -> Figures:
    """Seconds of the default and of the best, per workload."""
    found: Figures = {}
    target = Target("host") if given.board == "local://" else Target("aarch64")
    for layer in WORKLOADS:
        of = task(layer, target)
        best = {}
        for name, space in (("generated", PostOrderApply()), ("all", None)):
            database = Database()
            options = Options(given.trials, seed=1, space=space)
            state = tune([of], options, given.board, database)
            # of the generated space the default is not a part, though it is measured, too
            best[name] = state.tasks[0].best if space is None else best_but_default(of, database)
        base = state.tasks[0].baseline
        found[layer.name] = {
            "default": base,
            **best,
            "generated_speed": base / best["generated"],
            "all_speed": base / best["all"],
            "all_of_best": min(best.values()) / best["all"],
        }
        print(
            f"  {layer.name:<26}", "  ".join(f"{k} {v:.4g}" for k, v in found[layer.name].items())
        )
    found["ok"] = all(
        f["generated_speed"] >= 0.95 and f["all_speed"] >= 1.0 and f["all_of_best"] >= 0.95
        for f in list(found.values())
    )
    return found


class Once:
    """An executor whose jobs are done once for all that is the same by `key`."""

    def __init__(self, executor: Any, key: Callable[..., Any]) -> None:
        self.executor, self.key = executor, key
        self.done: dict[Any, Future[Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        key = self.key(*args)
        if key not in self.done:
            self.done[key] = self.executor.submit(fn, *args)
        return self.done[key]


def guided(given: argparse.Namespace) -> Figures:
    """Best counts of instructions of the guided search and of chance, by seed; the templates are
    left out, since with them both begin at the default. Each has a database of its own, so neither
    knows of the other; but what both try is counted once."""
    of = task(SMALL[0], Target("aarch64"))
    rows = []
    with opened(EMULATED, of.target) as boards, builder() as workers:
        build: Any = Once(workers, lambda func, target: structural_hash(func))
        run_once: Any = Once(boards, lambda request: (request.object, request.best < inf))
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            row = {}
            for strategy in ("evolutionary", "random"):
                space = PostOrderApply()
                options = Options(given.trials, seed=seed, strategy=strategy, space=space)
                database = Database()
                with measuring(of.target, options, boards, database, build) as by:
                    by.boards = run_once
                    run([of], options, by)
                row[strategy] = best_but_default(of, database)
            rows.append(row)
            print(f"  seed {seed}: {row}", flush=True)
    wins = sum(r["evolutionary"] < r["random"] for r in rows)
    return {"seeds": rows, "wins": wins, "ok": wins >= 0.8 * given.seeds}


def best_but_default(of: Task, database: Database) -> float:
    """The lowest cost of what was tried, the default apart."""
    default = structural_hash(of.default(of.func))
    ranked = database.query(of.workload, str(of.target))
    return next((r.cost for r in ranked if r.program != default), float("inf"))


def throughput(given: argparse.Namespace) -> Figures:
    tasks = [task(layer, Target("host")) for layer in SMALL]
    began, cpu = time.perf_counter(), cpu_seconds()
    state = tune(tasks, Options(given.trials), given.board)
    seconds = time.perf_counter() - began
    return {
        "trials": state.told,
        "trials_per_s": state.told / seconds,
        "thinking_share": state.thinking / seconds,
        "cpu_ms_per_trial": {k: 1e3 * (s - cpu[k]) / state.told for k, s in cpu_seconds().items()},
        "ok": state.told / seconds >= 8 and state.thinking / seconds < 0.25,
    }


def memory(given: argparse.Namespace) -> Figures:
    """What this process has, and what builders and boards have together, as trials go by: medians
    of twelve spans, since a builder has more in the middle of a kernel than between two. Most of
    the first hundreds is what a search keeps, so growth counts from the span after the 500th."""
    tasks = [task(layer, Target("host")) for layer in MANY]
    span = max(1, given.long // 12)
    samples: list[tuple[int, int]] = []  # of the span that is under way
    rows: list[tuple[int, float, float]] = []

    def close(end: int) -> None:
        own, workers = (statistics.median(side) for side in zip(*samples, strict=True))
        rows.append((end, own, workers))
        samples.clear()
        print(f"  to {end} trials: {own / 1e6:.1f} MB, workers {workers / 1e6:.1f} MB", flush=True)

    def watch(state: State) -> None:
        samples.append((resident(), sum(map(resident, descendants(os.getpid())))))
        if state.told >= (len(rows) + 1) * span:
            close(state.told)

    state = tune(tasks, Options(given.long), given.board, watch=watch)
    if samples:
        close(state.told)
    settled = next((row for before, row in pairwise(rows) if before[0] >= 500), rows[-1])
    grown = [rows[-1][side] - settled[side] for side in (1, 2)]
    return {
        "trials": state.told,
        "rows": rows,
        "grown_bytes": grown[0],
        "grown_bytes_of_workers": grown[1],
        "ok": max(grown) < 10e6,
    }


def kills(given: argparse.Namespace) -> Figures:
    whole = Database()
    tuned(whole)
    with tempfile.TemporaryDirectory() as folder:
        killed_and_resumed(Path(folder) / "db", kills=25, seed=7)
        found = Database(Path(folder) / "db")
    same = sorted(results(found)) == sorted(results(whole))
    doubled = len(found) - len({(r.task, r.program) for r in found.records})
    lost = len({r.program for r in whole.records} - {r.program for r in found.records})
    return {
        "kills": 25, "same_results": same, "doubled": doubled, "lost": lost,
        "ok": same and not doubled and not lost,
    }  # fmt: skip


class Faulty:
    """Boards that are sent another object by chance: one that crashes, one without end, one that
    computes something else; and that are lost every so often."""

    def __init__(self, boards: Any, bad: dict[str, bytes], seed: int = 3) -> None:
        self.boards, self.bad, self.chance = boards, bad, random.Random(seed)
        self.count = 0
        self.injected: Counter[str] = Counter()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        (request,) = args
        self.count += 1
        number = self.chance.random()
        kind = "crash" if number < 0.1 else "timeout" if number < 0.15 else "wrong"
        if self.count > 1 and number < 0.2:  # the first is the default, which all are held against
            self.injected[kind] += 1
            request = replace(request, object=self.bad[kind])
        loses = self.count % LOST_EVERY == 0

        def job(board: Board, request: Request) -> Measured:
            nonlocal loses
            if loses:
                loses = False
                self.injected["lost: power"] += 1
                raise Lost("power", board=board.url)
            found: Measured = fn(board, request)
            return found

        future: Future[Any] = self.boards.submit(job, request)
        return future


def bad_objects(of: Task) -> dict[str, bytes]:
    """Kernels of a task's parameters that do not do what they should, by what becomes of them."""
    *inputs, out = [
        te.placeholder(b.shape, b.dtype, f"p{n}") for n, b in enumerate(of.func.buffers)
    ]
    first = inputs[0]
    *rest, last = of.func.buffers[0].shape
    turns = te.reduce_axis((0, 1 << 30), "turns")
    rest_at_0 = [0] * len(rest)
    value = first[(*rest_at_0, 0)]
    outside = (value * 1e8).astype("int32") + 100_000_000
    bodies: dict[str, Callable[..., Any]] = {
        "crash": lambda *_: first[(*rest_at_0, outside)],
        "timeout": lambda *_: te.sum(first[(*rest_at_0, turns % last)], turns),
        "wrong": lambda *_: value * 3.0,
    }
    return {kind: bad_object([*inputs, te.compute(out.shape, f, "out")], of.target)
            for kind, f in bodies.items()}  # fmt: skip


def bad_object(tensors: Sequence[Any], target: Target) -> bytes:
    made = task_of(te.create_prim_func(tensors, "bad"), target)
    return build_object(made.default(made.func), target)


def faults(given: argparse.Namespace) -> Figures:
    of = task(SMALL[0], Target("aarch64"))
    options = Options(given.trials, seed=2)
    quiet = tune([of], options, EMULATED).tasks[0].best
    incidents: list[Incident] = []
    faulty: list[Faulty] = []
    away = iter([0, 1, 1, 1, 1])

    def connect(url: str) -> Any:
        session = mlc.connect(url, machine="aarch64")
        again = session.reconnect

        def reconnect(patience: float) -> None:
            if next(away, 0):
                raise Unreachable("it boots, injected", board=url)
            again(patience)

        session.reconnect = reconnect  # type: ignore[assignment, method-assign]
        return session

    def wrap(boards: Any) -> Faulty:
        faulty.append(Faulty(boards, bad_objects(of)))
        return faulty[-1]

    with BoardPool([EMULATED], connect=connect, report=incidents.append, quarantine=0.5) as boards:
        state = tune([of], options, boards, wrap=wrap)
    best = state.tasks[0].best
    seen = Counter(i.what for i in incidents)
    told = {**state.bad, "lost: power": seen["lost: power"]}
    injected = dict(faulty[0].injected)
    return {
        "quiet": quiet,
        "faulty": best,
        "injected": injected,
        "bad": state.bad,
        "incidents": dict(seen),
        "ok": best <= 1.05 * quiet and all(told.get(k) == n for k, n in injected.items()),
    }


def boards(given: argparse.Namespace) -> Figures:
    """Trials per second where runs dominate: each candidate is measured carefully, and again; all
    as often, since what two runs on one machine do to each other is not what boards do."""
    of = task(SMALL[0], Target("host"))

    def patient(board: Board, request: Request) -> Measured:
        careful = replace(request, careful=True, repetitions=1)
        return [measure(board, careful) for _ in range(RUNS)][-1]

    class Patient:
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        def submit(self, _: Callable[..., Any], /, *args: Any) -> Future[Any]:
            future: Future[Any] = self.pool.submit(patient, *args)
            return future

    rates = []
    for count in (1, 2):
        began = time.perf_counter()
        options = Options(given.trials // 4, strategy="random", objective="seconds")
        state = tune([of], options, ["local://"] * count, wrap=Patient)
        rates.append(state.told / (time.perf_counter() - began))
        print(f"  {count} boards: {rates[-1]:.3f} trials/s", flush=True)
    gain = rates[1] / rates[0]
    return {"one": rates[0], "two": rates[1], "gain": gain, "ok": gain >= 1.7}


def mobilenet(given: argparse.Namespace) -> Figures:
    """By the command line, as a user does it."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "mobilenet_v1.onnx", Path(folder) / "record.json"
        onnx.save(model_and_inputs("mobilenet_v1")[0], file)
        db = given.db or str(Path(folder) / "db.jsonl")
        command(
            ["tune", str(file), "--target", "aarch64", "--board", EMULATED, "--board", EMULATED,
             "--trials", "100000", "--minutes", str(given.minutes), "--db", db, "--json", str(out)]
        )  # fmt: skip
        record = json.loads(out.read_text())
    keys = (
        "plans",
        "before",
        "after",
        "trials",
        "tuning_s",
        "thinking_s",
        "results",
        "incidents",
        "ok",
    )
    found = {key: record[key] for key in keys}
    return found | {
        "gain": record["before"] / record["after"],
        "tasks": record["tasks"],
        "ok": record["ok"] and record["after"] < record["before"],
    }


def cpu_seconds() -> dict[str, float]:
    """Of this process, which searches, and of those that have ended, which built and ran: what a
    busy machine tells."""
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"own": own.ru_utime + own.ru_stime, "workers": others.ru_utime + others.ru_stime}


def resident(pid: int | str = "self") -> int:
    """Bytes of a process; 0 of one that has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those started by them."""
    found: list[int] = []
    with suppress(OSError):
        for tasks in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (tasks / "children").read_text().split())
    return [*found, *(below for child in found for below in descendants(child))]


PARTS = {
    f.__name__: f for f in (quality, guided, throughput, memory, kills, faults, boards, mobilenet)
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--long", type=int, default=3000, help="trials of memory")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--board", default="local://")
    parser.add_argument("--db", help="of mobilenet, to keep it")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    record: Figures = {}
    for name in given.parts or PARTS:
        print(name, flush=True)
        began = time.perf_counter()
        record[name] = PARTS[name](given) | {"seconds": time.perf_counter() - began}
        short = {k: v for k, v in record[name].items() if not isinstance(v, (list, dict))}
        print(f"  {short}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(found["ok"] for found in record.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
