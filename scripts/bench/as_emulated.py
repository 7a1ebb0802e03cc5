"""This process without the instructions that QEMU does not know: AVX-512, AMX, GFNI.

QEMU executes AVX2 at most. On a CPU that has more, onnxruntime would run other kernels here than
those that were counted there. Import this before anything that asks the CPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def hide_unknown() -> None:
    """From here on CPUID names no such instructions, in this process alone. Raises OSError where
    the CPU has them and cannot hide them."""
    if "avx512f" not in Path("/proc/cpuinfo").read_text().split():
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "as_emulated.so")
        compiler = (sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", "-shared", "-fPIC")
        subprocess.run([*compiler, "-o", library, SOURCE], check=True)
        if ctypes.CDLL(str(library)).hide() != 0:
            raise OSError("this CPU has AVX-512, QEMU has not, and CPUID cannot hide it here")
