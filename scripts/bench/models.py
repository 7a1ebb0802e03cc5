"""What the models of the field cost: compile time, memory, sizes, and executed instructions.

    python scripts/bench/models.py [MODEL ...] [--target aarch64 ...] [--no-run]
                                   [--json FILE] [--against FILE] [--check] [--memory M]

Models are the architectures of tests/models/architectures.py, those that end in `_int8` (quantized
by onnxruntime) and the light models of the onnx package; without names, all of the
first. Per model and target:

    cold, warm     seconds of `mlc-deploy MODEL --board none`, from its start to its end, with an
                   empty cache of kernels and again with the one it filled; beside them the seconds
                   of all cores, which other programs on the machine disturb less
    host           the most memory that all its processes held at once (pages they share count for
                   each, so it is rather too much)
    object, weights, arena, bound    bytes, as the record has them; no plan of the arena can go
                   below the bound, and kernels' workspaces are not in it
    instructions   executed per inference under QEMU, and their ratio to vector
                   multiply-accumulates: of 4 numbers each, of 8 in float16, and for int8 of 16 on
                   cortex-a76 (sdot) and of 32 on i8mm (smmla); beside it the most that it should be

`--check` counts the models that model_limits.py has limits for, those of them that are named, or
all, and says of each limit whether it is held: 1 is the exit status where one is missed. Compilers
are not timed then. The detectors among them need torch and ultralytics. Weights are those of
`--memory`.

`--against` compares with an earlier --json: 1 is the exit status where a figure that is the same on
every machine (sizes, instructions) rose by more than 1 %, or outputs were wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.graph.count import multiply_accumulates  # noqa: E402
from mlc_deploy.passes.context import MEMORY, OPTIONS  # noqa: E402
from scripts.bench import model_limits  # noqa: E402
from tests.models.architectures import ARCHITECTURES, NAMES, model_and_inputs  # noqa: E402
from tests.models.quantized import ENDING, quantized_model  # noqa: E402
from tests.onnx_models import reference  # noqa: E402


@dataclass(frozen=True)
class Machine:
    """A target, a board for it, products of int8 that are summed up by one instruction, and the
    precision that models of float32 are given."""

    target: str
    board: str
    products: int = 4
    precision: str = "float32"

    def together(self, name: str) -> int:
        """How many of a model's products one instruction sums up."""
        if name.endswith(ENDING):
            return self.products
        return VECTOR if self.precision == "float32" else 2 * VECTOR


