"""The graph: a model as calls of operators; its passes, evaluation and memory.

from mlc_deploy import graph
from mlc_deploy.graph import op

bb = graph.BlockBuilder()
x = graph.Var("x", graph.tensor_type((1, 784)))
with bb.function("main", [x]):
    bb.emit_func_output(bb.emit(op.relu(x)))
module = bb.get()
"""

from . import channels, exact, layouts, op  # noqa: F401  # passes, known by name
from .bind import bind_dims, bind_params, graph_function
from .builder import BlockBuilder
from .dims import symbol, tensor_type
from .evaluate import evaluate
from .external import ExternalCall, get_global_func, register_func
from .nodes import (
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    Node,
    TensorType,
    Value,
    Var,
    const,
    uses,
)
from .passes import PASSES, optimize
from .printer import module_lines, named_constants, script
from .program import GraphProgram, lower_graph, unwritten_program
from .verify import verify

Node.printed = script
Function.module_lines = module_lines

__all__ = [
    "PASSES",
    "Binding",
    "BlockBuilder",
    "Call",
    "CallBranch",
    "CallFused",
    "CallLoop",
    "CallPacked",
    "CallTIR",
    "Constant",
    "ExternalCall",
    "Function",
    "GraphProgram",
    "TensorType",
    "Value",
    "Var",
    "bind_dims",
    "bind_params",
    "const",
    "evaluate",
    "get_global_func",
    "graph_function",
    "lower_graph",
    "named_constants",
    "op",
    "optimize",
    "register_func",
    "symbol",
    "tensor_type",
    "unwritten_program",
    "uses",
    "verify",
]
