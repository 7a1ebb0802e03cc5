"""The words of graphs in a syntax tree: recognizes words of R, and reads types."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NoReturn

from ..errors import GraphError
from ..graph import TensorType, Value, relax
from ..graph.dims import same_type, tensor_type
from ..graph.printer import type_text
from ..ops import OPERATORS
from .source import Source
from .values import Values

WORDS = (
    "Callable", "Object", "Prim", "Shape", "Tensor", "Tuple", "branch", "call_dps_packed",
    "call_packed", "call_pure_packed", "call_tir", "const", "dataflow", "dim", "dtype",
    "func_attr", "function", "loop", "match_cast", "output", "prim_value", "shape", "shape_of",
    "str", "tuple",
)  # fmt: skip
# Types of values that are not tensors: why no parameter has them, and what to write.
NO_TENSORS = {
    "Callable": ("functions are called by their names", "cls.f(x)"),
    "Shape": ("dimensions come from the shapes of tensors", 'R.Tensor(("n", "m"), "float32")'),
}
UNCHECKED = ("Object", "Shape", "Callable")  # types of values that a model does not give
MOST_DIMS = 64
FORM = ("shape", "dtype", "vdevice", "ndim")
TYPE = 'x: R.Tensor((1, 16), "float32")'


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments of R.Tensor(shape, dtype, ndim=) as written; None for one that is left out."""

    shape: Sequence[Any] | None = None
    dtype: Any = None
    ndim: Any = None


class Words:
    """Reads the words of R in a function. `names` are the values around the function."""

    def __init__(self, source: Source, names: Mapping[str, Any]) -> None:
        self.source = source
        self.names = names
        self.values = Values(source, names)

    def word(self, at: ast.expr) -> str | None:
        """The word of R at this place, `add` or `nn.conv2d`, or None."""
        match at:
            case ast.Attribute(ast.Name(module), word) if is_graph_words(self.names.get(module)):
                pass
            case ast.Attribute(ast.Attribute(ast.Name(module), group), rest) if is_graph_words(
                self.names.get(module)
            ):
                word = f"{group}.{rest}"
            case _:
                return None
        if word not in OPERATORS and word not in WORDS and word not in relax.WORDS:
            what, _, mend = relax.absent(word).partition("\n  try: ")
            self.refuse(at, what.replace("R.", f"{module}."), mend)
        return word

    def parts_of(self, at: ast.expr) -> Sequence[ast.expr] | None:
        """The types in R.Tuple(…), or None for another type."""
        match at:
            case ast.Call(func, [ast.List(parts) | ast.Tuple(parts)] | parts, []) if (
                self.word(func) == "Tuple"
            ):
                return parts
        return None

    def kind(self, at: ast.expr) -> str | None:
        """The word of a type: `Tensor` of R.Tensor and of R.Tensor((4,))."""
        return self.word(at.func if isinstance(at, ast.Call) else at)

    def refuse_kind(self, at: ast.expr, name: str) -> None:
        """Refuses a parameter whose type is not a tensor's."""
        word = self.kind(at)
        if word in NO_TENSORS:
            why, mend = NO_TENSORS[word]
            self.refuse(at, f"parameter '{name}' is R.{word}: {why}", mend)

    def refuse(self, at: ast.AST, what: str, mend: str = "") -> NoReturn:
        raise self.source.error(at, what, mend)

    def checked(
        self, at: ast.AST, function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Any:
        """function's result. Its errors point at the tree."""
        try:
            return function(*args, **named)
        except GraphError as error:
            self.refuse(at, error.what, error.mend)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            what, _, mend = str(error.args[0]).partition("\n  try: ")
            self.refuse(at, what.partition("\n  in:  ")[0], mend)

    # -------------------------------------------------------------------------------------- types

    def type(self, at: ast.expr, form: Form | None = None) -> TensorType:
        form = form or self.form(at)
        if form is None:
            self.refuse(at, f"'{ast.unparse(at)}' is not a type", TYPE)
        if form.shape is None:
            self.refuse(at, "nothing says the shape", '(1, 16), or (1, "m")')
        made: TensorType = self.checked(at, tensor_type, form.shape, form.dtype or "float32")
        return made

    def form(self, at: ast.expr) -> Form | None:
        """The arguments of an R.Tensor; None if the expression is not an R.Tensor."""
        match at:
            case ast.Call(func, given, keywords) if self.word(func) == "Tensor":
                pass
            case ast.Attribute() if self.word(at) == "Tensor":
                given, keywords = [], []
            case _:
                return None
        # TVM's order; without a shape, the dtype comes first.
        order = FORM[1:] if given and isinstance(self.values.value(given[0]), str) else FORM
        fields = {key: self.values.value(v) for key, v in zip(order, given, strict=False)}
        for k in keywords:
            if k.arg not in FORM or k.arg in fields:
                self.refuse(k.value, f"R.Tensor does not take {k.arg}", ", ".join(FORM))
            fields[k.arg] = self.values.value(k.value)
        if len(given) > len(order):
            self.refuse(at, f"R.Tensor takes {len(order)} arguments", TYPE)
        fields.pop("vdevice", None)  # there is one device
        form = Form(**fields)
        if not isinstance(form.shape, (list, tuple, type(None))):
            self.refuse(at, "a shape is a tuple", '(1, 16), or (1, "m")')
        if form.ndim is not None and not (type(form.ndim) is int and -1 <= form.ndim <= MOST_DIMS):
            self.refuse(at, f"ndim is {form.ndim!r}, not a number up to {MOST_DIMS}", "ndim=2")
        form = replace(form, ndim=None) if form.ndim == -1 else form
        if form.shape is not None and form.ndim not in (None, len(form.shape)):
            self.refuse(at, f"a shape of {len(form.shape)} dimensions, and ndim={form.ndim}")
        return form

    def leaves(self, at: ast.expr) -> Iterator[ast.expr]:
        """The types of tensors in a type, those in tuples one after the other."""
        parts = self.parts_of(at)
        if parts is None:
            yield at
        else:
            for part in parts:
                yield from self.leaves(part)

    def held(self, what: str, made: Sequence[Value], annotation: ast.expr) -> None:
        """Refuses values that do not have the types of an annotation."""
        if self.word(annotation) == "Tuple":  # of any types
            return
        parts = [at for at in self.leaves(annotation) if self.kind(at) not in UNCHECKED]
        if len(parts) != len(made):
            self.refuse(annotation, f"{what} {len(made)} values, not {len(parts)}")
        for value, at in zip(made, parts, strict=True):
            if self.kind(at) == "Prim":
                continue
            form = self.form(at)
            if form is None:
                self.refuse(at, f"'{ast.unparse(at)}' is not a type", TYPE)
            if form.shape is None:
                is_ = form.dtype in (None, value.type.dtype)
                is_ = is_ and form.ndim in (None, len(value.type.shape))
                wanted = ast.unparse(at)
            else:
                is_ = same_type(of := self.type(at, form), value.type)
                wanted = type_text(of)
            if not is_:
                self.refuse(at, f"{what} {type_text(value.type)}, not {wanted}")


def is_graph_words(value: object) -> bool:
    """Whether a value is the module `R` itself."""
    return isinstance(value, ModuleType) and value.__name__ == f"{__package__}.graph"
