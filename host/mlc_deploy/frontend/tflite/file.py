"""From the bytes of a .tflite file to plain values: tensors, operators, subgraphs.

The package `tflite` knows the schema but checks nothing: a damaged file may name places outside of
the file, or lists longer than the file. So every list is counted against the file's size before it
is read, and the package's errors become ImporterError here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ImporterError
from ...files.limits import DENSE_ELEMENTS, RANK, TFLITE_BYTES
from ...files.outside import read_file
from ..refusals import MISTAKES, reading

Array = NDArray[Any]
T = TypeVar("T")

IDENTIFIER = b"TFL3"  # bytes 4 to 8 of a file
VERSION = 3  # of the schema
OPEN = -1  # a size in a tensor's signature
NO_TENSOR = -1
AGAIN = "copy or export the file again"

DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "UINT16": "uint16",
    "UINT32": "uint32", "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """Real numbers are (q - zeros) * scales: one of each, or one per element of an axis."""

    scales: Array  # float32
    zeros: Array  # int64
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Sparsity:
    """The layout of a sparse tensor: the schema's SparsityParameters. A dimension is dense (its
    extent) or sparse (segments and indices)."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    dims: tuple[int | tuple[Array, Array], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """kind: the schema's name of its type. data: the bytes of a constant. signature: its shape
    with OPEN for sizes that are dynamic in the file; empty where the file does not say."""

    name: str
    shape: tuple[int, ...]
    kind: str
    data: Array | None
    quantization: Quantization | None
    sparsity: Sparsity | None
    signature: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """Our dtype. Raises ValueError for unsupported types."""
        if self.kind == "INT4":
            return "int8"
        if self.kind not in DTYPES:
            raise ValueError(f"tensors of type {self.kind} are not supported")
        return DTYPES[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """name: the schema's, or "CUSTOM name". options: the schema's table, or None. custom: the
    options of a custom operator, as bytes."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@contextmanager
def damaged(where: str) -> Iterator[None]:
    """Turns the errors of reading wrong bytes into ImporterError."""
    try:
        yield
    except ImporterError:
        raise
    except struct.error as error:
        what = "the .tflite file is damaged or cut off: it names places after its end"
        raise ImporterError(what, where=where, mend=AGAIN) from error
    except MISTAKES as error:
        raise ImporterError(
            f"the .tflite file is damaged or cut off: {error}", where=where, mend=AGAIN
        ) from error


def schema(where: str) -> ModuleType:
    """The package that knows the schema. Raises ImporterError without it."""
    try:
        import tflite
    except ImportError as error:
        raise ImporterError(
            "reading .tflite files needs the package 'tflite'",
            where=where,
            mend="pip install 'mlc-deploy[tflite]'",
        ) from error
    module: ModuleType = tflite
    return module


def read_tflite(path: str | Path) -> bytes:
    """A file's bytes. Raises ImporterError."""
    path = Path(path)
    with reading(path):
        return read_file(path, TFLITE_BYTES.most)


def parse(data: bytes, where: str) -> tuple[Subgraph, ...]:
    """The subgraphs of a file. Raises ImporterError for other files and damaged ones."""
    if data[4:8] != IDENTIFIER:
        raise ImporterError(
            "this is not a .tflite model (bytes 4 to 8 are not TFL3)",
            where=where,
            mend="a file that TensorFlow Lite's converter wrote",
        )
    tflite = schema(where)
    with damaged(where):
        return _Reader(tflite, data, where).subgraphs()


