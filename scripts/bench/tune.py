"""How well, how fast and how safely kernels are tuned.

    python scripts/bench/tune.py [PART ...] [--trials N] [--seeds N] [--minutes N]
                                 [--board local://] [--json FILE]

quality      five workloads: the default, the best of the generated space alone, and of all spaces
guided       the cost model against chance, at equal trials, per seed (instructions, under QEMU)
throughput   trials per second of small kernels, the share that the search takes, memory
kills        a tuning that is killed at 25 random moments against one that is not
faults       10 % crash, 5 % hang, 5 % compute something else, a board is lost and returns
boards       two boards against one
mobilenet    executed instructions of MobileNetV1 before and after some minutes of tuning

`quality`, `throughput` and `boards` time on this machine, and mean something on a quiet one alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy import Target  # noqa: E402
from mlc_deploy.cli import main as command  # noqa: E402
from mlc_deploy.graph.lower import unscheduled_fused  # noqa: E402
from mlc_deploy.ir import structural_hash  # noqa: E402
from mlc_deploy.tune.api import Options, measuring, opened, run  # noqa: E402
from mlc_deploy.tune.boards import Board, BoardPool, Incident  # noqa: E402
from mlc_deploy.tune.database import Database  # noqa: E402
from mlc_deploy.tune.records import Measured, Task  # noqa: E402
from mlc_deploy.tune.runner import Request  # noqa: E402
from mlc_deploy.tune.space import PostOrderApply  # noqa: E402
from mlc_deploy.tune.tune import State  # noqa: E402
from mlc_rpc import Lost, Unreachable  # noqa: E402
from scripts.bench.kernels import Layer, conv, layer_function, multiplies  # noqa: E402
from tests.models.architectures import model_and_inputs  # noqa: E402
from tests.tune.test_tune import killed_and_resumed, results, tuned  # noqa: E402

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
) -> State:
    database = Database() if database is None else database  # an empty one is false
    target = tasks[0].target
    with opened(board, target, report) as boards:
        with measuring(target, options, boards, database) as by:
            by.boards = wrap(by.boards)
            return run(tasks, options, by)


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
            # of the generated space the default is no part, though it is measured, too
            best[name] = state.tasks[0].best if space is None else best_but_default(of, database)
        base = state.tasks[0].baseline
        found[layer.name] = {
            "default": base,
            **best,
            "generated_speed": base / best["generated"],
            "all_speed": base / best["all"],
        }
        print(
            f"  {layer.name:<26}", "  ".join(f"{k} {v:.4g}" for k, v in found[layer.name].items())
        )
    found["ok"] = all(
        f["generated_speed"] >= 0.95 and f["all_speed"] >= 1.0 for f in list(found.values())
    )
    return found


def guided(given: argparse.Namespace) -> Figures:
    """Best costs of the guided search and of chance, by seed; the templates are left out, since
    with them both begin at the default."""
    of = task(WORKLOADS[2], Target("aarch64"))
    rows = []
    for seed in range(given.seeds):
        row = {}
        for strategy in ("evolutionary", "random"):
            options = Options(given.trials, seed=seed, strategy=strategy, space=PostOrderApply())
            database = Database()
            tune([of], options, EMULATED, database)
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
    peaks: list[int] = []
    began, cpu = time.perf_counter(), cpu_seconds()
    with opened(given.board, tasks[0].target) as boards:
        options = Options(given.trials)
        with measuring(tasks[0].target, options, boards, Database()) as by:
            state = run(tasks, options, by, lambda _: peaks.append(resident()))
    seconds = time.perf_counter() - began
    quarter = max(len(peaks) // 4, 1)
    return {
        "trials": state.told,
        "trials_per_s": state.told / seconds,
        "thinking_share": state.thinking / seconds,
        "cpu_ms_per_trial": {k: 1e3 * (s - cpu[k]) / state.told for k, s in cpu_seconds().items()},
        "resident_bytes": {"first_quarter": peaks[quarter - 1], "end": peaks[-1]},
        "ok": state.told / seconds >= 8 and state.thinking / seconds < 0.25,
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
    """Boards whose candidates go wrong by chance, and which are lost every so often."""

    def __init__(self, boards: Any, seed: int = 3, lost_every: int = 20) -> None:
        self.boards, self.chance, self.every, self.count = (
            boards,
            random.Random(seed),
            lost_every,
            0,
        )
        self.lost: Counter[str] = Counter()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        (request,) = args
        self.count += 1
        number = self.chance.random()
        loses = self.count % self.every == 0

        def job(board: Board, request: Request) -> Measured:
            nonlocal loses
            if loses:
                loses = False
                self.lost["lost: power"] += 1
                raise Lost("power", board=board.url)
            if number < 0.10:
                return Measured("crash", message="SIGSEGV, injected")
            if number < 0.15:
                time.sleep(0.2)
                return Measured("timeout", message="no end, injected")
            if number < 0.20:
                return Measured("wrong", message="output 0, injected")
            found: Measured = fn(board, request)
            return found

        future: Future[Any] = self.boards.submit(job, request)
        return future


def faults(given: argparse.Namespace) -> Figures:
    of = task(WORKLOADS[2], Target("aarch64"))
    options = Options(given.trials, seed=2)
    quiet = tune([of], options, EMULATED).tasks[0].best
    incidents: list[Incident] = []
    faulty: list[Faulty] = []
    away = iter([0, 1, 1, 1, 1])

    def connect(url: str) -> Any:
        if next(away, 0):
            raise Unreachable("it boots, injected", board=url)
        return mlc.connect(url, machine="aarch64")

    def wrap(boards: Any) -> Faulty:
        faulty.append(Faulty(boards))
        return faulty[-1]

    with BoardPool([EMULATED], connect=connect, report=incidents.append, quarantine=0.5) as boards:
        state = tune([of], options, boards, wrap=wrap)
    best = state.tasks[0].best
    seen = Counter(i.what for i in incidents)
    return {
        "quiet": quiet,
        "faulty": best,
        "bad": state.bad,
        "incidents": dict(seen),
        "ok": best <= 1.05 * quiet and seen["lost: power"] == faulty[0].lost["lost: power"] > 0,
    }


def boards(given: argparse.Namespace) -> Figures:
    """Trials per second where runs dominate: candidates are measured carefully."""
    of = task(WORKLOADS[0], Target("host"))

    class Careful:
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            (request,) = args
            fields = {f: getattr(request, f) for f in Request.__slots__}
            future: Future[Any] = self.pool.submit(fn, Request(**(fields | {"careful": True})))
            return future

    rates = []
    for count in (1, 2):
        began = time.perf_counter()
        options = Options(given.trials // 4, strategy="random")
        state = tune([of], options, ["local://"] * count, wrap=Careful)
        rates.append(state.told / (time.perf_counter() - began))
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
    keys = ("before", "after", "trials", "tuning_s", "thinking_s", "results", "incidents", "ok")
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


def resident() -> int:
    """Bytes of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


PARTS = {f.__name__: f for f in (quality, guided, throughput, kills, faults, boards, mobilenet)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=10)
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