AARCH64 = "llvm -mtriple=aarch64-linux-gnu -device=arm_cpu"
MACHINES = {
    "aarch64": Machine("aarch64", "qemu://cortex-a72"),
    "armv7a": Machine("armv7a", "qemu://cortex-a7"),
    "host": Machine("host", "local://"),
    "cortex-a76": Machine(f"{AARCH64} -mcpu=cortex-a76", "qemu://cortex-a76", 16),
    "cortex-a76-float16": Machine(
        f"{AARCH64} -mcpu=cortex-a76", "qemu://cortex-a76", precision="float16"
    ),
    "i8mm": Machine(f"{AARCH64} -mattr=+neon,+dotprod,+i8mm", "qemu://max,sve=off,sme=off", 32),
}
LIMITS = {  # of the ratio; resnet18 takes more where its weights may not grow freely
    "mobilenet_v1": {"aarch64": 1.20, "armv7a": 1.35, "cortex-a76-float16": 1.25},
    "resnet18": {"aarch64": 0.52, "armv7a": 0.65},
    "mobilenet_v2": {"aarch64": 1.35, "armv7a": 1.5},
    "mobilenet_v1_int8": {"aarch64": 1.10, "armv7a": 1.35, "cortex-a76": 1.60, "i8mm": 2.4},
    "resnet18_int8": {"aarch64": 0.98, "armv7a": 1.35, "cortex-a76": 1.28, "i8mm": 1.55},
    "mobilenet_v2_int8": {"aarch64": 1.3, "armv7a": 1.6, "cortex-a76": 2.2, "i8mm": 3.5},
}
EVERY = (*NAMES, *(f"{name}{ENDING}" for name in ARCHITECTURES), *model_limits.MORE)
EXACT = ("object_bytes", "weights_bytes", "arena_bytes", "instructions")
RISE = 1.01
VECTOR = 4  # numbers in a vector of 128 bits
LINE = "{:<24}{:<19}{:>13}{:>13}{:>7}{:>8}{:>9}{:>8}{:>8}{:>14}{:>7}{:>6}"
MB = 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument(
        "--target", action="append", choices=list(MACHINES), help="default: aarch64"
    )
    parser.add_argument("--no-run", action="store_true", help="compile only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--check", action="store_true", help="hold counts against their limits")
    parser.add_argument("--memory", choices=list(MEMORY), default=OPTIONS["graph.memory"])
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in EVERY]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(EVERY)}")
    before = json.loads(options.against.read_text()) if options.against else {}
    if options.check:
        return check(options.models, options.memory)
    print(LINE.format("", "", "cold (cores)", "warm (cores)", "host", "object", "weights", "arena",
                      "bound", "instructions", "ratio", "most"))  # fmt: skip
    print(LINE.format("model", "target", "s", "s", "MB", "kB", "MB", "MB", "MB", "", "", ""))
    figures: dict[str, dict[str, Any]] = {}
    for name in options.models or ARCHITECTURES:
        for target in options.target or ["aarch64"]:
            found = measure(name, target, not options.no_run, options.memory)
            figures[f"{name} {target}"] = found
            print(line(name, target, found), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    wrong = [f"{key}: the outputs are wrong" for key, found in figures.items() if not found["ok"]]
    worse = wrong + rises(figures, before)
    print("\n".join(worse), end="\n" if worse else "")
    return 1 if worse else 0


def check(models: Sequence[str], memory: str) -> int:
    """Counts what has limits, and prints whether they hold; the exit status."""
    figures = {
        f"{name} {target}": measure(name, target, True, memory, timed=False)
        for name, target in model_limits.wanted(models)
    }

    def ratio(name: str, target: str) -> float:
        return in_vectors(name, target, figures[f"{name} {target}"])

    missed = model_limits.table(figures, ratio)
    wrong = [key for key, found in figures.items() if not found["ok"]]
    print("\n".join(f"{key}: the outputs are wrong" for key in wrong), end="\n" if wrong else "")
    return 1 if missed or wrong else 0


def in_vectors(name: str, target: str, found: dict[str, Any]) -> float:
    """Instructions per vector of multiply-accumulates."""
    together = MACHINES[target].together(name)
    return float(found["instructions"] / (found["multiply_accumulates"] / together))


def loaded(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model, and something to run it on."""
    if name in model_limits.MORE:
        return model_limits.MORE[name]()
    return quantized_model(name) if name.endswith(ENDING) else model_and_inputs(name)


def measure(name: str, target: str, run: bool, memory: str, timed: bool = True) -> dict[str, Any]:
    """All figures of a model; `ok` and `instructions` are None where it does not run. Compilers
    are not `timed` where only counts are wanted."""
    machine = MACHINES[target]
    is_quantized = name.endswith(ENDING)
    model, given = loaded(name)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if timed:
            file = Path(folder) / f"{name}.onnx"
            onnx.save(model, file)
            cache = {"MLC_CACHE_DIR": str(Path(folder) / "cache")}
            cold, warm = (command(file, machine, cache, memory) for _ in range(2))
            os.environ |= cache
            found = {
                "cold_s": cold["wall_s"],
                "cold_cores_s": cold["cores_s"],
                "warm_s": warm["wall_s"],
                "warm_cores_s": warm["cores_s"],
                "host_bytes": max(cold["bytes"], warm["bytes"]),
            }
        compiled = mlc.compile(
            from_onnx(model), machine.target, precision=machine.precision, memory=memory
        )
    graph = compiled.reference
    found |= {
        "object_bytes": len(compiled.object_bytes),
        "weights_bytes": len(compiled.weights_bytes),
        "arena_bytes": compiled.program.arena,
        "arena_lower_bound": compiled.program.arena_lower_bound,
        "multiply_accumulates": sum(map(multiply_accumulates, graph.bindings)),
        "instructions": None,
        "ok": True,
    }
    if run:
        # Quantized models are exact to what ONNX defines, which onnxruntime's floats are not.
        expect = None if is_quantized else reference(model, given)
        with mlc.connect(machine.board) as board:
            done = mlc.deploy(compiled, board, given, expect=expect)
        found |= {"instructions": done.instructions, "ok": done.ok}
    return found


def command(
    file: Path, machine: Machine, environment: dict[str, str], memory: str
) -> dict[str, float]:
    """Compiles by the command line, and watches its processes: seconds, seconds of all cores, and
    bytes of memory at most."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    program = [sys.executable, "-m", "mlc_deploy.cli", str(file)]
    process = subprocess.Popen(
        [*program, "--target", machine.target, "--board", "none", "--precision", machine.precision,
         "--memory", memory],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], held(process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    _, said = process.communicate()
    wall = time.perf_counter() - began
    done.set()
    watching.join()
    if process.returncode:
        sys.exit(f"{file.stem} for {machine.target} did not compile:\n{said}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cores_s": cores, "bytes": most[0]}


def held(session: int) -> int:
    """Bytes that the processes of a session hold."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            pages += int(fields[21])
    return pages * resource.getpagesize()


def line(name: str, target: str, found: dict[str, Any]) -> str:
    count = found["instructions"]
    ratio = count and in_vectors(name, target, found)
    most = LIMITS.get(name, {}).get(target)
    return LINE.format(
        name,
        target,
        f"{found['cold_s']:.1f} ({found['cold_cores_s']:.1f})",
        f"{found['warm_s']:.1f} ({found['warm_cores_s']:.1f})",
        f"{found['host_bytes'] / MB:.0f}",
        f"{found['object_bytes'] / 1e3:.0f}",
        f"{found['weights_bytes'] / MB:.1f}",
        f"{found['arena_bytes'] / MB:.2f}",
        f"{found['arena_lower_bound'] / MB:.2f}",
        f"{count:,}" if count else "-",
        f"{ratio:.2f}" if ratio else "-",
        f"{most:.2f}" if most else "-",
    )


def rises(figures: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> list[str]:
    """What rose, of what should be the same everywhere."""
    texts = []
    for key, found in figures.items():
        for name in EXACT:
            was, now = before.get(key, {}).get(name), found[name]
            if was and now and now > was * RISE:
                texts.append(f"{key}: {name} rose from {was:,} to {now:,} ({now / was - 1:+.1%})")
    return texts


if __name__ == "__main__":
    sys.exit(main())
