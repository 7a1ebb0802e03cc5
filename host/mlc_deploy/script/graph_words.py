"""The words of graphs in a syntax tree: recognizes words of R, and reads types."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn

from ..errors import GraphError
from ..graph import TensorType, Value
from ..graph.dims import same_type, tensor_type
from ..graph.printer import type_text
from ..ops import OPERATORS
from .source import Source
from .values import Values

WORDS = (
    "Tensor", "Tuple", "branch", "call_dps_packed", "call_tir", "const", "dataflow", "dim",
    "func_attr", "loop", "output", "shape", "tuple",
)  # fmt: skip
TVM_NAMES = {"permute_dims": "transpose", "concat": "concatenate", "match_cast": "Tensor"}
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
        """The word of R at this place, or None."""
        match at:
            case ast.Attribute(ast.Name(module), word) if is_graph_words(self.names.get(module)):
                if word not in OPERATORS and word not in WORDS:
                    self.no_word(at, module, word, word)
                return word
            case ast.Attribute(ast.Attribute(ast.Name(module), group), word) if is_graph_words(
                self.names.get(module)
            ):
                self.no_word(at, module, f"{group}.{word}", word)
        return None

    def no_word(self, at: ast.expr, module: str, name: str, word: str) -> NoReturn:
        near = get_close_matches(TVM_NAMES.get(word, word), [*WORDS, *OPERATORS], 3)
        self.refuse(at, f"there is no {module}.{name}", ", ".join(f"{module}.{n}" for n in near))

    def refuse(self, at: ast.AST, what: str, mend: str = "") -> NoReturn:
        raise self.source.error(at, what, mend)

    def checked(self, at: ast.AST, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
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
            self.refuse(at, f"'{ast.unparse(at)}' is no type", TYPE)
        if form.shape is None:
            self.refuse(at, "nothing says the shape", '(1, 16), or (1, "m")')
        made: TensorType = self.checked(at, tensor_type, form.shape, form.dtype or "float32")
        return made

    def form(self, at: ast.expr) -> Form | None:
        """The arguments of an R.Tensor; None if the expression is no R.Tensor."""
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

    def held(self, what: str, made: Sequence[Value], annotation: ast.expr) -> None:
        """Refuses values that do not have the types of an annotation."""
        parts: Sequence[ast.expr] = (annotation,)
        match annotation:
            case ast.Call(func, listed, []) if self.word(func) == "Tuple":
                parts = listed
        if len(parts) != len(made):
            self.refuse(annotation, f"{what} {len(made)} values, not {len(parts)}")
        for value, at in zip(made, parts, strict=True):
            form = self.form(at)
            if form is None:
                self.refuse(at, f"'{ast.unparse(at)}' is no type", TYPE)
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
