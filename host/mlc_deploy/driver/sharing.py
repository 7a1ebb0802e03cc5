"""Finds kernels of a program that share one function: those that differ only in sizes
(ir/sizes.py).

Candidates have equal texts without their numbers; their scheduled loops decide. The cache keeps the
answer under the keys of all candidates, so that nothing is scheduled again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgpack

from mlc_targets import Target

from ..codegen import KernelObject, compile_shared
from ..errors import CodegenError
from ..graph import Function
from ..graph.lower import KernelSource, canonical, lower_kernel
from ..ir import PrimFunc
from ..ir.sizes import in_common, outline_of
from ..lower import lower
from .cache import Cache, user_folder

NUMBER = re.compile(r"\d+")
FOLDER = "shared"  # of the cache
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
    unknown: Callable[[], object],
) -> Sharing:
    """Which kernels share a function. key: a kernel's key in the cache. unknown() is called before
    candidates are scheduled, if the cache does not know."""
    found: list[Names] = []
    scheduled: dict[str, PrimFunc] = {}
    alike: dict[str, list[str]] = {}
    for name, source in sources.items():
        alike.setdefault(_numberless(source) or name, []).append(name)
    candidates = [name for names in alike.values() if len(names) > 1 for name in names]
    if candidates:
        whole = b"".join(key(sources[name]) for name in candidates)
        digest = hashlib.blake2b(whole, digest_size=32).digest()
        numbers = _known(store, digest, len(candidates))
        if numbers is None:
            unknown()
            scheduled = {name: lower_kernel(sources[name], target) for name in candidates}
            numbers = _numbers(scheduled.values())
            if store is not None:
                store.put(digest, msgpack.packb(numbers))
        together: dict[int, list[str]] = {}
        for name, number in zip(candidates, numbers, strict=True):
            together.setdefault(number, []).append(name)
        found = [tuple(names) for names in together.values()]
    several = {name: names for names in found for name in names}
    together_or_alone = dict.fromkeys(several.get(name, (name,)) for name in sources)
    return Sharing(tuple(together_or_alone), scheduled)


def compile_together(sources: Sequence[KernelSource], target: Target) -> tuple[KernelObject, ...]:
    """Compiles kernels that share a function. Raises LowerError, CodegenError."""
    funcs = [lower_kernel(source, target) for source in sources]
    outlines = [o for o in map(outline_of, funcs) if o is not None]
    if len(outlines) < len(funcs) or len({o.digest for o in outlines}) > 1:
        names = ", ".join(source.name for source in sources)
        what = f"the cache says that kernels share a function that do not: {names}"
        raise CodegenError(what, mend=f"remove {user_folder() / FOLDER}")
    common = in_common(funcs, outlines)
    return compile_shared(lower(common, target), funcs, target)


def _numberless(source: KernelSource) -> str:
    """The kernel's computation as text without numbers; "" if it is tuned or has dimensions that a
    run decides."""
    if source.trace is not None:
        return ""
    match source.computes:
        case Function(extents=()) as function:
            return NUMBER.sub("#", "\n".join(canonical(function)))
        case PrimFunc() as func:
            outline = outline_of(func)
            return "" if outline is None else outline.digest.hex()
    return ""


def _numbers(funcs: Iterable[PrimFunc]) -> list[int]:
    """A number for each kernel; kernels that share a function have the same."""
    digests: dict[object, int] = {}
    found: list[int] = []
    for func in funcs:
        outline = outline_of(func)
        digest: object = func if outline is None else outline.digest
        found.append(digests.setdefault(digest, len(digests)))
    return found


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