class _Reader:
    """`left` counts down as lists are read. Lists with more elements than the file has bytes must
    overlap, which happens only in damaged files."""

    def __init__(self, tflite: ModuleType, data: bytes, where: str) -> None:
        self.tflite = tflite
        self.data = data
        self.where = where
        self.left = len(data)
        self.model = tflite.Model.GetRootAs(data, 0)
        self.operators = _names(tflite.BuiltinOperator)
        self.kinds = _names(tflite.TensorType)
        self.options = _names(tflite.BuiltinOptions)
        self.options2 = _names(tflite.BuiltinOptions2)

    def subgraphs(self) -> tuple[Subgraph, ...]:
        model = self.model
        version = model.Version()
        if version != VERSION:
            raise ImporterError(
                f"the .tflite file is of version {version} of the schema; {VERSION} can be read",
                where=self.where,
                mend=AGAIN,
            )
        buffers = self.every(model.BuffersLength(), model.Buffers, self.buffer)
        codes = self.every(model.OperatorCodesLength(), model.OperatorCodes, self.code)
        own = self.every(
            model.SubgraphsLength(), model.Subgraphs, lambda g: self.subgraph(g, buffers, codes)
        )
        if not own:
            raise ValueError("it has no subgraph")
        return own

    def every(
        self, count: int, element: Callable[[int], Any], read: Callable[[Any], T]
    ) -> tuple[T, ...]:
        self.count(count)
        return tuple(read(element(k)) for k in range(count))

    def count(self, elements: int) -> int:
        self.left -= elements
        if self.left < 0:
            raise ValueError("its lists are longer than the file")
        return elements

    def ints(self, table: Any, field: str) -> Array:
        """A list of numbers, as an array on the file's bytes."""
        self.count(getattr(table, f"{field}Length")())
        found = getattr(table, f"{field}AsNumpy")()
        return found if isinstance(found, np.ndarray) else np.zeros(0, np.int32)

    def numbers(self, table: Any, field: str) -> tuple[int, ...]:
        return tuple(int(n) for n in self.ints(table, field))

    def text(self, raw: bytes | None) -> str:
        return (raw or b"").decode("utf-8", "replace")

    def buffer(self, buffer: Any) -> Array | None:
        """The bytes of a buffer; None for an empty one. Large files keep the bytes at their end,
        outside of the tables."""
        begin, size = buffer.Offset(), buffer.Size()
        if begin > 1:
            if begin + size > len(self.data):
                raise ValueError(f"a buffer ends at byte {begin + size} of {len(self.data)}")
            return np.frombuffer(self.data, np.uint8, size, begin)
        if not buffer.DataLength():
            return None
        return self.ints(buffer, "Data")

    def code(self, code: Any) -> tuple[str, str]:
        """An operator's name, and that of its table of options, if it can have one."""
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number not in self.operators:
            raise ValueError(f"it names an operator number {number}, which is unknown")
        name = self.operators[number]
        return (f"CUSTOM {self.text(code.CustomCode())}", "") if name == "CUSTOM" else (name, name)

    def subgraph(
        self, graph: Any, buffers: tuple[Array | None, ...], codes: tuple[tuple[str, str], ...]
    ) -> Subgraph:
        tensors = self.every(
            graph.TensorsLength(), graph.Tensors, lambda t: self.tensor(t, buffers)
        )

        def known(field: str, of: Any, optional: bool = False) -> tuple[int, ...]:
            places = self.numbers(of, field)
            for place in places:
                if not 0 <= place < len(tensors) and not (optional and place == NO_TENSOR):
                    raise ValueError(f"it names tensor {place} of {len(tensors)}")
            return places

        def operator(op: Any) -> Operator:
            place = op.OpcodeIndex()
            if not place < len(codes):
                raise ValueError(f"it names operator code {place} of {len(codes)}")
            return Operator(
                codes[place][0],
                known("Inputs", op, optional=True),
                known("Outputs", op),
                self.table(op),
                self.ints(op, "CustomOptions").tobytes(),
            )

        operators = self.every(graph.OperatorsLength(), graph.Operators, operator)
        return Subgraph(tensors, known("Inputs", graph), known("Outputs", graph), operators)

    def table(self, op: Any) -> Any:
        """The options of a built-in operator, as the schema's class of them."""
        kinds = (
            (self.options, op.BuiltinOptionsType(), op.BuiltinOptions),
            (self.options2, op.BuiltinOptions2Type(), op.BuiltinOptions2),
        )
        for names, kind, place in kinds:
            if kind == 0:
                continue
            made = getattr(self.tflite, names[kind])() if kind in names else None
            found = place()
            if made is None or found is None:
                raise ValueError(f"an operator has options of type {kind}, which cannot be read")
            made.Init(found.Bytes, found.Pos)
            return made
        return None

    def tensor(self, tensor: Any, buffers: tuple[Array | None, ...]) -> Tensor:
        kind, place = tensor.Type(), tensor.Buffer()
        if kind not in self.kinds:
            raise ValueError(f"a tensor is of type number {kind}, which is unknown")
        if not place < len(buffers):
            raise ValueError(f"it names buffer {place} of {len(buffers)}")
        shape = self.numbers(tensor, "Shape")
        if len(shape) > RANK.most:
            most = RANK.most
            raise ValueError(f"a tensor has {len(shape):,} dimensions, and at most {most} are read")
        if any(extent < 0 for extent in shape):
            raise ValueError(f"a tensor has the shape {list(shape)}")
        return Tensor(
            self.text(tensor.Name()),
            shape,
            self.kinds[kind],
            buffers[place],
            self.quantization(tensor.Quantization()),
            self.sparsity(tensor.Sparsity()),
            self.numbers(tensor, "ShapeSignature"),
        )

    def quantization(self, found: Any) -> Quantization | None:
        if found is None or not found.ScaleLength():
            return None
        scales = self.ints(found, "Scale")
        zeros = self.ints(found, "ZeroPoint")
        if zeros.size == 0:
            zeros = np.zeros(scales.size, np.int64)
        if zeros.size not in (1, scales.size):
            raise ValueError(f"a tensor has {scales.size} scales and {zeros.size} zero points")
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise ValueError("a scale is negative, or no number")
        return Quantization(scales, zeros, found.QuantizedDimension())

    def sparsity(self, found: Any) -> Sparsity | None:
        if found is None:
            return None

        def dim(one: Any) -> int | tuple[Array, Array]:
            if one.Format() == self.tflite.DimensionType.DENSE:
                return int(one.DenseSize())
            return (
                self.indices(one.ArraySegmentsType(), one.ArraySegments()),
                self.indices(one.ArrayIndicesType(), one.ArrayIndices()),
            )

        return Sparsity(
            self.numbers(found, "TraversalOrder"),
            self.numbers(found, "BlockMap"),
            self.every(found.DimMetadataLength(), found.DimMetadata, dim),
        )

    def indices(self, kind: int, table: Any) -> Array:
        names = _names(self.tflite.SparseIndexVector)
        if table is None or kind not in names or kind == 0:
            raise ValueError("a sparse tensor has no indices")
        made = getattr(self.tflite, names[kind])()
        made.Init(table.Bytes, table.Pos)
        return self.ints(made, "Values").astype(np.int64)


