"""Code generation: flat loops to LLVM IR, to ELF objects that say what is in them, and to C."""

from .c import c_source
from .library import Library, compile_kernels, metadata

__all__ = [
    "Library",
    "c_source",
    "compile_kernels",
    "metadata",
]
