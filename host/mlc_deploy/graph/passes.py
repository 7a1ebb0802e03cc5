"""The graph passes in the order they run. Each is a function from a graph to a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from ..passes.context import run_passes
from .approximate import fast_math
from .combine import combine_parallel_layers
from .control import constants_into_bodies
from .eliminate import eliminate_common_subexpressions, eliminate_dead_code
from .fold import fold_constants, fold_scale, simplify_inference
from .functions import recognize_functions
from .long_norms import split_long_norms
from .moves import canonicalize_transposes, sink_reshapes
from .nodes import Function, in_bodies
from .quantize import canonicalize_quantized
from .recognize import recognize_operators
from .rewrite import fold_call
from .sequences import gathers_to_sequences
from .simplify import simplify_expressions
from .tabulate import tabulate
from .verify import verify
from .volumes import volumes_as_images

__all__ = [
    "PASSES",
    "Pass",
    "canonicalize_quantized",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_call",
    "fold_constants",
    "fold_scale",
    "optimize",
    "simplify_inference",
]

Pass = Callable[[Function], Function]

PASSES: tuple[Pass, ...] = (
    eliminate_dead_code,
    recognize_functions,  # before all others, which know only operators
    tabulate,  # first, since the others may change the rounding of floats
    simplify_inference,
    gathers_to_sequences,  # before folding, which then slices constants
    fold_constants,
    constants_into_bodies,
    simplify_expressions,
    canonicalize_transposes,
    eliminate_common_subexpressions,  # before patterns, in which a value may occur several times
    recognize_operators,
    split_long_norms,
    sink_reshapes,
    fold_scale,
    volumes_as_images,
    canonicalize_transposes,
    sink_reshapes,
    eliminate_common_subexpressions,
    combine_parallel_layers,
    fast_math,
    simplify_expressions,
    eliminate_dead_code,
)


def optimize(
    function: Function,
    passes: Sequence[Pass | str] = PASSES,
    watch: Callable[[str, Function, bool], None] | None = None,
) -> Function:
    """Runs the passes that the PassContext allows, also on the bodies of loops and branches.
    Verifies the graph after each pass, and calls watch(name, function, changed)."""
    steps = [p if isinstance(p, str) else everywhere(p) for p in passes]
    return run_passes("graph", function, steps, lambda made, _: verify(made), watch)


def everywhere(step: Pass) -> Pass:
    """A pass that runs on the bodies of loops and branches first, then on the function around."""

    @wraps(step)
    def run(function: Function) -> Function:
        return step(in_bodies(function, run))

    return run
