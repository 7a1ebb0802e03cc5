"""Complex numbers of a torch program: two tensors, of real and of imaginary parts.

Operators that move elements are converted once for each part, by the converter for real numbers.
Fourier transforms are products with constant matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.nodes import Constant, Value, Var
from ..ops.shape import normal_axis
from .layers.fourier import transform
from .layers.products import scaled
from .layers.shapes import select, stacked, with_axis
from .node import shape_of
from .torch_node import Converter, TorchNode
from .torch_ops import CONVERTERS


@dataclass(frozen=True, slots=True)
class Complex:
    real: Value
    imag: Value


# Operators that do the same to both parts.
MOVING = frozenset(
    """alias cat clone contiguous expand flip index_select lift_fresh_copy permute repeat reshape
    roll select slice split_with_sizes squeeze t transpose unfold unsqueeze view _unsafe_view neg
    constant_pad_nd sum mean slice_scatter index""".split()
)


def converted(n: TorchNode, convert: Converter, arguments: Sequence[Any]) -> Any:
    """The result of a converter. Complex numbers are converted by COMPLEX or OF_COMPLEX, or each
    part by the converter. Raises ImporterError for other operators on complex numbers."""
    if n.op.startswith("aten.") and n.aten in COMPLEX:
        return COMPLEX[n.aten](n, *arguments)
    if not _any_complex(arguments) and not n.is_complex:
        return convert(n, *arguments)
    if n.op.startswith("aten.") and n.aten in OF_COMPLEX:
        return OF_COMPLEX[n.aten](n, *arguments)
    if n.op.startswith("aten.") and n.aten in MOVING:
        real, imag = (convert(n, *_parts(n, arguments, which)) for which in (0, 1))
        return _together(real, imag)
    raise n.refuse(
        "it is not supported for complex numbers", "torch.view_as_real, and real operators"
    )


def _any_complex(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return any(map(_any_complex, arg))
    return isinstance(arg, Complex)


def _parts(n: TorchNode, arg: Any, which: int) -> Any:
    match arg:
        case list() | tuple():
            return [_parts(n, a, which) for a in arg]
        case Complex(real, imag):
            return imag if which else real
        case complex():
            return arg.imag if which else arg.real
    return arg


def _together(real: Any, imag: Any) -> Any:
    if isinstance(real, (list, tuple)):
        return [_together(a, b) for a, b in zip(real, imag, strict=True)]
    return Complex(real, imag)


def _both(n: TorchNode, x: Any) -> Complex:
    """An operand as complex numbers."""
    match x:
        case Complex():
            return x
        case Var() | Constant():
            real = n.cast(x, n.dtype)
            return Complex(real, n.emit("multiply", real, n.constant(0, n.dtype)))
    number = complex(x)
    return Complex(n.constant(number.real, n.dtype), n.constant(number.imag, n.dtype))


# ----------------------------------------------------------------------------------- transforms


def _transformed(
    n: TorchNode, x: Any, dims: Sequence[int], norm: int, way: tuple[bool, bool],
    length: int | None = None,
) -> Any:  # fmt: skip
    """The transform along each of dims. way: inverse, onesided."""
    inverse, onesided = way
    value = stacked(n, [x.real, x.imag], -1) if isinstance(x, Complex) else with_axis(n, x, -1)
    axes = [normal_axis("fft", d, len(shape_of(value)) - 1) for d in dims]
    sizes: list[Any] = [shape_of(value)[axis] for axis in axes]
    if length is not None:
        sizes[-1] = length
    # Only the last dimension may be onesided. It is transformed first, or last if inverse.
    for axis in axes if inverse else axes[::-1]:
        half = onesided and axis == axes[-1]
        value = transform(n, value, axis, length if half else None, inverse, half)
    # torch's norms divide by: 0 nothing, 1 the root of the count, 2 the count. An inverse transform
    # already divides by the count.
    count = math.prod(sizes)
    factor = {0: 1.0, 1: count**-0.5, 2: 1 / count}[norm] * (count if inverse else 1)
    value = scaled(n, value, factor)
    if inverse and onesided:
        return _last(n, value, 0)
    return _view_as_complex(n, value)


def _r2c(n: TorchNode, x: Value, dims: Sequence[int], norm: int, onesided: bool) -> Any:
    return _transformed(n, x, dims, norm, (False, onesided))


def _c2r(n: TorchNode, x: Complex, dims: Sequence[int], norm: int, last: int) -> Any:
    return _transformed(n, x, dims, norm, (True, True), int(last))


def _c2c(n: TorchNode, x: Complex, dims: Sequence[int], norm: int, forward: bool) -> Any:
    return _transformed(n, x, dims, norm, (not forward, False))


# ------------------------------------------------------------------------- numbers and their parts


def _last(n: TorchNode, x: Value, number: int) -> Value:
    """An element of the last dimension."""
    return select(n, x, number, len(shape_of(x)) - 1)


def _view_as_complex(n: TorchNode, x: Value) -> Complex:
    return Complex(_last(n, x, 0), _last(n, x, 1))


def _cast(n: TorchNode, x: Any, *_: Any) -> Any:
    """Real numbers as complex ones; complex ones that become real lose their imaginary parts."""
    return _both(n, x) if n.is_complex else n.cast(x.real, n.dtype)


def _polar(n: TorchNode, size: Value, angle: Value) -> Complex:
    parts = (n.emit("multiply", size, n.emit(f, angle)) for f in ("cos", "sin"))
    return Complex(*parts)


def _abs(n: TorchNode, x: Complex) -> Value:
    squares = (n.emit("multiply", p, p) for p in (x.real, x.imag))
    return n.emit("sqrt", n.emit("add", *squares))


def _multiply(n: TorchNode, a: Any, b: Any) -> Complex:
    """A real factor multiplies each part."""
    match a, b:
        case Complex(real, imag), Var() | Constant() | int() | float():
            factor = n.tensor(b, n.dtype)
            return Complex(n.emit("multiply", real, factor), n.emit("multiply", imag, factor))
        case Var() | Constant() | int() | float(), Complex():
            return _multiply(n, b, a)
    x, y = _both(n, a), _both(n, b)
    straight = [n.emit("multiply", p, q) for p, q in ((x.real, y.real), (x.imag, y.imag))]
    across = [n.emit("multiply", p, q) for p, q in ((x.real, y.imag), (x.imag, y.real))]
    return Complex(n.emit("subtract", *straight), n.emit("add", *across))


def _divide(n: TorchNode, a: Any, b: Any, *_: Any) -> Complex:
    match a, b:
        case Complex(real, imag), Var() | Constant() | int() | float():
            divisor = n.tensor(b, n.dtype)
            return Complex(n.emit("divide", real, divisor), n.emit("divide", imag, divisor))
    y = _both(n, b)
    size = n.emit("add", *(n.emit("multiply", p, p) for p in (y.real, y.imag)))
    return _divide(n, _multiply(n, a, Complex(y.real, n.emit("negative", y.imag))), size)


def _sum(op: str) -> Converter:
    def convert(n: TorchNode, a: Any, b: Any, alpha: Any = 1) -> Complex:
        x, y = _both(n, a), _both(n, b)
        pairs = ((x.real, y.real), (x.imag, y.imag))
        return Complex(*(n.emit(op, p, scaled(n, q, alpha)) for p, q in pairs))

    return convert


def _conjugate(n: TorchNode, x: Complex) -> Complex:
    return Complex(x.real, n.emit("negative", x.imag))


def _part(which: int) -> Callable[[TorchNode, Complex], Value]:
    return lambda _, x: x.imag if which else x.real


# COMPLEX: operators that make complex numbers, or real ones of them. OF_COMPLEX: operators that
# also have a converter for real numbers.
COMPLEX: Mapping[str, Converter] = {
    "_fft_c2c": _c2c, "_fft_c2r": _c2r, "_fft_r2c": _r2c, "polar": _polar,
    "view_as_complex": _view_as_complex,
    "complex": lambda n, real, imag: Complex(real, imag),
    "view_as_real": lambda n, x: stacked(n, [x.real, x.imag], -1),
}  # fmt: skip
OF_COMPLEX: Mapping[str, Converter] = {
    "_conj": _conjugate,
    "_to_copy": _cast,
    "_conj_physical": _conjugate,
    "conj_physical": _conjugate,
    "abs": _abs,
    "add": _sum("add"),
    "angle": lambda n, x: CONVERTERS["aten.atan2"](n, x.imag, x.real),
    "div": _divide,
    "imag": _part(1),
    "mul": _multiply,
    "real": _part(0),
    "resolve_conj": lambda _, x: x,
    "sub": _sum("subtract"),
}
