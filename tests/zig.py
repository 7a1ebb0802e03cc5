"""zig as the C compiler that tests always have, for programs on any machine."""

from __future__ import annotations

import sys
from functools import cache

import runtime_build


@cache
def static_cc(machine: str) -> tuple[str, ...]:
    """Compiles and links as the device runtime is. zig builds its C library for each set of flags,
    which takes a minute per machine; the library for these flags is there."""
    name = f"mlc-runtime-{machine}"
    known = runtime_build.binaries(runtime_build.read_sources())
    (binary,) = (b for b in known if b.name == name)
    return (sys.executable, "-m", "ziglang", "cc", *binary.compiling, *binary.linking)
