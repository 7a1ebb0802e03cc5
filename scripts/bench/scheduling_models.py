"""Executed instructions by the scheduling models that mlc_targets/scheduling.py chooses between.

    python scripts/bench/scheduling_models.py [--only INTENT] [--json FILE]

Per choice of that table: layers of scripts/bench/kernels.py, compiled with each model of MODELS and
counted together under QEMU. Exit status 1 where a model takes over 1 % fewer
instructions than the chosen one, or where LLVM is not of the table's version.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.ir import TUNE_CPU, PrimFunc, with_fields  # noqa: E402
from mlc_targets.scheduling import CHOICES, LLVM_MAJOR, Choice  # noqa: E402
from scripts.bench.kernels import (  # noqa: E402
    COLUMNS,
    LAYERS,
    TOLERATED,
    measure,
)

# By intent and architecture: layers, and what they are compiled for.
CASES = {
    ("float", "arm"): (("conv 3x3 64 56x56", "conv 1x1 256 14x14"), COLUMNS["cortex-a7"]),
    ("quantized", "arm"): (
        ("conv 3x3 64 56x56", "conv 1x1 256 14x14", "dense 256 of 256 rows"),
        COLUMNS["cortex-a7-int8"],
    ),
    ("conv2d", "aarch64"): (
        ("conv 3x3 64 56x56", "conv 1x1 256 14x14", "conv 3x3/2 64-128 56x56"),
        COLUMNS["cortex-a76-float16"],
    ),
    ("parts", "aarch64"): (("dense 256 of 256 rows",), COLUMNS["cortex-a72-int8"]),
    ("windows", "aarch64"): (("depthwise 3x3 128 56x56",), COLUMNS["cortex-a72-int8"]),
    ("windows", "arm"): (("depthwise 3x3 128 56x56",), COLUMNS["cortex-a7-int8"]),
    ("taps", "aarch64"): (("first 7x7/2 3-64 224x224",), COLUMNS["cortex-a76-int8"]),
}
MODELS = {  # models that differ; 32-bit ARM has few
    "aarch64": ("generic", "cortex-a57", "exynos-m3", "kryo"),
    "arm": ("cortex-a7", "cortex-a9", "kryo"),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="the choices of one intent")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    record: dict[str, dict[str, int]] = {}
    table = Table(title=f"instructions, by LLVM {llvm.llvm_version_info[0]}'s scheduling models")
    for column in ("choice", "chosen", "model", "instructions", "of the chosen"):
        table.add_column(column, justify="right" if column == "instructions" else "left")
    status = int(llvm.llvm_version_info[0] != LLVM_MAJOR)
    if status:
        print(f"the table holds for LLVM {LLVM_MAJOR}", file=sys.stderr)
    for choice in CHOICES:
        if options.only in ("", choice.intent):
            found = counted(choice)
            record[f"{choice.intent} {choice.arch}"] = found
            for model, count in found.items():
                share = f"{count / found[choice.model]:.3f}"
                table.add_row(choice.intent, choice.model, model, f"{count:,}", share)
            status |= min(found.values()) * TOLERATED < found[choice.model]
    Console(width=110).print(table)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return status


def counted(choice: Choice) -> dict[str, int]:
    """Executed instructions of a choice's layers, by the CPU whose model they are compiled with."""
    names, column = CASES[choice.intent, choice.arch]
    layers = [layer for layer in LAYERS if layer.name in names]
    found = {}
    with mlc.connect(f"qemu://{column.cpu}") as session:
        for model in MODELS[choice.arch]:

            def take(func: PrimFunc, model: str = model) -> PrimFunc:
                return with_fields(func, attrs={**func.attrs, TUNE_CPU: model})

            with mlc.PassContext(config={"lower.add_pass": [("final", take)]}):
                counts = [measure(layer, session, column)["instructions"] for layer in layers]
            found[model] = sum(counts)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
