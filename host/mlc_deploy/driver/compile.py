"""`compile`: a model becomes an object, weights, and the graph that computes right outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from mlc_targets import BASE, Target
from mlc_targets.object_format import MAX_OPERANDS, Metadata, parse_metadata

from ..artifact import save
from ..artifact.c_model import export_c
from ..artifact.export import export
from ..codegen import Library, metadata
from ..codegen.c_fixed import MATH_NAMES
from ..codegen.link import undefined
from ..errors import LowerError
from ..files.mapped import Buffer
from ..files.outside import name_of
from ..frontend import Converter
from ..graph import ExternalCall, Function, GraphProgram, evaluate, unwritten_program
from ..graph.indices import index_extents
from ..graph.lower import KernelSource
from ..graph.nudge import (
    MOST,
    MOST_ELEMENTS,
    NUDGES,
    TIMES,
    nudged,
    rounded_to_half,
    rounds_floats,
)
from ..graph.steep import computes_in_half, moved, weights_moved
from ..graph.weight_growth import known_memory
from ..ir import IRModule
from ..lower import Kernel
from ..passes.context import options
from .compare import Slack, compare, steepness
from .kernels import Counted, compile_sources, layers_by_kernel, loops_of
from .linked import FileName, linked_objects
from .model_graph import Watch, model_graph
from .processes import Processes, processes_of

DRAWS = 3  # of moved models: the others say whether one of them is an exception
GENERATED = MATH_NAMES | set("memcpy memmove memset memcmp bcmp roundeven roundevenf".split())

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

    from ..tuned import Database


@dataclass(frozen=True)
class CompiledModel:
    """A model for one target.

    `reference` is the imported graph; evaluating it gives the expected outputs. `program` has the
    kernels, the call table, the memory plan and the weights; `library` the object made of them;
    `module` holds the PrimFuncs that the graph calls. `kernels_compiled` and `kernels_cached`
    count kernels; a database says how those in `kernels_tuned` are scheduled. `notes` tell the
    user what to know of that.
    """

    name: str
    target: Target
    reference: Function
    program: GraphProgram
    library: Library
    seconds: float = field(compare=False)
    module: IRModule | None = None
    kernels_compiled: int = field(compare=False, default=0)
    kernels_cached: int = field(compare=False, default=0)
    kernels_tuned: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(compare=False, default=())
    precision: str = "float32"
    level: str = BASE  # the CPU level, if the target has several

    @property
    def object_bytes(self) -> bytes:
        return self.library.object_bytes

    @property
    def weights_bytes(self) -> Buffer:
        return self.program.weights

    @cached_property
    def metadata(self) -> Metadata:
        """The object's own description."""
        return parse_metadata(msgpack.packb(metadata(self.library)))

    @cached_property
    def index_extents(self) -> Mapping[str, int]:
        """For each input that holds indices, how many entries it may index."""
        return index_extents(self.reference)

    def evaluate(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The expected outputs."""
        return evaluate(self.reference, inputs, module=self.module)

    def slack(
        self, inputs: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]
    ) -> dict[str, Slack]:
        """How much outputs may differ besides tolerances, if the model rounds computed floats to
        integers or computes in float16 (graph/nudge.py). All elements may differ by a few times
        what such rounding moves them, but at most by 5 % of the largest. A few times as many
        elements as it moves further, but at most 2 %, may differ by more. Outputs of other models,
        and integers, are left out."""
        others: list[Function] = []
        if rounds_floats(self.reference):
            others += [nudged(self.reference, factor) for factor in NUDGES]
        if self.precision == "float16":
            others.append(rounded_to_half(self.reference))
        if not others:
            return {}
        outputs = [evaluate(other, inputs, module=self.module) for other in others]
        found: dict[str, Slack] = {}
        for name, expected in right.items():
            alike = all(m[name].shape == expected.shape for m in outputs)
            if expected.dtype.kind != "f" or not expected.size or not alike:
                continue
            widest = MOST * float(np.abs(expected.astype(np.float64)).max())
            off = max(float(np.abs(m[name].astype(np.float64) - expected).max()) for m in outputs)
            slack = Slack(min(TIMES * off, widest))
            further = max(compare(m[name], expected, self.judged_in, slack).wrong for m in outputs)
            few = min(TIMES * further, int(MOST_ELEMENTS * expected.size))
            found[name] = replace(slack, elements=few)
        return found

    @cached_property
    def judged_in(self) -> str:
        """The precision whose tolerance suits the outputs, whatever dtype those have."""
        return "float16" if computes_in_half(self.reference) else self.precision

    def steepness(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Slack]:
        """How much outputs may differ since the model itself moves them by as much when the last
        digit of its inputs and weights changes. Takes as long as `evaluate` a few times."""
        rng, precision = np.random.default_rng(0), self.judged_in
        right, others = self.evaluate(inputs), []
        for _ in range(DRAWS):
            given = {name: moved(array, rng, precision) for name, array in inputs.items()}
            function = weights_moved(self.reference, rng, precision)
            others.append(evaluate(function, given, module=self.module))
        return {
            name: steepness(expected, [other[name] for other in others], precision)
            for name, expected in right.items()
        }

    def save(self, path: str | Path) -> Path:
        """Writes the model to one file, for `load_model` and for a board's `mlc-runtime run`.
        Raises ArtifactError, OSError."""
        return save(path, self)

    def export(self, folder: str | Path, name: str = "", *, embed_weights: bool = False) -> Path:
        """Writes the model, called `name`, as part of a C program (artifact/export.py says which
        files) and returns its header's path. For the target "c" all of it is C, weights included
        (artifact/c_model.py). Raises ArtifactError, CodegenError, InstallError, OSError."""
        if self.target.kind == "c":
            return export_c(folder, self, self.library, name)
        return export(folder, self, name, embed_weights=embed_weights)

    @property
    def host_calls(self) -> tuple[ExternalCall, ...]:
        """The calls of registered functions; those run on this machine."""
        return self.program.externals


def _lowered(sources: Mapping[str, KernelSource], target: Target) -> list[Kernel]:
    return [loops_of(source, target) for source in sources.values()]


def compile(
    model: str | Path | ExportedProgram | GraphModule | Function | IRModule,
    target: Target | str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
    converters: Mapping[Any, Converter] | None = None,
    watch: Watch | None = None,
    workers: int | Processes | None = None,
    precision: str = "float32",
    db: Database | str | Path | None = None,
    trust: bool = False,
    states: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    link: Sequence[FileName] = (),
    progress: Counted | None = None,
    memory: str | None = None,
) -> CompiledModel:
    """Compiles a model for a target: an .onnx, .tflite or .pt2 file, a program of torch.export, a
    GraphModule of torch.fx, a graph function, or a module's `main`.

    shapes: the shapes of inputs, by name. dims: symbolic dimensions, by name: a number, "<=512"
    (dynamic, up to 512), "1,<=64,<=512" (kernels for each of these ranges), or the
    name of another that it always equals.
    converters: for missing operators, as the front ends take them.
    watch(name, function, changed) sees the graph after every pass.
    workers: how many processes compile kernels, or those processes; by default the PassContext's
    number, one per core.
    precision: "float32", the model's own, or "float16": float32 layers then compute in float16
    where that serves as well.
    db: a database of tuned kernels, or its file. Kernels that it knows for this target get its
    schedules, and layers its best layouts.
    trust: a .pt2 file may run its author's code; without it, a file that could is refused.
    states: inputs that the model passes on to itself, each with the output that holds its next
    value; by default recognized by their names (graph/states.py). They stay on the board.
    values: inputs to make constants.
    link: object and C files with the functions that PrimFuncs call by te.call_extern.
    progress(n, m) is called when n of m kernels are compiled; cached ones do not count.
    memory: how much the weights may grow to make layers faster: "small", by a tenth,
    "balanced", by half, or "fast", without limit; by default the PassContext's, "balanced".
    Raises ImporterError, GraphError, LowerError, CodegenError, TargetError, TuneError.
    """
    began = time.perf_counter()
    to = Target(target) if target is not None else (Target.current() or Target("host"))
    how = of_db = None
    if db is not None:
        from ..tuned import existing, known_layouts, tuned  # here: most compile without one

        db = existing(db)
        how = partial(known_layouts, db, target=to, precision=precision)
    with processes_of(workers) as processes:
        if isinstance(model, (str, Path)):
            asked = (str(to), precision, memory, shapes, dims, values)
            processes.start_for(Path(model), repr(asked))
        with options({} if memory is None else {"graph.memory": known_memory(memory)}):
            graphs = model_graph(
                model, to, shapes, dims, converters, watch, precision, how, trust, states, values
            )
        unwritten = unwritten_program(graphs.optimized, graphs.module)
        program = unwritten.program
        if to.kind != "c":
            _refuse_wide(program)
        if db is not None:
            of_db = tuned(program.kernels, to, db)
            program = replace(program, kernels=of_db.sources)
        linked = linked_objects(link, to)
        layers = layers_by_kernel(program)
        with ThreadPoolExecutor(1) as beside:  # numpy and hashes release the interpreter's lock
            written = beside.submit(unwritten.written)
            kernels = compile_sources(program.kernels, to, layers, processes, progress)
        processes.compiled()
    program = replace(written.result(), kernels=program.kernels)
    library = Library(
        name=graphs.reference.name,
        target=to,
        lowered=partial(_lowered, program.kernels, to),
        compiled=kernels.objects,
        model=program.model_map(),
        linked=linked,
    )
    assert library.object_bytes  # merges now, so that `seconds` includes it
    return CompiledModel(
        name=name_of(Path(model)) if isinstance(model, (str, Path)) else graphs.reference.name,
        target=to,
        reference=graphs.reference,
        program=program,
        library=library,
        seconds=time.perf_counter() - began,
        module=graphs.module,
        precision=precision,
        kernels_compiled=len(kernels.objects) - kernels.cached,
        kernels_cached=kernels.cached,
        kernels_tuned=tuple(of_db.found) if of_db else (),
        notes=(*(of_db.notes if of_db else ()), *_missing(library)),
    )


def _refuse_wide(program: GraphProgram) -> None:
    """Refuses a program that no board would load, before its kernels are compiled. Raises
    LowerError."""
    count = len(program.inputs) + len(program.outputs)
    if count > MAX_OPERANDS:
        raise LowerError(
            f"the model has {count} inputs and outputs; boards take {MAX_OPERANDS}",
            mend="join some of one shape to a tensor with one more dimension",
        )
    for call in program.calls:
        if (count := len(call.args)) > MAX_OPERANDS:
            raise LowerError(
                f"kernel '{call.kernel}' takes {count} tensors; boards take {MAX_OPERANDS}",
                where=f"layer '{call.layer}'",
                mend="two calls, each of a part of the tensors",
            )


def _missing(library: Library) -> tuple[str, ...]:
    """A note on functions that kernels call and nobody defines. The runtime, or the linker of a C
    program, provides those that generated code calls by itself."""
    called = undefined(library.object_bytes)
    names = [n for n in called if n not in GENERATED and not n.startswith("_")]
    what = f"no linked object defines {', '.join(names)}, so boards refuse the model"
    return (f"{what} (--link FILE.o)",) if names else ()
