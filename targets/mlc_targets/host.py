"""This machine as target attributes."""

from __future__ import annotations

import platform
import struct
import sys

from .cpus import CPUS, cpu_features
from .errors import TargetError
from .features import VOCABULARY, closure, is_unused, roots
from .triples import read_triple


def host_triple() -> str:
    """The triple of programs that run here; its word size is Python's, not the kernel's.

    Raises TargetError on systems other than Linux.
    """
    machine = platform.machine().lower()
    if struct.calcsize("P") == 4 and machine in ("aarch64", "arm64"):
        machine = "armv7a"
    if sys.platform != "linux":
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise TargetError(
            f"boards run Linux, and no code is generated for this machine, which runs {system}",
            "a board, as --target raspberry-pi/5 or --board ssh://[user@]host",
        )
    floats = "gnueabihf" if machine.startswith("arm") and machine != "arm64" else "gnu"
    return str(read_triple(f"{machine}-linux-{floats}"))


def host_attributes() -> dict[str, object]:
    """mtriple, mcpu and mattr of this machine; mattr has the differences from the CPU.

    Raises TargetError on systems other than Linux, and without llvmlite, which reads the CPU.
    """
    triple = host_triple()
    try:
        from llvmlite import binding
    except ImportError:
        raise TargetError(
            "the CPU of this machine is read by llvmlite, which is not installed",
            "pip install llvmlite, or say what it is: llvm -mtriple=... -mcpu=...",
        ) from None
    arch = read_triple(triple).family
    cpu = binding.get_host_cpu_name()
    if cpu not in CPUS[arch]:
        cpu = "x86-64" if arch == "x86_64" else "generic"
    try:
        flags = dict(binding.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot tell on this system
        flags = {}
    return {"mtriple": triple, "mcpu": cpu, "mattr": difference(arch, cpu, flags)}


def difference(arch: str, cpu: str, flags: dict[str, bool]) -> tuple[str, ...]:
    """The mattr that iterations `cpu` into a machine with `flags`, such as a virtual machine."""
    has = cpu_features(arch, cpu)
    known = {name for name in flags if name in VOCABULARY[arch]}
    lacks = {name for name in known if not flags[name]}
    removed = {name for name in has & lacks if not (closure(arch, name) - {name}) & lacks}
    added = {name for name in known - has - lacks if not closure(arch, name) & lacks}
    if arch != "x86_64":
        added = {name for name in added if not is_unused(name)}
    plus = (f"+{name}" for name in roots(arch, added))
    return (*plus, *(f"-{name}" for name in sorted(removed)))