def _names(enum: Any) -> dict[int, str]:
    return {number: name for name, number in vars(enum).items() if isinstance(number, int)}


# ---------------------------------------------------------------------------------------- numbers


def constant_array(tensor: Tensor) -> Array:
    """The numbers of a constant; those that a sparse tensor leaves out are zeros. Raises
    ValueError."""
    assert tensor.data is not None
    if tensor.kind == "INT4":
        return _four_bits(tensor.data, tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if tensor.data.size % dtype.itemsize:
        raise ValueError(f"{tensor.data.size} bytes are not whole numbers of {dtype}")
    flat = np.frombuffer(tensor.data.tobytes(), dtype.newbyteorder("<")).astype(dtype, copy=False)
    if tensor.sparsity is not None:
        return densified(flat, tensor.shape, tensor.sparsity)
    if flat.size != math.prod(tensor.shape):
        raise ValueError(f"{flat.size} numbers for the shape {list(tensor.shape)}")
    return flat.reshape(tensor.shape)


def _four_bits(data: Array, shape: tuple[int, ...]) -> Array:
    """Two numbers of four bits in a byte, the lower bits first."""
    count = math.prod(shape)
    if data.size != -(-count // 2):
        raise ValueError(f"{data.size} bytes for {count} numbers of four bits")
    signed = data.view(np.int8)
    pairs = np.stack([(signed << 4) >> 4, signed >> 4], axis=-1)
    return pairs.reshape(-1)[:count].reshape(shape)


def densified(flat: Array, shape: tuple[int, ...], sparse: Sparsity) -> Array:
    """The dense tensor of a sparse one. Its dimensions, in the order of traversal, are those of the
    shape and then those of the blocks; a level's positions follow from the one above."""
    rank, blocks = len(shape), sparse.blocks
    order, levels = sparse.order, sparse.dims
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise ValueError("the order of a sparse tensor's dimensions is damaged")
    if any(not 0 <= b < rank for b in blocks) or math.prod(shape) > DENSE_ELEMENTS.most:
        raise ValueError("a sparse tensor's blocks are damaged")
    places = np.zeros((1, 0), np.int64)  # a row per position so far, its index in each level
    for level in levels:
        count = len(places)
        if isinstance(level, int):
            if level < 1 or count * level > flat.size:
                raise ValueError("a sparse tensor has fewer numbers than places")
            own = np.tile(np.arange(level), count)
            places = np.repeat(places, level, axis=0)
        else:
            segments, indices = level
            lengths = np.diff(segments)
            if segments.size != count + 1 or segments[0] != 0 or (lengths < 0).any():
                raise ValueError("a sparse tensor's segments are damaged")
            if segments[-1] != indices.size or indices.size > flat.size:
                raise ValueError("a sparse tensor's indices are damaged")
            own = indices
            places = np.repeat(places, lengths, axis=0)
        places = np.concatenate([places, own[:, None]], axis=1)
    if len(places) != flat.size:
        raise ValueError(f"{flat.size} numbers for {len(places)} places of a sparse tensor")
    extents = [0] * len(blocks)  # of blocks, in the order of the block map
    for level, dim in zip(levels, order, strict=True):
        if dim >= rank:
            if not isinstance(level, int):
                raise ValueError("a block of a sparse tensor is sparse")
            extents[dim - rank] = level
    at = [places[:, order.index(dim)] for dim in range(rank)]
    for number, (dim, extent) in enumerate(zip(blocks, extents, strict=True)):
        at[dim] = at[dim] * extent + places[:, order.index(rank + number)]
    for index, extent in zip(at, shape, strict=True):
        if index.size and not 0 <= index.min() <= index.max() < extent:
            raise ValueError("a sparse tensor's indices are outside of it")
    dense = np.zeros(shape, flat.dtype)
    dense[tuple(at)] = flat
    return dense
