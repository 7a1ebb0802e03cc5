"""Kernels that call the functions of own.c, and what numpy says of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_targets import Target

SOURCE = Path(__file__).with_name("own.c")
WEIGHTS = np.array([1.5, -2, 0.25, 8], "float32")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target")
HARD = {
    "arm": (*ZIG, "arm-linux-musleabihf", "-mcpu=generic+v7a+neon"),
    "aarch64": (*ZIG, "aarch64-linux-musl"),
    "x86_64": (*ZIG, "x86_64-linux-musl"),
}
TARGETS = {"arm": "armv7a", "aarch64": "aarch64", "x86_64": "host"}

Array = NDArray[Any]


@cache
def object_of(machine: str, folder: Path, *flags: str, source: Path = SOURCE) -> Path:
    """The object of a C file, by zig, which the tests always have."""
    name = "_".join(f.strip("-").replace("=", "_") for f in flags)
    to = folder / f"{source.stem}_{machine}_{name}.o"
    command = (*HARD[machine], "-O2", "-fno-sanitize=all", *flags, "-c", source, "-o", to)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return to


def target_of(machine: str) -> Target:
    return Target(TARGETS[machine])


def mix(n: int = 16) -> Sequence[te.Tensor]:
    """B = A * 2; C = own_mix(B); D = C - 1."""
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    c = te.extern(
        (n,), [b],
        lambda ins, outs: te.call_extern(
            "int32", "own_mix", ins[0].access_ptr("r"), outs[0].access_ptr("w"), n
        ),
        name="C",
    )  # fmt: skip
    return [a, te.compute((n,), lambda i: c[i] - 1, name="D")]


def mixed(a: Array) -> Array:
    """What own_mix writes."""
    at = np.arange(a.size)
    curved = np.where(at % 2, np.exp(a), 0)
    return np.asarray(a * np.resize(WEIGHTS, a.size) + curved + 7, "float32")
