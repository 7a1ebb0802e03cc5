"""Code generation: flat loops to LLVM IR, to ELF objects that say what is in them, and to C."""

from .c import c_source
from .library import Library, compile_kernels, metadata
from .machine_code import KernelObject, compile_kernel, compile_shared

__all__ = [
    "KernelObject",
    "Library",
    "c_source",
    "compile_kernel",
    "compile_kernels",
    "compile_shared",
    "metadata",
]
