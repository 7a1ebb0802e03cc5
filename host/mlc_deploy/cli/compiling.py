"""The model of a run: read, quantized if asked, and compiled; or loaded, if it was saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_targets import Target
from mlc_targets.object_format import Param

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..driver.deployment import described_model
from ..errors import CostsMore, GraphError, ShapeError
from .options import (
    Misuse,
    Reading,
    constants,
    converters,
    dims,
    known_dims,
    ranges,
    refuse_compiled,
    shapes,
    states,
)
from .progress import Progress, Say, kernel_progress
from .saving import MODEL

if TYPE_CHECKING:
    from onnx import ModelProto

    from ..driver.levels import CompiledLevels
    from ..driver.processes import Processes
    from ..graph import Function
    from ..graph.nodes import Value
    from ..quantize.api import Quantized
    from ..tune.boards import Described


@dataclass(frozen=True, slots=True)
class Source:
    """A model to compile. quantized: how it was quantized, if it was."""

    path: Path
    reading: Reading
    converters: Mapping[str, Any]
    graph: Function
    quantized: Quantized | None = None

    def in_int8(
        self, data: str | None, preprocess: str | None, target: Target, given: Mapping[str, Any],
        link: Sequence[str], progress: Progress,
    ) -> Source:  # fmt: skip
        """The quantized model; the model itself, with a warning, if floats cost less on the
        target."""
        from ..quantize.api import quantize  # here: a saved model needs no compiler
        from ..quantize.costs import counted

        reading = self.reading
        extents = {name: array.shape for name, array in given.items()} | shapes(reading.shape)
        try:
            made = quantize(
                self.path, data, target=target if counted(target) else None, preprocess=preprocess,
                shapes=extents, dims=known_dims(reading.bind), values=constants(reading.const),
                converters=self.converters, link=link, stage=progress.stage,
            )  # fmt: skip
        except CostsMore:
            where = target.short_name
            progress.warn(f"int8 costs more than float32 on {where}, so the model runs in float32")
            return self
        for note in made.notes:
            progress.warn(note)
        without = replace(reading, const=())  # constants are in the model now
        graph = graph_of(made.model, given, without, self.converters)
        return replace(self, graph=graph, quantized=made)


def read_source(path: Path, given: Mapping[str, Any], reading: Reading) -> Source:
    """Reads a model; its inputs may have the shapes of the given arrays."""
    own = converters(reading.own)  # once: functions can be registered once only
    return Source(path, reading, own, graph_of(path, given, reading, own))


def saved_model(path: Path, options: Mapping[str, object]) -> SavedModel | None:
    """The model of a file that --save wrote; None for other files. Raises ArtifactError, and Misuse
    for options of the compiler."""
    if path.is_dir() or not (path.suffix == MODEL or is_saved(path)):
        return None
    model = load_model(path)
    refuse_compiled(path, model.target, options, "model")
    return model


def graph_of(
    model: Path | ModelProto, given: Mapping[str, Any], reading: Reading, own: Mapping[str, Any]
) -> Function:
    """The model's graph. Its inputs have the shapes of --shape, or of the given arrays; dimensions
    that --bind makes dynamic stay dynamic."""
    from ..frontend import from_model  # here: a saved model needs no compiler
    from ..graph.ranges import parted
    from ..graph.states import stateful

    bound, fixed = parted(dims(reading.bind))[0], shapes(reading.shape)
    read = partial(
        from_model, model, dims=bound, converters=own, trust=reading.trust,
        values=constants(reading.const),
    )  # fmt: skip
    every = {name: array.shape for name, array in given.items()} | fixed
    try:
        function = read(fixed if any(isinstance(n, str) for n in bound.values()) else every)
    except ShapeError:  # the arrays have the shapes that the options lack
        function = read(every)
    try:
        return stateful(function, states(reading.state))
    except GraphError as error:
        where = " ".join(f"--state {text}" for text in reading.state)
        raise Misuse(error.what, where=where, mend=error.mend) from None


def warn_of_hidden(
    target: Target, on: Described, graph: Function, precision: str, progress: Progress
) -> None:
    """Warns of features that the board has and the target leaves out."""
    from ..driver.hidden import hidden_features, hidden_text  # here: as in graph_of

    found = hidden_features(target, on.device.features, graph, precision)
    if found:
        progress.warn(hidden_text(target, on.board, found))


def signature(model: Function | SavedModel) -> tuple[dict[str, Param], dict[str, Param]]:
    """The model's inputs and outputs, by name."""
    if isinstance(model, SavedModel):
        described = described_model(model)
        return described.arguments | described.states, described.results
    from ..graph.extents import largest, open_extents  # here: as in graph_of

    names, most = open_extents(model), dict(model.extents)

    def params(named: Iterable[tuple[str, Value]]) -> dict[str, Param]:
        return {
            name: Param(name, t.dtype, t.sizes, open=names.get(name, ()))
            for name, t in ((name, largest(v.type, most)) for name, v in named)
            if name not in most
        }

    return (
        params((p.name, p) for p in model.params),
        params(zip(model.output_names, model.outputs, strict=True)),
    )


def compiled(
    graph: Function,
    name: str,
    levels: Sequence[tuple[str, Target]],
    reading: Reading,
    db: str | None,
    link: Sequence[str],
    progress: Progress,
    say: Say,
    workers: Processes | None = None,
) -> CompiledLevels:
    from ..driver.levels import compile_levels  # here: a saved model needs no compiler

    made = compile_levels(
        graph, levels, precision=reading.rest, db=db, link=link, states=states(reading.state),
        watch=lambda name, _, changed: progress.note(name if changed else f"{name} (unchanged)"),
        progress=kernel_progress(say), dims=ranges(reading.bind), workers=workers,
    )  # fmt: skip
    made = replace(made, programs=tuple(replace(p, name=name) for p in made.programs))
    for program in made.programs:
        count, level = program.kernels_compiled + program.kernels_cached, program.level
        of = f" for {level}" if len(made.programs) > 1 else ""
        progress.note(f"{count} kernels{of}, {program.kernels_cached} of them from the cache")
        if db is not None:
            progress.note(f"{len(program.kernels_tuned)} of {count} kernels{of} are tuned")
        for note in program.notes:
            progress.warn(note)
    return made
