"""Finds kernels of a program that share one function: those that differ only in sizes, or only in
operands such as scales (ir/outlines.py), and pairs of which one adds a tensor, such as a residual,
that the other does not (ir/terms.py).

Candidates have equal texts, without their numbers or without the addition; their scheduled loops
decide. The cache keeps the answer under the keys of all candidates, so that nothing is scheduled
again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import msgpack

from mlc_targets import Target

from ..codegen import KernelObject, compile_shared
from ..errors import CodegenError
from ..graph import Function
from ..graph.lower import KernelSource, buffers_of, canonical, lower_kernel
from ..ir import PrimFunc
from ..ir.outlines import Outline, differing, in_common, outline_of
from ..ir.terms import with_choice
from ..lower import lower
from .cache import Cache, user_folder
from .pairs import Pair, added_by, pairs_of

NUMBER = re.compile(r"\d+")
FOLDER = "shared"  # of the cache
# Operands that are parameters take registers, while constants may be loaded again. With six,
# kernels of ResNet-50 in int8 execute up to 8 % more on armv7a, which has 16 registers (LLVM 22;
# scripts/bench/shared_kernels.py resnet50_int8 --target armv7a).
MOST_OPERANDS = {"arm": 4, "aarch64": 16, "x86_64": 16}
Names = tuple[str, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """The kernels' names in groups that share a function, in the order of each group's first
    kernel; a kernel may be alone. scheduled: the kernels that had to be scheduled for this."""

    names: Sequence[Names]
    scheduled: Mapping[str, PrimFunc] = field(default_factory=dict)


def sharing_of(
    sources: Mapping[str, KernelSource],
    target: Target,
    store: Cache | None,
    key: Callable[[KernelSource], bytes],
    unknown: Callable[[Sequence[str]], None],
) -> Sharing:
    """Which kernels share a function. key: a kernel's key in the cache. If the cache does not know,
    unknown(names) is called before candidates are scheduled, with the others."""
    scheduled: dict[str, PrimFunc] = {}

    def loops_of(name: str) -> PrimFunc:
        if name not in scheduled:
            scheduled[name] = lower_kernel(sources[name], target)
        return scheduled[name]

    texts: dict[str, list[str]] = {}
    for name, source in sources.items():
        texts.setdefault(_numberless(source) or name, []).append(name)
    alike = {name for names in texts.values() if len(names) > 1 for name in names}
    pairs = pairs_of(sources)
    several = alike.union(*((pair.longer, pair.shorter) for pair in pairs))
    candidates = [name for name in sources if name in several]
    groups: dict[int, list[str]] = {}
    if candidates:
        whole = b"".join(key(sources[name]) for name in candidates)
        digest = hashlib.blake2b(whole, digest_size=32).digest()
        numbers = _known(store, digest, len(candidates))
        if numbers is None:
            unknown([name for name in sources if name not in several])
            most = MOST_OPERANDS[target.arch]
            numbers = _numbers(candidates, alike, pairs, loops_of, most)
            if store is not None:
                store.put(digest, msgpack.packb(numbers))
        for name, number in zip(candidates, numbers, strict=True):
            groups.setdefault(number, []).append(name)
    together = {name: tuple(names) for names in groups.values() for name in names}
    return Sharing(tuple(dict.fromkeys(together.get(n, (n,)) for n in sources)), scheduled)


def compile_together(sources: Sequence[KernelSource], target: Target) -> tuple[KernelObject, ...]:
    """Compiles kernels that share a function. Raises LowerError, CodegenError."""
    common: PrimFunc | None = None
    for longer, other in permutations(sources) if len(sources) == 2 else ():
        if (number := added_by(longer, other)) is not None:
            func = lower_kernel(longer, target)
            adds = [int(source is longer) for source in sources]
            common = with_choice(func, func.buffers[number], adds)
            break
    else:
        funcs = [lower_kernel(source, target) for source in sources]
        outlines = [o for o in map(outline_of, funcs) if o is not None]
        if len(outlines) == len(funcs) and len({o.digest for o in outlines}) == 1:
            common = in_common(funcs, outlines)
    if common is None:
        names = ", ".join(source.name for source in sources)
        what = f"the cache says that kernels share a function that do not: {names}"
        raise CodegenError(what, mend=f"remove {user_folder() / FOLDER}")
    buffers = [buffers_of(source, target) for source in sources]
    return compile_shared(lower(common, target), buffers, target)


def _numberless(source: KernelSource) -> str:
    """The kernel's computation as text without numbers; "" if it is tuned or has dynamic
    dimensions."""
    if source.trace is not None:
        return ""
    match source.computes:
        case Function(extents=()) as function:
            return NUMBER.sub("#", "\n".join(canonical(function, numbers_too=False)))
        case PrimFunc() as func:
            outline = outline_of(func)
            return "" if outline is None else outline.digest.hex()
    return ""


def _numbers(
    candidates: Sequence[str],
    alike: Container[str],
    pairs: Sequence[Pair],
    loops_of: Callable[[str], PrimFunc],
    most_operands: int,
) -> list[int]:
    """A number for each candidate; kernels that share a function have the same. loops_of: schedules
    a kernel. most_operands: that may differ."""
    told = ((name, outline_of(loops_of(name))) for name in candidates if name in alike)
    groups = _groups({name: o for name, o in told if o is not None}, most_operands)
    pair_of = {pair.shorter: pair for pair in pairs}
    found: dict[str, object] = {n: groups.get(n, n) for n in candidates if n not in pair_of}
    members = Counter(found.values())
    for name, pair in pair_of.items():
        func = loops_of(pair.longer) if members[found[pair.longer]] == 1 else None
        if func is not None and with_choice(func, func.buffers[pair.number]) is not None:
            found[name] = found[pair.longer] = pair
        else:
            found[name] = groups.get(name, name)
    numbers: dict[object, int] = {}
    return [numbers.setdefault(found[name], len(numbers)) for name in candidates]


def _groups(outlines: Mapping[str, Outline], most_operands: int) -> dict[str, object]:
    """What stands for a kernel's function, for each kernel that may share it. Kernels of one
    function differ only in sizes, or else only in operands: code for both would be slower."""
    of_sizes = Counter((o.digest, o.operands) for o in outlines.values())
    of_operands: dict[object, list[Outline]] = {}
    for outline in outlines.values():
        of_operands.setdefault((outline.digest, outline.sizes), []).append(outline)
    groups: dict[str, object] = {}
    for name, o in outlines.items():
        if of_sizes[o.digest, o.operands] > 1:
            groups[name] = o.digest, o.operands
        elif differing(of_operands[o.digest, o.sizes]) <= most_operands:
            groups[name] = o.digest, o.sizes
    return groups


def _known(store: Cache | None, digest: bytes, count: int) -> list[int] | None:
    """The numbers in the cache; None if there are none, or others wrote the entry."""
    entry = store.get(digest) if store is not None else None
    if entry is None:
        return None
    try:
        numbers = msgpack.unpackb(entry)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        log.debug("not read: %s", error)
        return None
    fits = isinstance(numbers, list) and len(numbers) == count
    return numbers if fits and all(type(n) is int for n in numbers) else None
