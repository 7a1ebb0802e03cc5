"""What compiling a model's kernels costs, kernel by kernel, in one process.

    python scripts/bench/compile_cost.py MODEL [--target aarch64] [--most 15] [--only TEXT]
                                         [--profile schedule|lower|emit] [--json FILE]

Models and targets are those of scripts/bench/models.py; MODEL may be an .onnx file. The kernels are
compiled without the cache of kernels. Seconds are the process's own (time.process_time), so that
other programs on the machine disturb less; the counts are the same on every machine:

    schedule, lower, emit     from a fused call to scheduled loops, to flat loops, to LLVM IR
    passes, code              LLVM: reading its IR and optimising it, selecting instructions
    nodes                     of the flat loops
    IR                        instructions given to LLVM
    object                    bytes

The first row is the whole model: its front end and graph passes are before it, as `graph`.
`--profile` runs a stage of all kernels under cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mlc_deploy import Target  # noqa: E402
from mlc_deploy.codegen.llvm import emit_kernel  # noqa: E402
from mlc_deploy.codegen.machine_code import llvm_module, optimized  # noqa: E402
from mlc_deploy.codegen.merge import KERNEL  # noqa: E402
from mlc_deploy.codegen.types import forget_constants  # noqa: E402
from mlc_deploy.driver.model_graph import model_graph  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.graph.lower import KernelSource, lower_kernel  # noqa: E402
from mlc_deploy.graph.program import lower_graph  # noqa: E402
from mlc_deploy.ir import walk  # noqa: E402
from mlc_deploy.lower import lower  # noqa: E402
from scripts.bench.models import MACHINES  # noqa: E402
from tests.models.architectures import ARCHITECTURES, NAMES, model_and_inputs  # noqa: E402
from tests.models.quantized import ENDING, quantized_model  # noqa: E402

STAGES = ("schedule", "lower", "emit", "passes", "code")
COUNTS = ("nodes", "instructions", "object")
HEAD = (
    f"{'kernel':<54}{'all':>7}"
    + "".join(f"{n:>9}" for n in STAGES)
    + (f"{'nodes':>9}{'IR':>8}{'object':>8}")
)


@dataclass
class Cost:
    """Of a kernel, or of several: seconds by stage, and counts."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    nodes: int = 0
    instructions: int = 0
    object: int = 0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def add(self, other: Cost) -> None:
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self, name: str) -> str:
        cells = "".join(f"{self.seconds[stage]:>9.3f}" for stage in STAGES)
        return (
            f"{name[:53]:<54}{self.total:>7.2f}{cells}"
            f"{self.nodes:>9,}{self.instructions:>8,}{self.object:>8,}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--target", choices=list(MACHINES), default="aarch64")
    parser.add_argument("--most", type=int, default=15, help="kernels that are shown")
    parser.add_argument("--only", default="", help="kernels whose name has TEXT")
    parser.add_argument("--profile", choices=STAGES[:3], help="of all kernels")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = (*NAMES, *(f"{name}{ENDING}" for name in ARCHITECTURES))
    if options.model not in known and not options.model.endswith(".onnx"):
        parser.error(f"no model '{options.model}'; there are {', '.join(known)}, and .onnx files")
    target = Target(MACHINES[options.target].target)
    sources, graph_seconds = kernels_of(options.model, options.target, target)
    chosen = {name: s for name, s in sources.items() if options.only in name}
    profile = cProfile.Profile(time.process_time) if options.profile else None
    gc.disable()  # as the workers do
    gc.freeze()
    costs = {
        name: cost_of(source, target, options.profile, profile) for name, source in chosen.items()
    }
    whole = Cost()
    for cost in costs.values():
        whole.add(cost)
    print(f"graph {graph_seconds:.2f} s, {len(costs)} kernels\n{HEAD}\n{whole.row(options.model)}")
    by_cost = sorted(costs.items(), key=lambda item: -item[1].total)
    for name, cost in by_cost[: options.most]:
        print(cost.row(name))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    if options.json:
        rows = {name: asdict(cost) for name, cost in {"": whole, **costs}.items()}
        options.json.write_text(json.dumps({"graph": graph_seconds, **rows}, indent=1) + "\n")


def kernels_of(name: str, machine: str, target: Target) -> tuple[Mapping[str, KernelSource], float]:
    """The sources of a model's kernels, and the seconds of its front end and graph passes."""
    is_quantized = name.endswith(ENDING)
    model = (
        onnx.load(name)
        if name.endswith(".onnx")
        else (quantized_model if is_quantized else model_and_inputs)(name)[0]
    )
    began = time.process_time()
    graphs = model_graph(from_onnx(model), target, precision=MACHINES[machine].precision)
    program = lower_graph(graphs.optimized, graphs.module)
    return program.kernels, time.process_time() - began


def cost_of(
    source: KernelSource, target: Target, stage: str | None, profile: cProfile.Profile | None
) -> Cost:
    cost = Cost()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.process_time()
        if profile is not None and name == stage:
            profile.enable()
        yield
        if profile is not None and name == stage:
            profile.disable()
        cost.seconds[name] += time.process_time() - began

    with timed("schedule"):
        func = lower_kernel(source, target)
    with timed("lower"):
        kernel = lower(func, target)
    with timed("emit"):
        module = llvm_module("", target)
        emit_kernel(module, kernel, target, KERNEL)
        forget_constants()
        text = str(module)
    began = time.process_time()
    with optimized(text, target) as (machine, code):
        cost.seconds["passes"] = time.process_time() - began
        with timed("code"):
            made = bytes(machine.emit_object(code))
    cost.nodes = sum(1 for _ in walk(kernel.machine))
    blocks = (b for f in module.functions for b in f.blocks)
    cost.instructions = sum(len(b.instructions) for b in blocks)
    cost.object = len(made)
    return cost


if __name__ == "__main__":
    main()
