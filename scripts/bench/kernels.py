"""Executed instructions of single layers, beside the best peer's.

    scripts/bench/kernels.py [--target NAME ...] [--only TEXT] [--json FILE] [--against FILE]

Counted under QEMU with the CPU named. `ratio` is all instructions of one call, divided by
multiply-accumulates / 4 (what a machine does that only multiplies, four at a time), or / 8 where it
does that with float16, / 16 and / 32 where an instruction sums up so many products of int8. Layers
of int8 end in a bias and a requantization. `of cost` is the instructions, divided by what the plan
says that it costs; where this is above 1.3, the reason stands below the table. The exit status is 1
where there is none, and with --against where a layer takes over 1 % more than in that file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ops import TensorType, infer_types
from mlc_deploy.ops.layout import pack
from mlc_deploy.ops.plan import Plan
from mlc_deploy.ops.quantize import SHORT
from mlc_deploy.ops.strategy import plans

TOLERATED = 1.01
MOST_OF_COST = 1.3


@dataclass(frozen=True, slots=True)
class Column:
    """A CPU that QEMU has, the target for it, numbers, and how many it multiplies at once."""

    cpu: str
    target: str
    dtype: str = "float32"
    together: int = 4


I8MM = "llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+dotprod,+i8mm -device=arm_cpu"
CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"
COLUMNS = {
    "cortex-a72": Column("cortex-a72", "aarch64"),
    "cortex-a7": Column("cortex-a7", "armv7a"),
    "cortex-a76-float16": Column("cortex-a76", CORTEX_A76, "float16", 8),
    "cortex-a72-int8": Column("cortex-a72", "aarch64", "int8"),
    "cortex-a7-int8": Column("cortex-a7", "armv7a", "int8"),
    "cortex-a76-int8": Column("cortex-a76", CORTEX_A76, "int8", 16),
    "i8mm-int8": Column("max,sve=off,sme=off", I8MM, "int8", 32),
}
INT8_PEERS = {
    "dense 256 of 256 rows": {"cortex-a72": 1.033, "cortex-a76": 1.380, "i8mm": 1.870}
    | {"cortex-a7": 1.307},
    "conv 3x3 64 56x56": {"cortex-a72": 1.061, "cortex-a76": 1.372, "i8mm": 1.882}
    | {"cortex-a7": 1.455},
    "conv 1x1 256 14x14": {"cortex-a76": 1.376, "i8mm": 1.862},
    "winograd 3x3 64 56x56": {"cortex-a72": 0.422},
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator on data and, for some, weights of these plain shapes. `peers` is the best ratio
    measured of any other library, by CPU. winograd: by the plan that the target's rule takes."""

    name: str
    op: str
    data: tuple[int, ...]
    weights: tuple[int, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)
    winograd: bool = False


