"""The graph: a model as calls of operators; its passes, evaluation and memory."""

from .builder import BlockBuilder
from .evaluate import evaluate
from .nodes import Binding, Call, CallTIR, Constant, Function, TensorType, Value, Var, uses
from .passes import PASSES, optimize
from .program import GraphProgram, lower_graph
from .verify import verify

__all__ = [
    "PASSES",
    "Binding",
    "BlockBuilder",
    "Call",
    "CallTIR",
    "Constant",
    "Function",
    "GraphProgram",
    "TensorType",
    "Value",
    "Var",
    "evaluate",
    "lower_graph",
    "optimize",
    "uses",
    "verify",
]
