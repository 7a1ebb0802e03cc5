"""The QEMU CPU that stands in for a target: the plainest one with the features its code needs.

The features are those that programs see (in AT_HWCAP) under qemu-user 7.2, as the board's runtime
does. tests/targets/test_qemu.py reads them where QEMU is installed.
"""

from __future__ import annotations

from .cpus import cpu_features
from .errors import TargetError
from .features import REQUIRED, closures
from .target import Arch, Target

# Plainest first, so that code that uses more features than its target has fails here.
_STAND_INS: dict[Arch, tuple[str, ...]] = {
    "aarch64": (
        "cortex-a53",
        "cortex-a35",
        "cortex-a57",
        "cortex-a72",
        "cortex-a76",
        "neoverse-n1",
        "a64fx",
        "max",
    ),
    "arm": ("cortex-a8", "cortex-a9", "cortex-a7", "cortex-a15", "max"),
    "x86_64": ("max",),
}

_MAX: dict[Arch, str] = {
    "aarch64": "v8.5a i8mm bf16 fp16fml f32mm f64mm sha3 sve2 sve-bitperm",
    "arm": "v8 fp-armv8 neon hwdiv hwdiv-arm",
    "x86_64": "sse4.2 popcnt avx2 f16c fma bmi bmi2 lzcnt movbe",
}


def qemu_features(arch: Arch, cpu: str) -> frozenset[str]:
    """The features of QEMU's `cpu`, of those that objects may require."""
    has = closures(arch, _MAX[arch].split()) if cpu == "max" else cpu_features(arch, cpu)
    return has & REQUIRED[arch]


def qemu_cpu(target: Target) -> str:
    """The CPU in `qemu://CPU` for `target`: its own, or the plainest that can run its code.

    Raises TargetError when QEMU 7.2 has none, with the features that even "max" lacks.
    """
    names = _STAND_INS[target.arch]
    needs = set(target.required_features)
    own = tuple(name for name in names if name == target.mcpu)
    for name in own + names:
        if needs <= qemu_features(target.arch, name):
            return name
    lacks = sorted(needs - qemu_features(target.arch, "max"))
    raise TargetError(
        f"no CPU of QEMU 7.2 has {', '.join(lacks)}",
        "-mattr=" + ",".join(f"-{name}" for name in lacks),
        where=str(target),
    )
