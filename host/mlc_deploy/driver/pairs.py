"""Pairs of kernels that differ in one addition: the longer one adds a tensor, such as a residual,
that the shorter one does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..graph.lower import KernelSource, canonical
from ..graph.nodes import Binding, Call, Function, Var, uses, with_bindings, with_values
from ..ops import operator


@dataclass(frozen=True, slots=True)
class Pair:
    """The names of two kernels. The tensor is the longer one's parameter `number`."""

    longer: str
    shorter: str
    number: int


def pairs_of(sources: Mapping[str, KernelSource]) -> list[Pair]:
    """The pairs among kernels. A kernel is in one pair at most."""
    texts = {text: name for name, source in sources.items() if (text := _text(source))}
    left = set(texts.values())
    found: list[Pair] = []
    for longer in texts.values():
        for number, source in _shortened(sources[longer]):
            shorter = texts.get(_text(source), "")
            fits = shorter in left and _fits(source, sources[shorter])
            if longer in left and fits:
                found.append(Pair(longer, shorter, number))
                left -= {longer, shorter}
    return found


def added_by(longer: KernelSource, shorter: KernelSource) -> int | None:
    """The number of the parameter that `longer` adds, where `shorter` does else the same."""
    text = _text(shorter)
    for number, source in _shortened(longer) if text else ():
        if _text(source) == text and _fits(source, shorter):
            return number
    return None


def _fits(shortened: KernelSource, other: KernelSource) -> bool:
    """Whether a kernel may run the code of the other, of the same text: tensors that share memory
    in this one share it in that one, too."""
    return set(other.in_place) <= set(shortened.in_place)


def _text(source: KernelSource) -> str:
    """What decides the kernel; "" where two kernels would have little in common, since they have no
    anchor, or have schedules of their own."""
    match source:
        case KernelSource(computes=Function(extents=()) as function, trace=None):
            calls = [b.call for b in function.bindings]
            if any(isinstance(c, Call) and operator(c.op).pattern == "anchor" for c in calls):
                return "\n".join((*canonical(function), str(source.alignments)))
    return ""


def _shortened(source: KernelSource) -> Iterator[tuple[int, KernelSource]]:
    """The kernel without an addition of a parameter that nothing else reads, and the parameter's
    number, for each such addition."""
    function = source.computes
    if not isinstance(function, Function):
        return
    count = uses(function)
    for binding in function.bindings:
        match binding:
            case Binding((out,), Call("add", (a, b))):
                for kept, term in ((a, b), (b, a)):
                    is_own = isinstance(term, Var) and term in function.params
                    if is_own and count[term] == 1 and kept.type == out.type:
                        others = [b for b in function.bindings if b is not binding]
                        shorter = with_values(with_bindings(function, others), {out: kept})
                        yield _without_parameter(source, shorter, function.params.index(term))


def _without_parameter(
    source: KernelSource, function: Function, number: int
) -> tuple[int, KernelSource]:
    """The number, and the kernel of a function without this parameter of the source."""
    params = (*function.params[:number], *function.params[number + 1 :])
    return number, replace(
        source,
        computes=replace(function, params=params),
        in_place=tuple(n - (n > number) for n in source.in_place if n != number),
        alignments=(*source.alignments[:number], *source.alignments[number + 1 :]),
        scheduled=None,
    )
