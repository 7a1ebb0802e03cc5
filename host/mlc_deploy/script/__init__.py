"""Loops and graphs written in Python: TVM's script language, read from the syntax tree.

    from mlc_deploy.script import graph as R, ir as I, tir as T

    @T.prim_func
    def add(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for i in T.serial(128):
            with T.block("B"):
                vi = T.axis.spatial(128, i)
                B[vi] = A[vi] + 1.0

    @R.function
    def main(x: R.Tensor((1, "m"), "float32")):
        with R.dataflow():
            y = R.relu(x)
            R.output(y)
        return y

The user's code never runs: `ast` parses functions, and this package interprets the tree.
`from_script` reads text; `script()` of a function or IRModule prints it.
"""

from . import graph, ir, tir
from .ir import ir_module
from .text import from_script
from .tir import prim_func

__all__ = ["from_script", "graph", "ir", "ir_module", "prim_func", "tir"]