def conv(
    name: str,
    data: tuple[int, int, int],
    weights: tuple[int, int, int, int],
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    **peers: float,
) -> Layer:
    attrs = {"strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 4, "groups": groups}
    known = {f"cortex-{cpu}": ratio for cpu, ratio in peers.items()}
    return Layer(name, "conv2d", (1, *data), weights, attrs, known)


def winograd(
    name: str, data: tuple[int, int, int], weights: tuple[int, int, int, int], **peers: float
) -> Layer:
    known = {f"cortex-{cpu}": ratio for cpu, ratio in peers.items()}
    return replace(conv(name, data, weights, pad=1), winograd=True, peers=known)


def pool(name: str, op: str, data: tuple[int, int, int], kernel: int, stride: int) -> Layer:
    attrs: dict[str, Any] = {"kernel": (kernel,) * 2, "strides": (stride,) * 2}
    attrs |= {"dilations": (1, 1), "pads": (kernel // 2,) * 4, "ceil_mode": False}
    if op == "avg_pool":
        attrs["count_include_pad"] = True
    return Layer(name, op, (1, *data), (), attrs)


LAYERS = (
    conv("conv 3x3 64 56x56", (64, 56, 56), (64, 64, 3, 3), pad=1, a72=1.349, a7=1.757),
    conv("conv 3x3 256 14x14", (256, 14, 14), (256, 256, 3, 3), pad=1),
    conv("conv 3x3 512 7x7", (512, 7, 7), (512, 512, 3, 3), pad=1),
    winograd("winograd 3x3 64 56x56", (64, 56, 56), (64, 64, 3, 3), a72=0.373, a7=0.483),
    winograd("winograd 3x3 128 28x28", (128, 28, 28), (128, 128, 3, 3)),
    winograd("winograd 3x3 256 14x14", (256, 14, 14), (256, 256, 3, 3)),
    winograd("winograd 3x3 512 7x7", (512, 7, 7), (512, 512, 3, 3)),
    conv("conv 3x3/2 64-128 56x56", (64, 56, 56), (128, 64, 3, 3), 2, 1),
    conv("conv 5x5 32-64 28x28", (32, 28, 28), (64, 32, 5, 5), pad=2),
    conv("conv 3x3 32 groups 56x56", (128, 56, 56), (128, 4, 3, 3), pad=1, groups=32),
    conv("conv 1x1 256 14x14", (256, 14, 14), (256, 256, 1, 1), a72=1.142, a7=1.372),
    conv("conv 1x1 32-64 112x112", (32, 112, 112), (64, 32, 1, 1)),
    conv("conv 1x1 1024 7x7", (1024, 7, 7), (1024, 1024, 1, 1)),
    conv("conv 1x1/2 64-128 56x56", (64, 56, 56), (128, 64, 1, 1), 2),
    conv("first 3x3/2 3-32 224x224", (3, 224, 224), (32, 3, 3, 3), 2, 1),
    conv("first 7x7/2 3-64 224x224", (3, 224, 224), (64, 3, 7, 7), 2, 3),
    conv("depthwise 3x3 128 56x56", (128, 56, 56), (128, 1, 3, 3), 1, 1, 128, a72=2.63, a7=3.53),
    conv("depthwise 3x3/2 128 56x56", (128, 56, 56), (128, 1, 3, 3), 2, 1, 128),
    conv("depthwise 3x3 512 14x14", (512, 14, 14), (512, 1, 3, 3), 1, 1, 512),
    conv("depthwise 5x5 128 28x28", (128, 28, 28), (128, 1, 5, 5), 1, 2, 128),
    conv("depthwise 5x5/2 128 28x28", (128, 28, 28), (128, 1, 5, 5), 2, 2, 128),
    Layer("dense 1024-1000", "dense", (1, 1024), (1000, 1024), {"transpose_b": True}),
    Layer(
        "dense 256 of 256 rows",
        "dense",
        (256, 256),
        (256, 256),
        {"transpose_b": True},
        {"cortex-a72": 1.244, "cortex-a7": 1.998},
    ),
    pool("max_pool 3x3/2 64 112x112", "max_pool", (64, 112, 112), 3, 2),
    pool("avg_pool 3x3 128 28x28", "avg_pool", (128, 28, 28), 3, 1),
)


ADDRESSES = "32-bit NEON loads have no offsets: addresses are computed (scalar, 13 to 25 %)"
FEW = "few products for a result: the rest are its bias and requantization, which no plan counts"
APART = "pixels that are a stride apart are loaded one by one (loads, 29 to 32 %)"
ONCE = "each weight is read for one product: the plan counts pairs of loads, LLVM makes few"
SUMS = "sums are float32: conversions, and half as many numbers in a vector as the plan counts"
REASONS = {  # why layers take more than MOST_OF_COST of what their plans say, by column
    "cortex-a7": dict.fromkeys(
        ("winograd 3x3 64 56x56", "conv 3x3 32 groups 56x56", "depthwise 3x3 128 56x56",
         "depthwise 3x3/2 128 56x56", "depthwise 3x3 512 14x14", "depthwise 5x5/2 128 28x28",
         "avg_pool 3x3 128 28x28"), ADDRESSES),
    "cortex-a76-float16": {"avg_pool 3x3 128 28x28": SUMS},
    "cortex-a7-int8": {
        "conv 1x1 32-64 112x112": FEW, "conv 1x1/2 64-128 56x56": APART,
        "first 3x3/2 3-32 224x224": APART,
    },
    "cortex-a76-int8": {
        "conv 1x1 32-64 112x112": FEW, "depthwise 3x3/2 128 56x56": FEW, "dense 1024-1000": ONCE,
    },
    "i8mm-int8": {
        "conv 1x1 32-64 112x112": FEW, "conv 1x1/2 64-128 56x56": FEW,
        "depthwise 3x3/2 128 56x56": FEW, "dense 1024-1000": ONCE,
    },
}  # fmt: skip


def multiplies(layer: Layer) -> int:
    """Multiply-accumulates; of pooling, elements in windows."""
    types = [TensorType(s, "float32") for s in (layer.data, layer.weights) if s]
    (out,) = infer_types(layer.op, types, layer.attrs)
    each = prod(layer.weights[1:]) if layer.weights else prod(layer.attrs["kernel"])
    return out.elements * int(each)


def plan_of(layer: Layer, target: mlc.Target, dtype: str) -> Plan | None:
    """The plan that the target would rather have for a layer; None where it has none. Data of int8
    layers have no sign where that costs less, as in a network (graph/signs.py)."""
    attrs = dict(layer.attrs)
    if dtype == "int8":  # as weights that onnxruntime quantizes are
        attrs |= {"narrow_weights": True, "small_sums": True}
    stated = "winograd_conv2d" if layer.winograd else layer.op
    found = []
    for data in ("int8", "uint8") if dtype == "int8" else (dtype,):
        pairs = ((layer.data, data), (layer.weights, dtype))
        types = [TensorType(shape, of) for shape, of in pairs if shape]
        found += [p for p in plans(layer.op, types, attrs, target) if p.op == stated][:1]
    return min(found, key=lambda plan: plan.cost, default=None)


def layer_function(
    layer: Layer, target: mlc.Target, dtype: str = "float32", activated: bool = False
) -> Function:
    """The layer as a network in the middle has it: data and weights in the target's layouts.
    activated: with what follows it there, a bias and ReLU6; those of int8 have it in any case, and
    what they round is known to be within int16."""
    plan = plan_of(layer, target, dtype)
    assert plan is not None, f"{target} has no plan for {layer.name} of {dtype}"
    builder = BlockBuilder("layer")
    params = [builder.param(f"p{n}", t.shape, t.dtype) for n, t in enumerate(plan.arguments)]
    value = builder.emit(Call(plan.op, tuple(params), plan.attrs, plan))
    channels: tuple[int, ...] = layer.weights[:1]
    if plan.result and channels:
        channels = pack(np.zeros((1, *channels, 1, 1)), "NCHW", plan.result).shape
    if dtype == "int8":
        value = builder.emit("add", value, builder.param("bias", channels, "int32"))
        scale = builder.param("scale", channels)
        known: dict[str, Any] = {SHORT: True} if activated else {}
        value = builder.emit("requantize", value, scale, np.array(-7, dtype), **known)
    elif activated:
        value = builder.emit("add", value, builder.param("bias", channels, dtype))
        value = builder.emit("clip", value, min=0.0, max=6.0)
    return builder.finish([value])


def measured_in(layer: Layer, column: Column) -> bool:
    """Whether a column has the layer. Groups of four channels have plans of float32 alone."""
    if column.dtype == "int8" and not layer.weights:
        return False
    return plan_of(layer, mlc.Target(column.target), column.dtype) is not None


def peer_of(layer: Layer, column: str) -> float | None:
    """The best ratio of any other library in a column of COLUMNS."""
    if COLUMNS[column].dtype == "int8":
        return INT8_PEERS.get(layer.name, {}).get(column.removesuffix("-int8"))
    return layer.peers.get(column)


def measure(layer: Layer, session: Any, column: Column) -> dict[str, Any]:
    target = mlc.Target(column.target)
    plan = plan_of(layer, target, column.dtype)
    func = lower_fused(layer_function(layer, target, column.dtype), target, "layer")
    library = mlc.build(func, target=target)
    module = session.load(library)
    arrays = [np.zeros([int(n) for n in b.shape], b.dtype) for b in func.buffers]  # type: ignore[arg-type]
    (counts,) = module["layer"].profile(*(session.tensor(a) for a in arrays)).counts
    module.close()
    ideal = multiplies(layer) / column.together
    return {
        "instructions": counts.total,
        "ratio": round(counts.total / ideal, 4),
        "of_cost": None if plan is None else round(counts.total / plan.cost, 4),
        "by_class": counts.by_class,
        "object_bytes": len(library.object_bytes),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=COLUMNS, help="a CPU; default: all")
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--against", type=Path, help="an earlier record to compare with")
    given = parser.parse_args(arguments)
    record: dict[str, dict[str, Any]] = {}
    unexplained = 0
    for name in given.target or COLUMNS:
        column = COLUMNS[name]
        with mlc.connect(f"qemu://{column.cpu}") as session:
            record[name] = {
                layer.name: measure(layer, session, column)
                for layer in LAYERS
                if given.only in layer.name and measured_in(layer, column)
            }
        unexplained += show(name, record[name])
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    worse = compare(record, json.loads(given.against.read_text())) if given.against else 0
    return 1 if unexplained else worse


def show(cpu: str, measured: dict[str, Any]) -> int:
    """Prints a column's table, and why layers take much more than their plans say; how many such
    layers have no reason."""
    table, reasons, without = Table(title=cpu), [], 0
    for column in ("layer", "instructions", "ratio", "best peer", "loads", "of cost", "bytes"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    peers = {layer.name: peer_of(layer, cpu) for layer in LAYERS}
    for name, m in measured.items():
        loads = m["by_class"]["load"] / m["instructions"] * m["ratio"]
        peer = "" if peers[name] is None else f"{peers[name]:.3f}"
        numbers = (
            f"{m['instructions']:,}",
            f"{m['ratio']:.3f}",
            peer,
            f"{loads:.3f}",
            "" if m["of_cost"] is None else f"{m['of_cost']:.2f}",
        )
        table.add_row(name, *numbers, f"{m['object_bytes']:,}")
        if m["of_cost"] is not None and m["of_cost"] > MOST_OF_COST:
            reason = REASONS.get(cpu, {}).get(name)
            without += reason is None
            reasons.append(f"{name}: {reason or 'NO REASON IS KNOWN'}")
    console = Console(width=100)
    console.print(table, *reasons, sep="\n", highlight=False)
    return without


def compare(record: dict[str, dict[str, Any]], earlier: dict[str, dict[str, Any]]) -> int:
    """1 where a layer takes over 1 % more instructions than earlier, which is printed."""
    status = 0
    for cpu, layers in record.items():
        for name, m in layers.items():
            before = earlier.get(cpu, {}).get(name, {}).get("instructions")
            if before and m["instructions"] > TOLERATED * before:
                print(f"{cpu}: {name}: {before:,} -> {m['instructions']:,}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
