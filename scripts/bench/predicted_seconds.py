"""The model of times, calibrated here with onnxruntime's kernels alone, held against ours.

    python scripts/bench/predicted_seconds.py [MODEL ...] [--repeat N] [--json FILE] [--counts FILE]

Layers (layers()) run by onnxruntime on one thread: qemu-x86_64 counts them by our plugin, with the
caches of this machine simulated, and they are timed here. The figures of mlc_deploy/predict are
fitted to that. Then models of tests/models/architectures.py are compiled for this machine, counted
in the same way, predicted, and timed on local://, one thread. A time is the least of its samples
(of a model: of each layer), since other programs only make it longer, and what is fitted and what
is predicted take turns; still this wants a quiet machine. Exit status 1 where a prediction is off
by more than LIMIT. Nothing of ours is fitted. --counts keeps what the emulator counted, minutes of
one core, from one run to the next. Where the CPU has vectors that QEMU does not know, neither
onnxruntime nor our code uses them here (as_emulated.py): what runs is what was counted.

Needs a Linux on x86-64 and qemu-x86_64 (qemu-user 7.2 or later, which knows AVX2).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.bench.as_emulated import hide_unknown  # noqa: E402

if __name__ == "__main__":  # nobody who imports this loses instructions by it
    hide_unknown()  # before onnxruntime chooses its kernels, and before "host" is looked up

import onnxruntime  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.board.runtime_files import counting_plugin, runtime_file  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.predict.model import Work, predict  # noqa: E402
from mlc_rpc import Session  # noqa: E402
from mlc_rpc.counters import CallCounts, Counter, parse_records, per_call  # noqa: E402
from mlc_rpc.process import ProcessTransport  # noqa: E402
from mlc_targets.caches import Cache, caches_option  # noqa: E402
from mlc_targets.cores import LINE_BYTES, Speed  # noqa: E402
from tests.models.architectures import NAMES, model_and_inputs  # noqa: E402

LIMIT = 0.15
MODELS = ("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50",
          "efficientnet_b0", "vit_tiny", "bert_tiny", "light_squeezenet",
          "light_inception_v1")  # fmt: skip
GUEST = Path(__file__).parent / "calibration" / "ort_layers.py"
QEMU = ("qemu-x86_64", "-cpu", "max")
RUN_SECONDS = 3600.0  # in the emulator
ROUNDS = 20  # of loading and timing
SAMPLE_S = 0.02  # of a layer of theirs
MHZ = 1000  # figures are then nanoseconds

# channels in, out, kernel, stride, groups, extent
CONVOLUTIONS = (
    (3, 32, 3, 2, 1, 224), (3, 64, 7, 2, 1, 224), (32, 64, 1, 1, 1, 112), (64, 128, 1, 1, 1, 56),
    (128, 128, 1, 1, 1, 56), (256, 256, 1, 1, 1, 28), (512, 512, 1, 1, 1, 14),
    (1024, 1024, 1, 1, 1, 7), (256, 64, 1, 1, 1, 56), (2048, 512, 1, 1, 1, 7),
    (16, 64, 1, 1, 1, 56), (64, 64, 3, 1, 1, 56), (128, 128, 3, 1, 1, 28), (256, 256, 3, 1, 1, 14),
    (512, 512, 3, 1, 1, 7), (64, 128, 3, 2, 1, 56), (32, 32, 3, 1, 32, 112),
    (96, 96, 3, 2, 96, 112), (128, 128, 3, 1, 128, 56), (256, 256, 5, 1, 256, 28),
    (512, 512, 3, 1, 512, 14),
    # Few outputs: more loads per multiplication, as the layers above all have the same.
    (256, 8, 1, 1, 1, 56), (256, 16, 1, 1, 1, 56), (64, 8, 3, 1, 1, 56), (64, 16, 3, 1, 1, 56),
    (512, 8, 1, 1, 1, 28), (1024, 16, 1, 1, 1, 14),
)  # fmt: skip
PRODUCTS = (
    (128, 512, 512),
    (128, 256, 1024),
    (197, 192, 768),
    (1, 2048, 1000),
    (1, 512, 4096),
    (1, 2048, 4096),
)
# operator, inputs, shape
OTHERS: tuple[tuple[str, int, tuple[int, ...], dict[str, Any]], ...] = (
    ("Relu", 1, (1, 64, 112, 112), {}), ("Relu", 1, (1, 512, 28, 28), {}),
    ("Add", 2, (1, 256, 56, 56), {}), ("Mul", 2, (1, 96, 56, 56), {}),
    ("Sigmoid", 1, (1, 96, 56, 56), {}), ("Erf", 1, (1, 128, 1024), {}),
    ("Softmax", 1, (12, 128, 128), {"axis": -1}),
    ("MaxPool", 1, (1, 64, 112, 112), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("GlobalAveragePool", 1, (1, 512, 28, 28), {}),
    ("Transpose", 1, (1, 64, 56, 56), {"perm": [0, 2, 3, 1]}),
    ("Concat", 2, (1, 128, 28, 28), {"axis": 1}),
)  # fmt: skip

# Where the fit begins: nanoseconds per vector operation, load or store, other one, line after the
# first cache, after the second, and also after the third; and how far, in logarithms, each is
# likely to be off. Of a core of 3.3 GHz that has two vector operations and two vector loads a cycle
# and four others (LLVM's X86ScheduleZnver3.td: FPFMul01, FPLd01, ALU0123); 60 GB/s after it, 10
# from memory.
# The first two stay near that: all kernels here have about as many loads per multiplication, so
# times hardly tell both apart.
GUESS = (0.15, 0.15, 0.08, 0.3, 1.0, 5.0)
SPREAD = (0.3, 0.3, 0.5, 1.0, 1.0, 1.0)
SIGMA, TRUSTED, TURNS, STEP = 0.1, 1.5, 60, 1e-5


# Of one kind after the other, each with weights of its own: together more than the last cache
# holds, as in a model. Width, how many; kernel and extent, or rows of a matrix.
CHAINED_CONVOLUTIONS = ((512, 4, 3, 4),)
CHAINED_PRODUCTS = ((1, 2048, 4), (4, 1024, 12))


def layer(op: str, inputs: Sequence[Sequence[int]], weights: Sequence[Sequence[int]],
          attributes: dict[str, Any], chained: int = 1) -> ModelProto:  # fmt: skip
    """A model of one node, or of so many, each with what the one before made and own weights."""
    made = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape)
            for i, shape in enumerate(inputs)]  # fmt: skip
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    before = [f"x{i}" for i in range(len(inputs))]
    for number in range(chained):
        own = [f"w{number}_{i}" for i in range(len(weights))]
        for name, shape in zip(own, weights, strict=True):
            scale = 1 / math.sqrt(max(math.prod(shape[1:]), 1)) if chained > 1 else 1.0
            values = rng.standard_normal(shape, np.float32) * np.float32(scale)
            stored.append(numpy_helper.from_array(values, name))
        after = "y" if number == chained - 1 else f"y{number}"
        nodes.append(helper.make_node(op, before + own, [after], **attributes))
        before = [after]
    out = helper.make_empty_tensor_value_info("y")
    out.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "layer", made, [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def layers() -> dict[str, ModelProto]:
    """What onnxruntime's kernels are counted and timed on."""
    made = {}
    for a, b, k, stride, groups, extent in CONVOLUTIONS:
        made[f"conv{k}_{a}_{b}_{stride}_{groups}_{extent}"] = layer(
            "Conv", [(1, a, extent, extent)], [(b, a // groups, k, k), (b,)],
            {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [k // 2] * 4,
             "group": groups},
        )  # fmt: skip
    for width, count, k, extent in CHAINED_CONVOLUTIONS:
        made[f"{count}_conv{k}_{width}_{extent}"] = layer(
            "Conv", [(1, width, extent, extent)], [(width, width, k, k), (width,)],
            {"kernel_shape": [k, k], "pads": [k // 2] * 4}, count,
        )  # fmt: skip
    for rows, width, count in CHAINED_PRODUCTS:
        made[f"{count}_matmul_{rows}_{width}"] = layer(
            "MatMul", [(rows, width)], [(width, width)], {}, count
        )
    for m, k, n in PRODUCTS:
        made[f"matmul_{m}_{k}_{n}"] = layer("MatMul", [(m, k)], [(k, n)], {})
    for op, count, shape, attributes in OTHERS:
        made[f"{op}_{'_'.join(map(str, shape))}"] = layer(op, [shape] * count, (), attributes)
    return dict(sorted(made.items()))


def caches() -> list[Cache]:
    """This machine's own, as Linux describes them: the first one, and those after it. The
    simulated ones have a power of two of sets, so a size between is rounded down."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, size, ways = ((index / name).read_text().strip() for name in
                            ("type", "size", "ways_of_associativity"))  # fmt: skip
        if kind in ("Data", "Unified"):
            sets = (int(size.removesuffix("K")) << 10) // LINE_BYTES // int(ways)
            found.append(Cache((LINE_BYTES * int(ways)) << (sets.bit_length() - 1), int(ways)))
    return found


def of_calls(calls: Sequence[CallCounts], known: Sequence[Cache]) -> list[list[int]]:
    """Per call: vector operations, loads and stores, others; lines that each cache fetches."""
    return [
        [c["mac"] + c["vector"], c["load"] + c["store"], c["branch"] + c["scalar"],
         *(call.misses[cache.name] for cache in known)]
        for call, c in ((call, call.by_class) for call in calls)
    ]  # fmt: skip


def work(figures: Sequence[int]) -> Work:
    """Of `of_calls`. Lines after the second cache come from the third or, as those after that,
    from memory."""
    vector, memory, other, first, last, *far = figures
    return Work(vector, memory, other, first, last, far_lines=far[0] if far else 0)


def count_theirs(models: dict[str, ModelProto], known: Sequence[Cache]) -> dict[str, list[int]]:
    with tempfile.TemporaryDirectory() as name:
        folder, marks = Path(name), Path(name, "marks")
        for title, model in models.items():
            (folder / f"{title}.onnx").write_bytes(model.SerializeToString())
        caches = f",caches={caches_option(known)}" if known else ""
        plugin = f"{counting_plugin()},out={marks}{caches}"
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*QEMU, "-plugin", plugin, sys.executable, GUEST, folder], env=env, check=True
        )
        names = [cache.name for cache in known]
        calls = per_call(parse_records(marks.read_bytes(), len(names)), names)
    return dict(zip(models, of_calls(calls[1::2], known), strict=True))


def emulated(known: Sequence[Cache]) -> Session:
    """local:// in an emulator that counts."""

    def opened(_: float) -> ProcessTransport:
        folder = tempfile.TemporaryDirectory(prefix="mlc-predicted-")
        marks = Path(folder.name, "counts")
        caches = f",caches={caches_option(known)}" if known else ""
        plugin = f"{counting_plugin()},out={marks}{caches}"
        program = str(runtime_file("x86_64"))
        board = "qemu-x86_64"
        transport = ProcessTransport(
            board, [*QEMU, "-plugin", plugin, program, "--as-root"], folder
        )
        transport.emulated, transport.counter = True, Counter(marks, known)
        return transport

    return Session(opened(60.0), timeout=60.0, reopen=opened)


def count_ours(
    compiled: mlc.CompiledModel, inputs: dict[str, Any], known: Sequence[Cache]
) -> list[list[int]]:
    """Of the second run, when caches are warm."""
    with emulated(known) as board:
        module = board.load(compiled)
        _, run = (module.profile(inputs, timeout=RUN_SECONDS).run for _ in range(2))
    assert run.counts is not None
    return of_calls(run.counts, known)


Ours = dict[str, tuple[mlc.CompiledModel, dict[str, Any]]]  # with the inputs


def timed(
    theirs: dict[str, ModelProto], ours: Ours, repeat: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of their layers, and of our models: the sum of what each layer took at least,
    since few runs of a whole model are left alone by other programs. They alternate, ROUNDS times,
    since a machine's clock and its neighbours change within minutes. Each time they are loaded
    again: where their memory lies decides, too, and makes layers that no cache holds twice as
    slow."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    stored = {name: model.SerializeToString() for name, model in theirs.items()}
    least = dict.fromkeys(theirs, math.inf)
    layers: dict[str, NDArray[np.float64]] = {}
    for _ in range(ROUNDS):
        for name, model in stored.items():
            session = onnxruntime.InferenceSession(
                model, settings, providers=["CPUExecutionProvider"]
            )
            took = least_of(session, repeat * SAMPLE_S / ROUNDS)
            least[name] = min(least[name], took * 1e3)
        for name, (compiled, inputs) in ours.items():
            with mlc.connect("local://") as board:
                timing = board.load(compiled).time(
                    inputs, number=1, repeat=max(repeat // ROUNDS, 2), threads=1, layers=True
                )
            best = np.min(timing.layers, axis=0)
            layers[name] = np.minimum(layers.get(name, best), best)
    return least, {name: float(best.sum()) * 1e3 for name, best in layers.items()}


def least_of(session: onnxruntime.InferenceSession, seconds: float) -> float:
    """What a run took at least, of those in so many seconds and no fewer than two."""
    given = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
    took: list[float] = []
    ends = time.perf_counter() + seconds
    while len(took) < 2 or time.perf_counter() < ends:
        began = time.perf_counter()
        session.run(None, given)
        took.append(time.perf_counter() - began)
    return min(took)


def speed_of(figures: NDArray[np.float64], known: Sequence[Cache]) -> Speed:
    first, last = (cache.bytes >> 10 for cache in known[:2])
    vector, memory, other, line, line_ns, far_ns = map(float, figures)
    return Speed(
        "host", False, MHZ, first, last, last, vector, memory, other, line, line_ns, 0.0, 1.0,
        far_ns,
    )  # fmt: skip


def fit(counts: Sequence[list[int]], ms: Sequence[float], known: Sequence[Cache]) -> Speed:
    """As scripts/bench/calibration/calibrate.py fits: in logarithms, by Gauss and Newton."""
    truth, p, spread = np.log(ms), np.zeros(len(GUESS)), np.array(SPREAD)

    def made(p: NDArray[np.float64]) -> NDArray[np.float64]:
        speed = speed_of(np.array(GUESS) * np.exp(p), known)
        return np.log([predict([work(each)], speed).ms for each in counts])

    for _ in range(TURNS):
        now = made(p)
        change = np.array([(made(p + STEP * unit) - now) / STEP for unit in np.eye(len(p))]).T
        off, change = (truth - now) / SIGMA, change / SIGMA
        trust = 1 / np.maximum(1, np.abs(off) / TRUSTED)
        normal = (change * trust[:, None]).T @ change + np.diag(spread**-2)
        step = np.linalg.solve(normal, (change * trust[:, None]).T @ off - p / spread**2)
        p = p + np.clip(step, -0.5, 0.5)
    return speed_of(np.array(GUESS) * np.exp(p), known)


def keep(file: Path | None, counts: dict[str, Any]) -> None:
    if file:
        file.write_text(json.dumps(counts) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--repeat", type=int, default=200, help="samples of each")
    parser.add_argument("--counts", type=Path, help="of an earlier run; written where it is not")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in NAMES]:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(NAMES)}")
    known, theirs = caches(), layers()
    kept: dict[str, Any] = {}
    if options.counts and options.counts.exists():
        kept = json.loads(options.counts.read_text())
    counted = kept.setdefault("layers", {})
    if fresh := {name: model for name, model in theirs.items() if name not in counted}:
        counted |= count_theirs(fresh, known)
        keep(options.counts, kept)
    ours: Ours = {}
    for name in options.models:
        model, inputs = model_and_inputs(name)
        ours[name] = mlc.compile(from_onnx(model), "host"), inputs
        if name not in kept:
            kept[name] = count_ours(*ours[name], known)
            keep(options.counts, kept)
    ms, took = timed(theirs, ours, options.repeat)
    speed = fit([counted[name] for name in theirs], [ms[name] for name in theirs], known)
    print(f"onnxruntime {onnxruntime.__version__}, {len(theirs)} layers; nanoseconds per vector "
          f"operation {speed.vector:.3f}, load or store {speed.memory:.3f}, other "
          f"{speed.other:.3f}, "
          f"line behind {known[0].name} {speed.l1_miss:.2f}, behind {known[1].name} "
          f"{speed.line_ns:.2f}, from memory {speed.far_ns:.2f} more")  # fmt: skip
    for name in theirs:
        made = predict([work(counted[name])], speed).ms
        print(f"  {name:<32}{ms[name]:>9.3f} ms, fitted {made:>9.3f} {made / ms[name] - 1:>+7.0%}")
    off: dict[str, dict[str, float]] = {}
    for name in options.models:
        made = predict([work(each) for each in kept[name]], speed).ms
        off[name] = {"predicted_ms": made, "measured_ms": took[name],
                     "error": made / took[name] - 1}  # fmt: skip
        print(f"{name:<20}{took[name]:>9.2f} ms, predicted {made:>9.2f} "
              f"{off[name]['error']:>+7.1%}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(off, indent=1) + "\n")
    return int(any(abs(found["error"]) > LIMIT for found in off.values()))


if __name__ == "__main__":
    sys.exit(main())
