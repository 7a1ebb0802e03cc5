"""Calls of a torch.export program, as converters see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ImporterError
from ..graph.builder import BlockBuilder
from ..graph.nodes import Value
from ..ir import Expr
from ..ops.shape import normal_axis
from .extents import Extents
from .node import Node, shape_of

# The names of torch's dtypes are ours, except these, which numpy does not have.
UNKNOWN_DTYPES = ("bfloat16", "complex", "float8", "float4", "bits", "qint", "quint", "int4")

Body = Callable[..., list[Any]]


class TorchNode(Node):
    """`op` is "namespace.name", such as "aten.conv2d"; `overload` the part after it, as in
    ".default".

    A converter takes a TorchNode and all arguments in the order of the operator's schema: tensors
    are graph values, other arguments are Python's. It returns the result, or a list of results.
    """

    def __init__(
        self,
        op: str,
        overload: str,
        name: str,
        source: str,
        place: str,
        meta: tuple[Any, Sequence[Any]],
        builder: BlockBuilder,
        extents: Extents,
        body: Body,
    ) -> None:
        self.op, self.overload, self.name = op, overload, name
        self.source, self.place = source, place
        self._result, self._operands = meta  # tensors without data
        self.builder, self.extents = builder, extents
        self.body = body  # converts an inner graph of the program for given values

    @property
    def aten(self) -> str:
        """The operator's name without ATen's namespace."""
        return self.op.removeprefix("aten.")

    @property
    def dtype(self) -> str:
        """The dtype of the first result; for a complex result, that of its parts."""
        return dtype_name(self._first().dtype.to_real(), self.place)

    @property
    def is_complex(self) -> bool:
        """Whether the first result has complex numbers."""
        dtype = getattr(self._first(), "dtype", None)
        return dtype is not None and bool(dtype.is_complex)

    def _first(self) -> Any:
        return self._result[0] if isinstance(self._result, (list, tuple)) else self._result

    def results(self) -> int:
        """The number of results."""
        return len(self._result)

    def common_dtype(self) -> str:
        """The dtype in which torch computes with the first two arguments."""
        import torch

        return dtype_name(torch.result_type(*self._operands[:2]), self.place)

    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        return self.builder.emit(op, *args, name=self.name, source=self.source, **attrs)

    def tensor(self, operand: Value | Expr | complex, dtype: str) -> Value:
        """A tensor or a number, as a tensor of dtype; also a number known only at run time."""
        if isinstance(operand, Expr):
            operand = self.extents.value(self, operand)
        if isinstance(operand, Value):
            return self.cast(operand, dtype)
        return self.constant(operand, dtype)


Converter = Callable[..., Any]
Table = Mapping[str, Converter]


def dtype_name(dtype: Any, where: str) -> str:
    """numpy's name of a torch.dtype. Raises ImporterError if numpy has none."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith(UNKNOWN_DTYPES):
        raise ImporterError(
            f"tensors of {name} are not supported",
            where=where,
            mend="module.float() before torch.export.export",
        )
    return name


def axes_of(x: Value, dims: Any) -> list[int]:
    """dims counted from the front. None and [] mean all dimensions of x."""
    rank = len(shape_of(x))
    if dims is None or dims == []:
        return list(range(rank))
    every = [dims] if isinstance(dims, int) else dims
    return [normal_axis("dim", axis, rank) for axis in every]
