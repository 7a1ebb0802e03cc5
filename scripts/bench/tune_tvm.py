"""Our tuner and TVM 0.27's MetaSchedule, side by side: same host, same trials, one thread.

    python scripts/bench/tune_tvm.py [--trials N] [--only TEXT] [--json FILE]

TVM comes from PyPI into an environment of its own in the user's cache. Its workloads are stated in
its tensor expressions on plain layouts; ours are as the graph gives them. Seconds are of one call
of the best kernel, timed by each side's own time_evaluator at the end, and of the whole tuning. The
exit status is 0 where our kernels are as fast for four of the five, in 0.7 of the time for all.
Both take turns on the same machine, which should be quiet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mlc_deploy import Target  # noqa: E402
from mlc_deploy.driver.cache import user_folder  # noqa: E402
from mlc_deploy.tune.api import Options  # noqa: E402
from scripts.bench.tune import WORKLOADS, task, tune  # noqa: E402

REQUIREMENTS = ("apache-tvm[meta-schedule,popen-pool]==0.27.*",)

# TVM registers hundreds of intrinsics when it is imported, each of which asks for the module of
# every frame. That takes 20 seconds in each of its workers, so that builds time out; with this 4.
SITE = """
import inspect
inspect.getmodule = lambda *_, **__: None
"""

# What runs in TVM's environment: tunes one workload, prints seconds of tuning and of the kernel.
THEIRS = """
import json, os, sys, tempfile, time
import numpy as np, tvm
import tvm.s_tir.tensor_intrin
from tvm import te
from tvm.s_tir import meta_schedule as ms

def conv(n, c, h, w, o, kh, kw, pad, groups=1):
    x = te.placeholder((n, c, h, w), name="x")
    k = te.placeholder((o, c // groups, kh, kw), name="k")
    y = x
    if pad:
        y = te.compute((n, c, h + 2 * pad, w + 2 * pad), lambda a, b, i, j: te.if_then_else(
            te.all(i >= pad, i < h + pad, j >= pad, j < w + pad), x[a, b, i - pad, j - pad], 0.0),
            name="pad")
    rc, ry, rx = (te.reduce_axis((0, e), name=v) for e, v in
                  ((c // groups, "rc"), (kh, "ry"), (kw, "rx")))
    oh, ow = h + 2 * pad - kh + 1, w + 2 * pad - kw + 1
    per = o // groups
    z = te.compute((n, o, oh, ow), lambda a, f, i, j: te.sum(
        y[a, (f // per) * (c // groups) + rc if groups > 1 else rc, i + ry, j + rx]
        * k[f, rc, ry, rx], axis=[rc, ry, rx]), name="conv")
    return [x, k, z]

def matmul(m, n, k, transpose):
    a = te.placeholder((m, k), name="a")
    b = te.placeholder((n, k) if transpose else (k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(
        a[i, r] * (b[j, r] if transpose else b[r, j]), axis=r), name="c")]

WORKLOADS = {
    "matmul 512^3": lambda: matmul(512, 512, 512, False),
    "conv 3x3 64 56x56": lambda: conv(1, 64, 56, 56, 64, 3, 3, 1),
    "conv 1x1 256 14x14": lambda: conv(1, 256, 14, 14, 256, 1, 1, 0),
    "depthwise 3x3 128 56x56": lambda: conv(1, 128, 56, 56, 128, 3, 3, 1, 128),
    "dense 784-128": lambda: matmul(1, 128, 784, True),
}
name, trials, cpu = sys.argv[1], int(sys.argv[2]), sys.argv[3]
tensors = WORKLOADS[name]()
mod = tvm.IRModule({"main": te.create_prim_func(tensors)})
target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
began = time.perf_counter()
with tempfile.TemporaryDirectory() as folder:
    database = ms.tune_tir(mod, target, folder, trials, num_trials_per_iter=min(64, trials),
                           num_tuning_cores=os.cpu_count(), seed=1)
    seconds = time.perf_counter() - began
    sch = ms.tir_integration.compile_tir(database, mod, target)
lib = tvm.compile(sch.mod, target=target).jit()
device = tvm.cpu()
arrays = [tvm.runtime.tensor(np.random.rand(*map(int, t.shape)).astype("float32"), device)
          for t in tensors]
timed = lib.time_evaluator("main", device, number=1, repeat=7, min_repeat_ms=50)(*arrays)
print(json.dumps({"tuning_s": seconds, "kernel_s": float(np.median(timed.results))}))
"""


def environment() -> Path:
    """The Python of an environment that has TVM, made where there is none."""
    folder = user_folder() / "tvm-0.27"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {REQUIREMENTS[0]} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "sitecustomize.py").write_text(SITE)
        (folder / "ready").touch()
    return python


def theirs(python: Path, name: str, trials: int, cpu: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", THEIRS, name, str(trials), cpu], capture_output=True, text=True,
        env={"TVM_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr or done.stdout)[-800:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(layer: Any, trials: int) -> dict[str, Any]:
    began = time.perf_counter()
    state = tune([task(layer, Target("host"))], Options(trials, seed=1), "local://")
    seconds = time.perf_counter() - began
    return {"tuning_s": seconds, "kernel_s": min(state.tasks[0].best, state.tasks[0].baseline)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--only", default="", help="workloads whose names contain this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    python = environment()
    cpu = Target("host").llvm_cpu
    line = "{:<26}{:>12}{:>12}{:>8}{:>12}{:>12}{:>8}"
    print(line.format("workload", "ours µs", "TVM µs", "ratio", "ours s", "TVM s", "ratio"))
    record: dict[str, Any] = {}
    for layer in WORKLOADS:
        if given.only not in layer.name:
            continue
        a, b = ours(layer, given.trials), theirs(python, layer.name, given.trials, cpu)
        record[layer.name] = {"ours": a, "tvm": b}
        if "error" in b:
            print(f"{layer.name}: TVM failed: {b['error']}")
            continue
        kernels, tunings = (a["kernel_s"], b["kernel_s"]), (a["tuning_s"], b["tuning_s"])
        cells = [f"{x * 1e6:.1f}" for x in kernels] + [f"{kernels[0] / kernels[1]:.2f}"]
        cells += [f"{x:.1f}" for x in tunings] + [f"{tunings[0] / tunings[1]:.2f}"]
        print(line.format(layer.name, *cells), flush=True)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    fast = [r["ours"]["kernel_s"] <= r["tvm"].get("kernel_s", 0) for r in record.values()]
    spent = [sum(r[side].get("tuning_s", 0) for r in record.values()) for side in ("ours", "tvm")]
    print(f"as fast: {sum(fast)} of {len(fast)}; tuning {spent[0]:.0f} s against {spent[1]:.0f}")
    return 0 if sum(fast) >= min(4, len(fast)) and spent[0] <= 0.7 * spent[1] else 1


if __name__ == "__main__":
    sys.exit(main())
