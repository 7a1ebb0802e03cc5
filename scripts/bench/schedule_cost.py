"""What scheduling costs: one trace applied to a conv2d and lowered, and many sampled ones.

    python scripts/bench/schedule_cost.py [--repeat 15] [--traces 1000] [--json FILE]

Prints a table; the JSON has the same figures. The targets: applying a trace of 30 primitives and
lowering what it makes takes less than 50 ms of one core, and 1,000 traces, sampled and lowered,
leave no more memory behind than 100 do. Times are the process's own, so that other programs on the
machine disturb little; they still share its caches: measure on an idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
import tracemalloc
from pathlib import Path
from random import Random

from mlc_deploy import PassContext, PrimFunc, Schedule, TimingInstrument, lower, te
from mlc_deploy.schedule.trace import Trace

LOOKS = ("get_block", "get_loops", "get_child_blocks", "get_producers", "get_consumers")
PAGE = 4096
WARM = 100  # traces after which memory must not grow


def conv2d(channels: int = 64, size: int = 56) -> PrimFunc:
    """A padded 3x3 convolution with bias and relu, NCHW, weights as they come."""
    x = te.placeholder((1, channels, size, size), "float32", "x")
    w = te.placeholder((channels, channels, 3, 3), "float32", "w")
    bias = te.placeholder((channels,), "float32", "bias")
    inner = size + 1
    padded = te.compute(
        (1, channels, size + 2, size + 2),
        lambda n, c, i, j: te.if_then_else(
            te.all_of(i >= 1, i < inner, j >= 1, j < inner), x[n, c, i - 1, j - 1], 0
        ),
        name="pad",
    )
    c = te.reduce_axis((0, channels), "c")
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")
    shape = (1, channels, size, size)
    conv = te.compute(
        shape,
        lambda n, f, i, j: te.sum(padded[n, c, i + ky, j + kx] * w[f, c, ky, kx], (c, ky, kx)),
        name="conv",
    )
    biased = te.compute(shape, lambda n, f, i, j: conv[n, f, i, j] + bias[f], name="biased")
    relu = te.compute(shape, lambda n, f, i, j: te.maximum(biased[n, f, i, j], 0), name="relu")
    return te.create_prim_func([x, w, bias, relu], "conv2d")


def schedule_sampled(sch: Schedule) -> None:
    """30 primitives: a register tile of sampled size, packed weights, vectors of 4, one parallel
    loop."""
    sch.compute_inline("biased")
    n, f, i, j = sch.get_loops("relu")
    deep = sch.sample_categorical([4, 8], [0.5, 0.5])
    across = sch.sample_categorical([2, 4, 7, 8], [0.25] * 4)
    f0, f1 = sch.split(f, [None, deep])
    j0, j1 = sch.split(j, [None, across])
    sch.reorder(n, f0, i, j0, f1, j1)
    packed = sch.cache_read("conv", 1, "global")
    sch.transform_layout("conv", ("read", 1), "lambda f, c, y, x: (f // 8, c, y, x, f % 8)")
    sch.compute_at("conv", j0)
    sch.set_scope("conv", 0, "local")
    *_, ax_f, ax_j, c, ky, kx = sch.get_loops("conv")
    sch.unroll(kx)
    sch.reorder(c, ky, kx, ax_j, ax_f)
    init = sch.decompose_reduction("conv", c)
    *_, ax_j, ax_f = sch.get_loops("conv")
    sch.unroll(ax_j)
    sch.vectorize(ax_f)
    *_, init_f, init_j = sch.get_loops(init)
    sch.unroll(init_f)
    sch.unroll(init_j)
    sch.unroll(f1)
    sch.vectorize(j1)
    sch.annotate("conv", "tile", 1)
    sch.parallel(sch.fuse(n, f0))
    *_, p = sch.get_loops("pad")
    p0, p1 = sch.split(p, sch.sample_perfect_tile(p, 2))
    sch.unroll(p1)
    sch.annotate(p0, "pad", 1)
    loops = sch.get_loops(packed)
    q0, q1 = sch.split(loops[0], [None, 8])
    sch.annotate(q0, "pack", 1)
    sch.parallel(sch.fuse(q0, q1))
    sch.annotate(packed, "weights", 1)
    sch.unannotate(packed, "weights")


def applied(func: PrimFunc, trace: Trace) -> Schedule:
    sch = Schedule(func)
    trace.apply(sch)
    return sch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    func = conv2d()
    one = cost_of_one(func, options.repeat)
    for name, value in one.items():
        print(f"{name:<22}{value:>9.1f}")
    many = cost_of_many(func, options.traces)
    for name, value in many.items():
        print(f"{name:<22}{value:>9.1f}")
    print(passes(func))
    if options.json:
        record = {
            "host": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "traces": options.traces,
            "figures": {**one, **many},
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def cost_of_one(func: PrimFunc, repeat: int) -> dict[str, float]:
    """Of one trace, in milliseconds of the process: medians, and the best in all."""
    sch = Schedule(func, seed=1)
    schedule_sampled(sch)
    trace = sch.trace
    applying, lowering = [], []
    for _ in range(repeat):
        gc.collect()
        start = time.process_time()
        sch = applied(func, trace)
        middle = time.process_time()
        lower(sch)
        applying.append((middle - start) * 1e3)
        lowering.append((time.process_time() - middle) * 1e3)
    return {
        "primitives": sum(i.name not in LOOKS for i in trace.instructions),
        "apply, ms": statistics.median(applying),
        "lower, ms": statistics.median(lowering),
        "both, ms": statistics.median(map(float.__add__, applying, lowering)),
        "both, least ms": min(map(float.__add__, applying, lowering)),
    }


def cost_of_many(func: PrimFunc, traces: int) -> dict[str, float]:
    """Of many sampled traces: milliseconds each, and what memory grows by after the first 100."""
    seeds = Random(0)
    start = time.process_time()
    settled = resident = 0
    tracemalloc.start(1)
    for number in range(traces):
        if number == min(WARM, traces - 1):
            gc.collect()
            settled, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
        sch = Schedule(func, seed=seeds.getrandbits(32))
        schedule_sampled(sch)
        lower(sch)
    del sch
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - settled
    tracemalloc.stop()
    return {
        "traced each, ms": (time.process_time() - start) * 1e3 / traces,
        "Python grows, KB": grown / 1024,
        "process grows, KB": (resident_bytes() - resident) / 1024,
    }


def resident_bytes() -> int:
    """Of this process, where the system tells (Linux); else 0."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def passes(func: PrimFunc) -> str:
    timing = TimingInstrument()
    sch = Schedule(func, seed=1)
    schedule_sampled(sch)
    with PassContext(instruments=[timing]):
        lower(sch)
    return timing.render()


if __name__ == "__main__":
    main()
