"""Code generation: flat loops to LLVM IR, and to ELF objects that say what is in them."""

from .library import Library, compile_kernels, metadata

__all__ = [
    "Library",
    "compile_kernels",
    "metadata",
]
