"""External functions: Python functions instead of operators.

    @mlc.register_func("env.linear")
    def linear(x, w, b, out):
        np.matmul(x, w.T, out=out)
        out += b

A function gets numpy arrays, first its inputs and then its outputs. It writes the outputs in place.
A function that takes the inputs alone returns its outputs, which are copied.
The arrays are C-contiguous and writable and support DLPack, so `torch.from_dlpack(out)` is the same
memory. Functions run on the host. If the board is a process of this machine (local://, qemu://),
they get the board's own memory. For any other board, inputs are fetched and outputs sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ExternalError
from ..ops import TensorType
from .nodes import Binding, CallPacked, Value
from .plan import Place

Array = NDArray[Any]
External = Callable[..., Any]
F = TypeVar("F", bound=External)

_REGISTERED: dict[str, External] = {}


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A registered function in the call table: it runs after the first `at_call` kernels.

    Its arguments lie at `args` and have the types `types`. It writes the last `outputs` of them.
    `layer` is its name in the model, `line` its line in the printed graph.
    """

    name: str
    layer: str
    at_call: int
    args: tuple[Place, ...]
    types: tuple[TensorType, ...]
    outputs: int
    line: str

    def __call__(self, *arrays: Array) -> None:
        """Runs the function on arrays of `types`. Raises ExternalError."""
        inputs = len(arrays) - self.outputs
        call_external(self.name, arrays[:inputs], arrays[inputs:], self.line)


def external_call(
    binding: Binding, layer: str, at_call: int, place: Callable[[Value], Place]
) -> ExternalCall:
    """The entry for the binding of a CallPacked. `place` gives the place of a value."""
    call = binding.call
    assert isinstance(call, CallPacked)
    values = (*call.args, *binding.outputs)
    places, types = tuple(map(place, values)), tuple(v.type for v in values)
    return ExternalCall(
        call.func, layer, at_call, places, types, len(binding.outputs), str(binding)
    )


@overload
def register_func(name: str, f: None = None, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_func(name: str, f: F, override: bool = False) -> F: ...
def register_func(name: str, f: Any = None, override: bool = False) -> Any:
    """Registers f for `call_dps_packed(name, …)`. Without f, returns a decorator.

    Raises ExternalError if the name is taken, unless `override`.
    """
    if not isinstance(name, str) or not name:
        raise ExternalError(
            f"a function is registered under a name, not {name!r}",
            mend='@mlc.register_func("env.linear")',
        )

    def register(function: F) -> F:
        if not callable(function):
            raise ExternalError(f"'{name}' is registered as {function!r}, which is not a function")
        if name in _REGISTERED and not override:
            raise ExternalError(
                f"there is a function '{name}' already",
                mend=f'register_func("{name}", override=True), or another name',
            )
        _REGISTERED[name] = function
        return function

    return register if f is None else register(f)


def get_global_func(name: str) -> External:
    """The registered function. If there is none, raises ExternalError with the nearest names."""
    return _registered(name, "")


def _registered(name: str, where: str) -> External:
    if name not in _REGISTERED:
        near = get_close_matches(name, _REGISTERED, 3, 0.5)
        hint = f'@mlc.register_func("{name}") above a Python function'
        raise ExternalError(
            f"no function '{name}' is registered", where=where, mend=", ".join(near) or hint
        )
    return _REGISTERED[name]


def reference_of(where: str, name: str) -> External:
    """The Python reference of a user's C function, for correct results on the host: a registered
    function of the same name and arguments. Raises ExternalError."""
    if name not in _REGISTERED:
        raise ExternalError(
            f"'{name}' is C on the board; the reference needs a Python function of its name",
            where=where,
            mend=f'@mlc.register_func("{name}") above a function of the same arguments, or the '
            "expected outputs (--expect)",
        )
    function = _REGISTERED[name]

    def called(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise ExternalError(
                f"'{name}' raised {type(error).__name__}: {error}",
                where=where,
                mend="a function of the arguments that the C function has; addresses are arrays",
            ) from error

    return called


def call_external(
    name: str, inputs: Sequence[Array], outputs: Sequence[Array], where: str = ""
) -> None:
    """Runs a registered function on arrays that are contiguous and writable.

    Raises ExternalError, with `where`, if the name is unknown, if the function raises, or if it
    does not leave its results in the outputs.
    """
    function = _registered(name, where)
    shapes = [(out.shape, out.dtype) for out in outputs]
    returns = _returns(function, len(inputs), len(outputs))
    try:
        result = function(*inputs) if returns else function(*inputs, *outputs)
    except Exception as error:
        last = "outputs are the last arguments, and are written in place: out[:] = …"
        raise ExternalError(
            f"'{name}' raised {type(error).__name__}: {error}", where=where, mend=last
        ) from error
    if returns:
        _copy(name, result, outputs, where)
        return
    for out, (shape, dtype) in zip(outputs, shapes, strict=True):
        if (out.shape, out.dtype) != (shape, dtype):
            raise ExternalError(
                f"'{name}' changed its output to {out.dtype}{list(out.shape)}, which is "
                f"{dtype}{list(shape)}",
                where=where,
                mend="out[:] = …, which keeps shape and dtype",
            )
    if isinstance(result, np.ndarray) and not any(np.may_share_memory(result, o) for o in outputs):
        raise ExternalError(
            f"'{name}' returned an array; its results belong into its last argument",
            where=where,
            mend="out[:] = …, instead of return",
        )


def _returns(function: External, inputs: int, outputs: int) -> bool:
    """Whether a function takes its inputs alone, and so returns its outputs."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return False

    def takes(count: int) -> bool:
        try:
            signature.bind(*[None] * count)
        except TypeError:
            return False
        return True

    return outputs > 0 and not takes(inputs + outputs) and takes(inputs)


def _copy(name: str, result: Any, outputs: Sequence[Array], where: str) -> None:
    """Copies what a function returned. Raises ExternalError for other shapes and dtypes."""
    several = result if isinstance(result, (tuple, list)) else (result,)
    given = [np.asarray(array) for array in several]
    types = [(array.dtype, array.shape) for array in given]
    if types != [(out.dtype, out.shape) for out in outputs]:
        found, wanted = (
            ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            for arrays in (given, outputs)
        )
        raise ExternalError(
            f"'{name}' returned {found}, where the graph says {wanted}",
            where=where,
            mend="arrays of the types that the call says",
        )
    for out, array in zip(outputs, given, strict=True):
        out[...] = array


def passable(array: Array) -> Array:
    """The array for a function: itself, or a copy if it is read-only or not contiguous."""
    return np.require(array, requirements=["C", "W"])
