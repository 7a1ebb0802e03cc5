"""The standard backend interface of the onnx package, `onnx.backend.base`.

    from mlc_deploy import backend

    outputs = backend.prepare(model).run([x])  # on this machine
    outputs = backend.run_model(model, [x], "qemu://cortex-a7")

Compiled models are static, so a model is compiled at its first run, for the shapes of its inputs.
Inputs whose values decide shapes, axes or permutations become constants. Other shapes or values in
a later run compile it again. All models share one session per board, which lasts as long as the
process.
"""

from __future__ import annotations

import atexit
import weakref
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto
from onnx.backend.base import Backend, BackendRep

from mlc_rpc import Refused
from mlc_targets import Target

from .board.connect import connect, target_of
from .driver.compile import CompiledModel, compile
from .errors import ImporterError
from .frontend import NeedsValue, from_onnx
from .frontend.narrow import declared_kind, shown, stored
from .frontend.onnx_collected import content, is_sequence
from .graph import Function

if TYPE_CHECKING:
    from mlc_rpc import RemoteModule, Session

Array = NDArray[Any]
LOCAL = "local://"
SCHEMES = ("local://", "qemu://", "ssh://", "tcp://", "labgrid://")


@cache
def session_on(board: str) -> Session:
    """The session with a board that all models share."""
    session = connect(board)
    atexit.register(session.close)
    return session


def given_arrays(
    model: ModelProto, inputs: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Any]]:
    """(the arrays of a model's inputs, by their names in its graph; the values of inputs without an
    array: None for an optional, and [] for a sequence)."""
    arrays: dict[str, Array] = {}
    nothing: dict[str, Any] = {}
    sequences = {i.name for i in model.graph.input if is_sequence(i)}
    for name, value in inputs.items():
        if value is None or (name in sequences and not len(value)):
            nothing[name] = value
        elif name in sequences:
            arrays |= {f"{name}.{number}": stored(each) for number, each in enumerate(value)}
        else:
            arrays[name] = stored(value)
    return arrays, nothing


def outputs_of(model: ModelProto, made: Mapping[str, Array]) -> tuple[Any, ...]:
    """The outputs of a model from the arrays of its graph: arrays, lists of arrays, or None."""
    return tuple(
        _parts(made, o.name) if is_sequence(o) else _shown(made.get(o.name), o)
        for o in model.graph.output
    )


def _parts(made: Mapping[str, Array], name: str) -> list[Array]:
    count = 0
    while f"{name}.{count}" in made:
        count += 1
    return [made[f"{name}.{number}"] for number in range(count)]


def _shown(array: Array | None, output: ValueInfoProto) -> Array | None:
    return None if array is None else shown(array, declared_kind(output))


def import_for(model: ModelProto, inputs: Mapping[str, Any]) -> tuple[Function, frozenset[str]]:
    """The graph of a model for the shapes of these inputs, and the names of inputs that are
    constants in it, because shapes, axes or permutations depend on their values.

    Raises ImporterError.
    """
    arrays, nothing = given_arrays(model, inputs)
    bound: frozenset[str] = frozenset()
    while True:
        values = {name: arrays[name] for name in bound} | nothing
        shapes = {n: a.shape for n, a in arrays.items() if n not in bound and _is_open(model, n)}
        try:
            return from_onnx(model, shapes, values=values), bound
        except NeedsValue as error:
            more = error.names & {i.name for i in model.graph.input}
            if more <= bound:
                raise
            bound |= more


def _is_open(model: ModelProto, name: str) -> bool:
    """Whether the shape of this input is dynamic."""
    kinds = {i.name: content(i.type).tensor_type for i in model.graph.input}
    kind = kinds.get(name)  # none, for a part of a sequence
    return (
        kind is None
        or not kind.HasField("shape")
        or any(not d.HasField("dim_value") for d in kind.shape.dim)
    )


class Prepared(BackendRep):  # type: ignore[misc, unused-ignore]
    """A model on a board."""

    def __init__(self, model: ModelProto, board: str) -> None:
        self._model, self._board = model, board
        given = {t.name for t in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in given]
        self._bound: frozenset[str] = frozenset()
        self._key: object = None
        self._compiled: CompiledModel | None = None
        self._module: RemoteModule | None = None
        self._finalizer: Any = None

    @property
    def bound(self) -> frozenset[str]:
        """The inputs that are constants in the last compiled model."""
        return self._bound

    @property
    def compiled(self) -> CompiledModel | None:
        """The last compiled model."""
        return self._compiled

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs in the model's order, or by name; a single array is the only one.

        Raises ImporterError, InputError and other errors of compiling and running.
        """
        given = self._by_name(inputs)
        session = session_on(self._board)
        compiled, module = self._loaded(given, session)
        arrays, _ = given_arrays(self._model, given)
        own = {name: arrays[name] for name, _ in compiled.program.inputs if name in arrays}
        return outputs_of(self._model, module.run(own))

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            inputs = dict(zip(self._names, inputs, strict=False))
        for name in self._names:
            if name not in inputs:
                raise ImporterError(f"no value is given for the input '{name}'", where="run")
        return {name: inputs[name] for name in self._names}

    def _loaded(
        self, given: Mapping[str, Any], session: Session
    ) -> tuple[CompiledModel, RemoteModule]:
        key = self._key_of(given)
        if self._compiled is None or self._module is None or key != self._key:
            self.close()
            function, self._bound = import_for(self._model, given)
            target = Target("host") if self._board == LOCAL else target_of(session.device)
            self._compiled = compile(function, target, workers=1, states={})
            _free_unused(self._board)
            self._module = session.load(self._compiled)
            # The finalizer must not call the board: garbage is collected also within such calls.
            held = (self._module, self._compiled)
            self._finalizer = weakref.finalize(self, _unused[self._board].append, held)
            self._finalizer.atexit = False
            self._key = self._key_of(given)
        return self._compiled, self._module

    def _key_of(self, given: Mapping[str, Any]) -> object:
        """The values and types of inputs that a compiled model is made for."""
        arrays, nothing = given_arrays(self._model, given)
        values = tuple((n, arrays[n].tobytes()) for n in sorted(self._bound))
        types = tuple((n, a.shape, a.dtype.name) for n, a in arrays.items())
        return values, types, tuple(nothing)

    def close(self) -> None:
        """Frees what the model holds on the board. It is also freed once nothing refers to the
        model, before the next one is loaded."""
        if self._finalizer is not None:
            self._finalizer()
            _free_unused(self._board)
        self._module = self._compiled = self._finalizer = None


# By board: modules and models to free, since nothing refers to their Prepared any more.
_unused: defaultdict[str, list[tuple[RemoteModule, CompiledModel]]] = defaultdict(list)


def _free_unused(board: str) -> None:
    session = session_on(board)
    while _unused[board]:
        module, compiled = _unused[board].pop()
        module.close()
        for data in (compiled.object_bytes, compiled.weights_bytes):
            with suppress(Refused):  # another model's module needs the same data
                session.forget(session.put(data))


def board_of(device: str) -> str:
    """A board's URL: the interface's "CPU" is this machine."""
    return LOCAL if device.upper().partition(":")[0] == "CPU" else device


class MlcBackend(Backend):  # type: ignore[misc, unused-ignore]
    """Compiles models for a board and runs them there. device: "CPU" (this machine), or a URL."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return board_of(device).startswith(SCHEMES)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        return Prepared(model, board_of(device))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()


is_compatible = MlcBackend.is_compatible
prepare = MlcBackend.prepare
run_model = MlcBackend.run_model
supports_device = MlcBackend.supports_device
