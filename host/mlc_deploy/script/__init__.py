"""The loop IR as Python users write it: TVM's script language, read from its syntax tree.

    from mlc_deploy.script import ir as I, tir as T

    @T.prim_func
    def add(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for i in T.serial(128):
            with T.block("B"):
                vi = T.axis.spatial(128, i)
                B[vi] = A[vi] + 1.0

Nothing of the user's code is run: functions are parsed with `ast`, and the tree is interpreted.
`from_script` reads text, which is also what `script()` of a PrimFunc or IRModule prints.
"""

from . import ir, tir
from .ir import ir_module
from .text import from_script
from .tir import prim_func

__all__ = ["from_script", "ir", "ir_module", "prim_func", "tir"]
