"""`compile`: from a model to an object, weights, and the graph that says what is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_targets import Target

from .codegen import Library, compile_kernels
from .graph import Function, GraphProgram, lower_graph, optimize
from .graph.layouts import pack_weights
from .graph.passes import PASSES, Pass, fold_constants
from .lower import lower

if TYPE_CHECKING:
    from .frontend import Converter

Watch = Callable[[str, Function, bool], None]


@dataclass(frozen=True)
class CompiledModel:
    """A model for one target.

    `reference` is the graph as it was imported; its evaluation says what outputs are right.
    `program` has the kernels, the call table, the memory plan and the weights; `library` the
    object made of them.
    """

    name: str
    target: Target
    reference: Function
    program: GraphProgram
    library: Library
    seconds: float = field(compare=False)

    @property
    def object_bytes(self) -> bytes:
        return self.library.object_bytes

    @property
    def weights_bytes(self) -> bytes:
        return self.program.weights


def compile(
    model: str | Path | Function,
    target: Target | str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    converters: Mapping[str, Converter] | None = None,
    watch: Watch | None = None,
) -> CompiledModel:
    """Compiles a model (an .onnx file, or a graph function) for a target.

    shapes fixes inputs by name, dims symbolic dimensions by name; converters are for operators that
    are missing, by name, as frontend.from_onnx takes them. watch(name, function, changed) sees the
    graph after every pass. Raises ImporterError, LowerError, CodegenError, TargetError.
    """
    began = time.perf_counter()
    to = Target(target) if target is not None else (Target.current() or Target("host"))
    if isinstance(model, Function):
        function = model
    else:
        from .frontend import from_onnx  # here, since onnx takes a while to import

        function = from_onnx(model, shapes, dims, converters=converters)
    steps: tuple[Pass | str, ...] = (
        "imported",
        *PASSES,
        pack_weights(to),
        fold_constants,
        "optimized",
    )
    graph = optimize(function, steps, watch)
    program = lower_graph(graph, to)
    kernels = [lower(func) for func in program.kernels.values()]
    library = compile_kernels(function.name, kernels, to, program.model_map())
    assert library.object_bytes  # compiled here, so that the seconds are compilation's
    return CompiledModel(function.name, to, function, program, library, time.perf_counter() - began)
