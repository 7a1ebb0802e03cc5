"""What it gains that kernels share functions (driver/sharing.py), and what it costs.

    python scripts/bench/shared_kernels.py [MODEL ...] [--target aarch64 ...] [--no-run]

Models and targets are those of scripts/bench/models.py; FILE.onnx names another model, whose
inputs are random. Without names: MODELS, for the a72 and the a7. Each model is compiled twice from
an empty cache, with a function for each kernel (PassContext "compile.share": False) and as it is by
default:

    functions      how many are compiled
    CPU            seconds of all cores for it; beside other programs they are rather too many
    object         kB
    instructions   executed per inference under QEMU

The exit status is 1 where the instructions of a model rise by more than MOST_RISE, or its outputs
differ from those that it has with a function for each kernel.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from scripts.bench.models import EVERY, MACHINES, loaded  # noqa: E402
from tests.onnx_models import reference  # noqa: E402

MODELS = (
    "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "efficientnet_b0",
    "resnet50_int8", "efficientnet_b0_int8", "vit_tiny_int8",
)  # fmt: skip
TARGETS = ("aarch64", "armv7a")
MOST_RISE = 0.005
LINE = "{:<24}{:<10}{:>11}{:>15}{:>7}{:>13}{:>7}{:>27}{:>10}"


Tensors = dict[str, Any]


@dataclass(frozen=True)
class Found:
    functions: int
    seconds: float
    object_bytes: int
    instructions: int | None
    outputs: Tensors | None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--target", action="append", choices=list(MACHINES))
    parser.add_argument("--no-run", action="store_true", help="compile only")
    options = parser.parse_args(arguments)
    print(LINE.format("model", "target", "functions", "CPU", "", "object", "", "instructions", ""))
    bad: list[str] = []
    for name in options.models or MODELS:
        for target in options.target or TARGETS:
            model, given, expected = read(name)
            right = None if options.no_run else expected
            alone = measure(model, target, False, given, right)
            shared = measure(model, target, True, given, alone.outputs)
            bad += rows(name, target, alone, shared)
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


def rows(name: str, target: str, alone: Found, shared: Found) -> list[str]:
    """Prints a row; what is wrong with it."""
    rise = None
    if alone.instructions and shared.instructions:
        rise = shared.instructions / alone.instructions - 1
    print(
        LINE.format(
            Path(name).stem, target, f"{alone.functions} > {shared.functions}",
            f"{alone.seconds:.1f} > {shared.seconds:.1f}",
            f"{shared.seconds / alone.seconds:.2f}",
            f"{alone.object_bytes / 1e3:.0f} > {shared.object_bytes / 1e3:.0f}",
            f"{shared.object_bytes / alone.object_bytes:.2f}",
            "-" if rise is None else f"{alone.instructions:,} > {shared.instructions:,}",
            "-" if rise is None else f"{rise:+.3%}",
        ),
        flush=True,
    )  # fmt: skip
    bad = []
    if rise is not None and rise > MOST_RISE:
        bad.append(f"{name} {target}: instructions rose by {rise:.3%}")
    for output, values in (alone.outputs or {}).items():
        assert shared.outputs is not None
        if not np.array_equal(values, shared.outputs[output], equal_nan=True):
            bad.append(f"{name} {target}: '{output}' differs")
    return bad


def measure(
    model: onnx.ModelProto, target: str, share: bool, given: Tensors, right: Tensors | None
) -> Found:
    """right: outputs, without which the model does not run."""
    machine = MACHINES[target]
    with mlc.PassContext(config={"compile.share": share, "compile.cache": False}):
        graph = from_onnx(model)
        before = seconds()
        compiled = mlc.compile(graph, machine.target, precision=machine.precision)
        spent = seconds() - before
    objects = compiled.library.compiled or {}
    functions = {name if o.number is None else o.code for name, o in objects.items()}
    instructions, outputs = None, None
    if right is not None:
        with mlc.connect(machine.board) as board:
            done = mlc.deploy(compiled, board, given, expect=right)
        instructions, outputs = done.instructions, dict(done.outputs)
    size = len(compiled.object_bytes)
    return Found(len(functions), spent, size, instructions, outputs)


def read(name: str) -> tuple[onnx.ModelProto, Tensors, Tensors]:
    """A model, inputs for it, and the outputs that onnxruntime computes."""
    if name.endswith(".onnx"):
        model = onnx.load(name)
        draw = np.random.default_rng(1)
        params = from_onnx(model).params
        given = {p.name: draw.random(p.type.sizes).astype(p.type.dtype) for p in params}
    elif name in EVERY:
        model, given = loaded(name)
    else:
        sys.exit(f"no model '{name}'; there are {', '.join(EVERY)}, and files that end in .onnx")
    return model, given, reference(model, given)


def seconds() -> float:
    """Of work, this process's and its children's."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(s.ru_utime + s.ru_stime for s in spent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
