"""Records as `mlc-deploy MODEL --json --report` writes them, of a small model with a residual; no
compiler is needed for them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

CODE = "\tfmla\tv0.4s, v1.4s, v2.4s\n\tret\n"
CLASSES = ("mac", "vector", "load", "store", "branch", "scalar")
# layer, kernel, operators, MACs, instructions, reads, writes
LAYERS = (
    ("stem", "conv2d_relu", ["conv2d", "relu"], 800_000, 310_000, [0], [1]),
    ("body.conv", "conv2d_relu_1", ["conv2d", "relu"], 1_600_000, 520_000, [1], [2]),
    ("body.depthwise", "conv2d", ["conv2d"], 90_000, 61_000, [2], [3]),
    ("body.sum", "add_relu", ["add", "relu"], 0, 9_000, [3, 1], [4]),
    ("head", "dense_add", ["dense", "add"], 64_000, 30_000, [4], [5]),
    ("softmax", "softmax", ["softmax"], 0, 900, [5], [6]),
)
TENSORS = (  # name, space, offset, bytes, begin, end
    ("image", "input", 0, 12_288, -1, 0),
    ("stem", "arena", 0, 65_536, 0, 3),
    ("body.conv", "arena", 65_536, 65_536, 1, 2),
    ("body.depthwise", "arena", 131_072, 65_536, 2, 2),
    ("body.sum", "arena", 131_072, 65_536, 3, 4),
    ("head", "arena", 0, 4_096, 4, 5),
    ("probability", "output", 0, 4_000, 5, 6),
)
# Of four cores, and of one that nothing is known of.
LIMITS: dict[str, Any] = {
    "macs_per_instruction": 4, "macs_per_s": 2.88e10, "bytes_per_s": 4e9,
    "by_dtype": {"float32": 2.88e10, "int8": 5.76e10},
    "source": "4 cores cortex-a72 at 1,800 MHz",
}  # fmt: skip
UNKNOWN: dict[str, Any] = {
    "macs_per_instruction": 4, "macs_per_s": None, "bytes_per_s": None, "by_dtype": {},
    "source": "4 numbers of float32 in a vector register",
}  # fmt: skip


def layer(number: int, name: str, kernel: str, count: int, timed: bool) -> dict[str, Any]:
    by_class = dict.fromkeys(CLASSES, count // 8) | {"mac": count - 5 * (count // 8)}
    return {
        "name": name, "kernel": kernel, "shape": [1, 16, 8, 8 + number], "dtype": "float32",
        "median_us": count / 900, "instructions": None if timed else count,
        "by_class": None if timed else by_class,
    }  # fmt: skip


def details(names: dict[str, str]) -> dict[str, Any]:
    def named(name: str) -> str:
        return names.get(name, name)

    return {
        "calls": [
            {"reads": [*reads], "writes": [*writes], "operators": [*operators],
             "traffic_bytes": 150_000, "weights_bytes": 18_432,
             "implementation": "conv2d_blocks", "multiply_accumulates": macs}
            for _, _, operators, macs, _, reads, writes in LAYERS
        ],
        "tensors": [
            {"name": named(n), "space": s, "offset": o, "bytes": b, "begin": f, "end": e}
            for n, s, o, b, f, e in TENSORS
        ],
        "arena": {"bytes": 196_608, "least_bytes": 196_608},
        "kernels": {
            named(kernel): {
                "loops": f"@T.prim_func\ndef {named(kernel)}():\n    for i in range(8): ...",
                "assembly": f"\t.text\n{named(kernel)}:\n{CODE}",
            }
            for _, kernel, *_ in LAYERS
        },
        "loops": False,
    }  # fmt: skip


def record(timed: bool = False, names: dict[str, str] | None = None) -> dict[str, Any]:
    """Of a board that was timed, or of an emulated one that counted. names: what layers, kernels,
    tensors and the model are called instead."""
    names = names or {}
    samples = [2.0 + 0.1 * (n % 4) + (3.0 if n == 17 else 0.0) for n in range(20)]
    latency: dict[str, Any] = {
        "n": 20, "median_ms": 2.15, "p50_ms": 2.1, "p90_ms": 2.3, "p95_ms": 2.3, "p99_ms": 5.1,
        "mad_ms": 0.1, "first_ms": 4.2, "samples": samples, "number": [9] * 20, "outliers": [17],
        "drift": 0.0, "verdict": "throttled",
        "findings": [{"what": "the clock was 1.20 to 1.50 GHz at 82 °C", "mend": "a fan"}],
        "cluster": "cortex-a72", "cores": [0, 1, 2, 3], "each": 1,
        "per_run": {"cycles": 2e6, "instructions": 3e6, "cache_misses": None},
        "conditions": {
            side: {"clock_khz": [1_500_000 - 10_000 * n for n in range(20)],
                   "zone0_mc": [52_000 + 800 * n for n in range(20)],
                   "zone1_mc": [None] * 20}
            for side in ("before", "after")
        },
    }  # fmt: skip
    if not timed:
        latency |= {"n": 1, "samples": [90.0], "number": [1], "outliers": [], "conditions": None,
                    "verdict": "emulated", "cores": [], "per_run": {}, "findings": [
                        {"what": "an emulator's seconds", "mend": "count"}]}  # fmt: skip
    layers = [
        layer(n, names.get(name, name), names.get(kernel, kernel), count, timed)
        for n, (name, kernel, _, _, count, _, _) in enumerate(LAYERS)
    ]
    return {
        "record": 1, "model": names.get("model", "small_net"),
        "target": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72", "precision": "float32",
        "level": "base", "compile_s": 1.5, "object_bytes": 9_000, "weights_bytes": 120_000,
        "arena_bytes": 200_000, "states": {},
        "board": {"url": "ssh://pi@pi.local" if timed else "qemu://cortex-a72",
                  "machine": "aarch64", "cpu_model": "cortex-a72", "cores": 4,
                  "features": ["crc", "neon"], "kernel": "6.1.0", "memory_bytes": 4 << 30,
                  "box": ["syscalls"], "emulated": not timed},
        "inputs": [{"name": "image", "shape": [1, 3, 32, 32], "dtype": "float32",
                    "source": "seed 0"}],
        "outputs": [{"name": "probability", "shape": [1, 1000], "dtype": "float32",
                     "max_abs_err": 1e-7, "max_rel_err": 2e-7, "ok": True}],
        "reference": "evaluate", "ok": True, "predictions": None, "threads": 4 if timed else 1,
        "upload_s": 0.2, "upload_bytes": 130_000,
        "memory": {"alive_peak_bytes": 196_608, "alive_mean_bytes": 90_000,
                   **({"resident_peak_bytes": 900_000, "resident_mean_bytes": 850_000}
                      if timed else {})},
        "energy": {"joules_per_run": 0.0125} if timed else None,
        "limits": deepcopy(LIMITS if timed else UNKNOWN),
        "latency": latency, "instructions": None if timed else sum(r[4] for r in LAYERS),
        "layers": layers, "interruptions": [],
        "runtime_version": "0.1.0",
        "steps": [{"name": name, "begin_s": n * 0.5, "seconds": 0.4}
                  for n, name in enumerate(("read", "connect", "compile", "upload", "run"))],
        "details": details(names),
    }  # fmt: skip
