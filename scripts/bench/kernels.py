"""Executed instructions of single layers, beside the best peer's.

    scripts/bench/kernels.py [--target NAME ...] [--only TEXT] [--json FILE] [--against FILE]

Counted under QEMU with the CPU named. `ratio` is all instructions of one call, divided by
multiply-accumulates / 4 (what a machine does that only multiplies, four at a time). With --against
the exit status is 1 where a layer takes over 1 % more than in that file.
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
from mlc_deploy.ops import TensorType, infer_types
from mlc_deploy.ops.arm_cpu.winograd import decide
from mlc_deploy.ops.layout import pack
from mlc_deploy.ops.strategy import blocked_attrs, packed_attrs

TOLERATED = 1.01
BOARDS = {"cortex-a72": "aarch64", "cortex-a7": "armv7a"}


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
    return replace(conv(name, data, weights, pad=1, **peers), winograd=True)


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


def multiplies(layer: Layer) -> int:
    """Multiply-accumulates; of pooling, elements in windows."""
    types = [TensorType(s, "float32") for s in (layer.data, layer.weights) if s]
    (out,) = infer_types(layer.op, types, layer.attrs)
    each = prod(layer.weights[1:]) if layer.weights else prod(layer.attrs["kernel"])
    return out.elements * int(each)


def layer_function(layer: Layer, target: mlc.Target) -> Function:
    """The layer as a network in the middle has it: data and weights in the target's layouts."""
    shapes = [s for s in (layer.data, layer.weights) if s]
    types = [TensorType(s, "float32") for s in shapes]
    op, attrs = layer.op, layer.attrs
    if layer.winograd:
        plan = decide(types, attrs, target).plan
        assert plan is not None, f"{layer.name} is computed otherwise"
        op, attrs = "winograd_conv2d", {"tile": plan.tile, "pads": attrs["pads"]}
        shapes[1] = (*layer.weights[:2], plan.tile + 2, plan.tile + 2)
        types[1] = TensorType(shapes[1], "float32")
    wanted = blocked_attrs(op, types, attrs, target)
    wanted = wanted or packed_attrs(op, types, attrs, target) or {}
    arrays = [np.zeros(s, np.float32) for s in shapes]
    data = wanted.get("data_layout", wanted.get("layout", "NCHW"))
    arrays[0] = pack(arrays[0], "NCHW", data) if len(layer.data) == 4 else arrays[0]
    if "kernel_layout" in wanted:
        arrays[1] = pack(arrays[1], wanted["source_layout"], wanted["kernel_layout"])
    builder = BlockBuilder("layer")
    params = [builder.param(f"p{n}", a.shape) for n, a in enumerate(arrays)]
    return builder.finish([builder.emit(op, *params, **attrs, **wanted)])


def measure(layer: Layer, session: Any, target: mlc.Target) -> dict[str, Any]:
    func = lower_fused(layer_function(layer, target), target, "layer")
    library = mlc.build(func, target=target)
    module = session.load(library)
    arrays = [np.zeros([int(n) for n in b.shape], b.dtype) for b in func.buffers]  # type: ignore[arg-type]
    (counts,) = module["layer"].profile(*(session.tensor(a) for a in arrays)).counts
    module.close()
    ideal = multiplies(layer) / 4
    return {
        "instructions": counts.total,
        "ratio": round(counts.total / ideal, 4),
        "by_class": counts.by_class,
        "object_bytes": len(library.object_bytes),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=BOARDS, help="a CPU; default: all")
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--against", type=Path, help="an earlier record to compare with")
    given = parser.parse_args(arguments)
    record: dict[str, dict[str, Any]] = {}
    for cpu in given.target or BOARDS:
        target = mlc.Target(BOARDS[cpu])
        with mlc.connect(f"qemu://{cpu}") as session:
            record[cpu] = {
                layer.name: measure(layer, session, target)
                for layer in LAYERS
                if given.only in layer.name
            }
        show(cpu, record[cpu])
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return compare(record, json.loads(given.against.read_text())) if given.against else 0


def show(cpu: str, measured: dict[str, Any]) -> None:
    table = Table(title=cpu)
    for column in ("layer", "instructions", "ratio", "best peer", "loads", "object bytes"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    peers = {layer.name: layer.peers.get(cpu) for layer in LAYERS}
    for name, m in measured.items():
        loads = m["by_class"]["load"] / m["instructions"] * m["ratio"]
        peer = "" if peers[name] is None else f"{peers[name]:.3f}"
        numbers = (f"{m['instructions']:,}", f"{m['ratio']:.3f}", peer, f"{loads:.3f}")
        table.add_row(name, *numbers, f"{m['object_bytes']:,}")
    Console(width=100).print(table)


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
