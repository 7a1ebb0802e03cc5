"""Operators of a .tflite file as converters see them: the inputs are graph values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.builder import BlockBuilder
from ...graph.nodes import Constant, Value
from ..extents import Extents
from ..node import NumberedNode
from .file import Array, Operator, Tensor

REQUIRED: Any = object()
EIGHT_BITS = ("int8", "uint8")
COMPLEX = (  # operators that take complex numbers
    "COMPLEX_ABS", "EXPAND_DIMS", "IMAG", "REAL", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE",
    "TRANSPOSE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Affine:
    """Real numbers are (q - zero) * scale."""

    dtype: str
    scale: np.float32
    zero: int

    @property
    def limits(self) -> tuple[int, int]:
        kind = np.iinfo(self.dtype)
        return int(kind.min), int(kind.max)


class TfliteNode(NumberedNode):
    """`inputs` are values, None for an input that is left out. `given` and `made` are the file's
    tensors of inputs and outputs.

    A converter takes this and gives the output, or a list of them.
    """

    def __init__(
        self,
        operator: Operator,
        inputs: Sequence[Value | None],
        given: Sequence[Tensor | None],
        made: Sequence[Tensor],
        builder: BlockBuilder,
        source: str,
        where: str,
    ) -> None:
        self.op = operator.name
        self.inputs = list(inputs)
        self.given = list(given)
        self.made = list(made)
        self.custom = operator.custom
        self.builder = builder
        self.extents = Extents()  # all are known
        self.source = source
        self.place = f"{where}, operator '{source}' ({operator.name})"
        self._options = operator.options

    # ------------------------------------------------------------------------------- inputs

    def optional(self, number: int) -> Value | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def known(self, number: int, what: str) -> Array:
        """The value of an input that shapes depend on. Raises ImporterError if it is not
        constant."""
        value = self.input(number)
        if not isinstance(value, Constant):
            raise self.refuse(
                f"'{what}' is known only at run time, but is needed when the model is compiled",
                f"a model in which '{value.name}' is constant",
            )
        return value.value

    def ints(self, number: int, what: str) -> list[int]:
        """As `known`, as a list of integers."""
        return [int(v) for v in self.known(number, what).reshape(-1)]

    def axes(self, number: int, what: str = "axis") -> list[int]:
        """Axes of the first input, counted from the front."""
        rank = len(self.shape())
        axes = self.ints(number, what)
        if any(not -rank <= axis < rank for axis in axes):
            raise ValueError(f"axes {axes} of a tensor with {rank} dimensions")
        return sorted({axis % rank for axis in axes})

    def is_complex(self) -> bool:
        """Whether the first input is complex; its last dimension is for the parts."""
        return bool(self.given) and _is_complex(self.given[0])

    def has_complex(self) -> bool:
        return any(map(_is_complex, self.given))

    # -------------------------------------------------------------------------- quantization

    def is_quantized(self) -> bool:
        """Whether the first output is quantized to 8 bits."""
        return self.made[0].quantization is not None and self.made[0].kind in ("INT8", "UINT8")

    def affine(self, number: int = 0) -> Affine:
        """How an input is quantized. Raises ValueError unless it is quantized per tensor."""
        return _affine(self.given[number], f"input {number}")

    def affine_out(self) -> Affine:
        return _affine(self.made[0], "output 0")

    # --------------------------------------------------------------------------- options

    def option(self, name: str, default: Any = REQUIRED) -> Any:
        """An option, by the schema's name in CamelCase. The default if the operator has no options;
        without one, raises ValueError."""
        if self._options is None or not hasattr(self._options, name):
            if default is REQUIRED:
                raise ValueError(f"the option {name} is missing")
            return default
        value = getattr(self._options, name)()
        return value.decode() if isinstance(value, bytes) else value

    def option_ints(self, name: str) -> list[int]:
        """An option that is a list of numbers; empty if it is left out."""
        if self._options is None or getattr(self._options, f"{name}Length")() > 64:
            return []
        found = getattr(self._options, f"{name}AsNumpy")()
        return [int(v) for v in found] if isinstance(found, np.ndarray) else []

    # ------------------------------------------------------------------------------- output

    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        return self.builder.emit(op, *args, name=self.source, source=self.source, **attrs)


def _is_complex(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.kind == "COMPLEX64"


def _affine(tensor: Tensor | None, what: str) -> Affine:
    found = None if tensor is None else tensor.quantization
    if tensor is None or found is None or tensor.dtype not in (*EIGHT_BITS, "int16", "int32"):
        raise ValueError(f"{what} is not quantized")
    if found.scales.size != 1:
        raise ValueError(f"{what} is quantized per channel, which is for weights alone")
    zero = int(found.zeros[0])
    limits = np.iinfo(tensor.dtype)
    if not limits.min <= zero <= limits.max:
        raise ValueError(f"the zero point {zero} of {what} is not of type {tensor.dtype}")
    if not found.scales[0] > 0:
        raise ValueError(f"the scale of {what} is 0")
    return Affine(tensor.dtype, np.float32(found.scales[0]), zero)


Converter = Callable[[TfliteNode], Any]
