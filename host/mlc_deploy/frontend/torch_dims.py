"""The dynamic dimensions of a torch.export program: numbers, or extents known at run time.

torch calls them s0, s77 and so on. The user's names, given to torch.export.Dim, are known only
while the program is in memory; a .pt2 file has torch's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from ..graph.dims import symbol
from ..graph.extents import most_of
from ..ir import Dim, Expr
from .refusals import fixed_and_open, refuse_unknown_inputs, shape_text, unknown_shapes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

SUGGESTED = 128  # the largest bound of a dynamic dimension in an example
SIZE = re.compile(r".*\.size\(\)\[\d+\]")  # how torch names the source of a dimension


@dataclass(frozen=True, slots=True)
class Dims:
    """By torch's symbol: the number of each known dimension, the name and largest value of each
    dynamic one, and the other dimension that one is."""

    numbers: dict[str, int] = field(default_factory=dict)
    opened: dict[str, tuple[str, int]] = field(default_factory=dict)
    same: dict[str, Expr] = field(default_factory=dict)

    def extent(self, extent: Any) -> Dim | None:
        """Our extent of one of torch's; None unless it is a number or one dynamic dimension."""
        if isinstance(extent, int):
            return extent
        names = [str(s) for s in _free(extent)]
        if all(name in self.numbers for name in names):
            return _concrete(extent, self.numbers)
        if extent.is_Symbol and str(extent) in self.opened:
            return symbol(self.opened[str(extent)][0])
        return self.same.get(str(extent))


def bound(
    program: ExportedProgram,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, Dim | str],
    where: str,
) -> Dims:
    """The dimensions for all symbols in the inputs' shapes. Raises ShapeError that names unknown
    ones."""
    declared = shapes_of(program)
    refuse_unknown_inputs(shapes, declared, "program", where)
    symbols = [str(s) for own in declared.values() for e in own for s in _free(e)]
    shown = _shown(program, list(dict.fromkeys(symbols)))
    by_name = {name: s for s, name in shown.items()} | {s: s for s in shown}
    found = Dims()
    for name, given in dims.items():
        if name not in by_name:
            raise ShapeError(
                f"--bind names '{name}', which is not a dynamic dimension of the program's inputs",
                where=where,
                mend=", ".join(shown.values()) or "none: its shapes are fixed",
            )
        if isinstance(given, Expr):
            found.same[by_name[name]] = given
        elif isinstance(given, str):
            found.opened[by_name[name]] = name, most_of(name, given)
        else:
            found.numbers[by_name[name]] = int(given)
    for name, shape in shapes.items():
        _agree(name, declared[name], shape, found, where)
    _refuse_unknown(program, declared, found, shown, where)
    for s, limits in program.range_constraints.items():
        own = str(s)
        value = found.opened[own][1] if own in found.opened else found.numbers.get(own)
        low = 0 if own in found.opened else limits.lower
        if value is not None and not low <= value <= limits.upper:
            raise ShapeError(
                f"dimension '{shown[own]}' is {value}, and the program was exported for "
                f"{limits.lower} to {limits.upper}",
                where=where,
            )
    return found


def _refuse_unknown(
    program: ExportedProgram,
    declared: Mapping[str, tuple[Any, ...]],
    found: Dims,
    shown: Mapping[str, str],
    where: str,
) -> None:
    known = {*found.numbers, *found.opened, *found.same}
    unbound = {
        name: own
        for name, own in declared.items()
        if any(str(s) not in known for e in own for s in _free(e))
    }
    if unbound:
        texts = [f"'{name}' [{', '.join(_text(e, shown) for e in own)}]"
                 for name, own in unbound.items()]  # fmt: skip
        first = next(s for own in unbound.values() for e in own for s in map(str, _free(e))
                     if s not in known)  # fmt: skip
        limits = {str(s): r.upper for s, r in program.range_constraints.items()}
        most = min(limits.get(first, SUGGESTED), SUGGESTED)
        mend = f"{_examples(program, unbound)}, or --bind '{shown[first]}<={most}'"
        raise unknown_shapes(texts, where, mend)
    for name, own in declared.items():
        for extent in own:
            if found.extent(extent) is None:
                raise ShapeError(
                    f"'{name}' has the extent {_text(extent, shown)}, which cannot be dynamic: it "
                    "is computed from another",
                    where=where,
                    mend=f"--bind {shown[str(_free(extent)[0])]}=16: one of its sizes",
                )


def _shown(program: ExportedProgram, symbols: Iterable[str]) -> dict[str, str]:
    """The user's names by torch's symbols; the symbol itself where the name is unknown."""
    found = {s: s for s in symbols}
    for node in program.graph.nodes:
        extents = getattr(node.meta.get("val"), "shape", ())
        for extent in extents if node.op == "placeholder" else ():
            if isinstance(extent, int) or not extent.node.expr.is_Symbol:
                continue
            env = extent.node.shape_env
            own = str(extent.node.expr)
            for source in getattr(env, "var_to_sources", {}).get(extent.node.expr, ()):
                name = getattr(env, "source_name_to_debug_name", {}).get(source.name)
                if own in found and name and not SIZE.fullmatch(name):
                    found[own] = name
    return found


def shapes_of(program: ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """The inputs' shapes by name: integers, and sympy expressions where they are dynamic."""
    wanted = set(program.graph_signature.user_inputs)
    return {
        node.name: tuple(expression(extent) for extent in node.meta["val"].shape)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in wanted and hasattr(node.meta["val"], "shape")
    }


def expression(extent: Any) -> Any:
    return extent if isinstance(extent, int) else extent.node.expr


def _text(extent: Any, shown: Mapping[str, str]) -> str:
    text = str(extent)
    for s in _free(extent):
        text = re.sub(rf"\b{s}\b", shown[str(s)], text)
    return text


def _free(extent: Any) -> list[Any]:
    return [] if isinstance(extent, int) else sorted(extent.free_symbols, key=str)


def _agree(name: str, own: Sequence[Any], given: Sequence[int], found: Dims, where: str) -> None:
    """Adds the values of symbols that a given shape implies. Raises ShapeError if it does not fit
    the program."""
    wanted = f"[{', '.join(map(str, own))}]"
    what = f"{shape_text(name, given)} contradicts the program, where it is {wanted}"
    contradiction = ShapeError(what, where=where)
    if len(own) != len(given):
        raise contradiction
    for extent, value in zip(own, given, strict=True):
        if isinstance(extent, int) or not extent.is_Symbol:
            continue
        if str(extent) in found.opened:
            dimension, most = found.opened[str(extent)]
            raise fixed_and_open(dimension, f"<={most}", name, value, where)
        found.numbers.setdefault(str(extent), int(value))
    for extent, value in zip(own, given, strict=True):
        known = all(str(s) in found.numbers for s in _free(extent))
        if not known or _concrete(extent, found.numbers) != value:
            raise contradiction


def _concrete(extent: Any, values: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    return int(extent.subs({s: values[str(s)] for s in _free(extent)}))


def _examples(program: ExportedProgram, names: Iterable[str]) -> str:
    """Shapes to try: those of the example inputs of the export."""
    from torch.utils import _pytree

    tensors = _pytree.tree_leaves(program.example_inputs) if program.example_inputs else []
    inputs = dict(zip(program.graph_signature.user_inputs, tensors, strict=False))
    return " ".join(
        f"--shape {name}={','.join(map(str, inputs[name].shape))}"
        for name in names
        if hasattr(inputs.get(name), "shape")
    )
