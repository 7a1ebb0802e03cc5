"""What int8 does to trained models: what they lose, and what they execute before and after.

    python scripts/bench/quantized.py [MODEL ...] [--core CORE ...] [--json FILE]

Models are those of tests/quantize/trained.py, as its tests quantize them. A row per model and core:

    drop        percent of accuracy, or of agreement with the float model, that is lost
    int8/float  layers
    before      millions of instructions of the float model under QEMU; after: of the one in int8
    plans       what plans said the int8 model's kernels cost, in shares of what they executed;
                kernels without a plan, or with one that does not say, are left out of both

A model that is refused has the reason in its row. Exit status 1 where int8 executes more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.graph.lower import unscheduled  # noqa: E402
from mlc_deploy.quantize.data import samples_of  # noqa: E402
from mlc_deploy.quantize.prepare import read  # noqa: E402
from mlc_targets import Target, qemu_cpu  # noqa: E402
from tests.quantize.trained import MODELS, TARGETS, Trained, quantized  # noqa: E402


@dataclass(frozen=True)
class Row:
    model: str
    core: str
    drop: float = 0.0
    int8: int = 0
    floats: int = 0
    before: int = 0
    after: int = 0
    plans: float = 0.0
    refused: str = ""

    def __str__(self) -> str:
        head = f"{self.model:18}{self.core:5}"
        if self.refused:
            return head + self.refused
        return head + (
            f"{self.drop:>8.3f}{f'{self.int8}/{self.floats}':>11}{self.before / 1e6:>10.2f}"
            f"{self.after / 1e6:>10.2f}{self.after / self.before:>7.2f}{self.plans:>7.2f}"
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--core", action="append", choices=TARGETS, help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    print(f"{'model':18}{'core':5}{'drop':>8}{'int8/float':>11}{'before':>10}{'after':>10}"
          f"{'ratio':>7}{'plans':>7}")  # fmt: skip
    rows = []
    for name in given.models or MODELS:
        for core in given.core or TARGETS:
            rows.append(measured(name, MODELS[name], core))
            print(rows[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return int(any(r.after > r.before for r in rows))


def measured(name: str, trained: Trained, core: str) -> Row:
    try:
        made = quantized(trained, TARGETS[core])
    except mlc.QuantizeError as refused:
        return Row(name, core, refused=str(refused).splitlines()[0])
    assert made.before is not None and made.after is not None and made.costs is not None
    small = [layer for layer in made.layers if layer.bits == 8]
    return Row(
        name, core, made.before - made.after, len(small), len(made.layers) - len(small),
        *made.costs, share_of_plans(made, trained, Target(TARGETS[core])),
    )  # fmt: skip


def share_of_plans(made: mlc.Quantized, trained: Trained, target: Target) -> float:
    """What plans said that kernels cost, in shares of what these executed."""
    given = samples_of(read(trained.path), trained.data(), None, 1, {}, {}).runs[0]
    shapes = {n: a.shape for n, a in given.items()}
    model = mlc.compile(from_onnx(made.model, shapes), target)
    with mlc.connect(f"qemu://{qemu_cpu(target)}", machine=target.arch) as board:
        done = mlc.deploy(model, board, given)
    said = executed = 0.0
    for layer in done.layers:
        source = model.program.kernels.get(layer.kernel)
        plan = unscheduled(source, target).plan if source else None
        if plan is not None and plan.cost and layer.instructions:  # none where a branch left it out
            said += plan.cost
            executed += layer.instructions
    return said / executed if executed else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
