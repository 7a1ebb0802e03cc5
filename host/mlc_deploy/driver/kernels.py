"""Compiles a program's kernels to objects and to text, from the cache or by worker processes.

A kernel's key in the cache is a digest of everything that decides its bits: what it computes, the
target, the loop passes of the PassContext, LLVM, and the sources of this package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import llvmlite
import llvmlite.binding as llvm
import msgpack

import mlc_targets
from mlc_targets import Target
from mlc_targets.object_format import SignatureMap, parse_metadata

from .. import ir
from ..codegen import KernelObject, compile_kernel
from ..codegen.machine_code import assembly_of, empty_object
from ..codegen.merge import KERNEL, merge
from ..errors import CodegenError
from ..files.fields import NoJson, parsed
from ..graph import Function, GraphProgram
from ..graph.definition import Definition
from ..graph.lower import KernelSource, lower_kernel
from ..graph.nodes import AnyCall, Call, CallTIR
from ..ir import Buffer, PrimFunc, statements, walk
from ..lower import LLVM_STEPS, STEPS, Kernel, lower
from ..ops import OWN_IMPLEMENTATIONS, OWN_INTRINS, OWN_OPERATORS
from ..ops.strategy import implementations
from ..passes.context import PassContext, option
from ..schedule.tensor_intrin import registered_intrins
from .cache import Cache, user_folder
from .processes import Processes, processes_of
from .sharing import FOLDER, Sharing, compile_together, sharing_of
from .workers import WorkerDied

LAST_WORDS = 400  # characters of a dead worker's stderr
# What reading a foreign or damaged entry of the cache may raise.
NO_KERNEL = (
    CodegenError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError,
    MemoryError, AssertionError, struct.error,
)  # fmt: skip

log = logging.getLogger(__name__)

Counted = Callable[[int, int], None]
T = TypeVar("T")
Unit = tuple[KernelSource, ...]  # one kernel, or several that share a function


class _Count:
    """Reports how many of `most` kernels are done."""

    def __init__(self, most: int, progress: Counted | None) -> None:
        self.most, self.progress, self.done = most, progress, 0
        if progress is not None and most:
            progress(0, most)

    def more(self, unit: Unit) -> None:
        for _ in unit:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.most)

    def after(self, made: T, unit: Unit) -> T:
        self.more(unit)
        return made


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """The kernels' objects by name, and how many of them the cache had."""

    objects: Mapping[str, KernelObject]
    cached: int


def layers_by_kernel(program: GraphProgram) -> dict[str, list[str]]:
    """For each kernel, the names of the layers that call it."""
    layers: dict[str, list[str]] = {}
    for call in program.calls:
        layers.setdefault(call.kernel, []).append(call.layer)
    return layers


def loops_of(source: KernelSource, target: Target) -> Kernel:
    """The flat loops of a kernel."""
    return lower(lower_kernel(source, target), target)


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel for people: its scheduled `loops` and its `assembly` ("" for the target "c")."""

    loops: str
    assembly: str


def compile_sources(
    sources: Mapping[str, KernelSource],
    target: Target,
    layers: Mapping[str, Sequence[str]],
    workers: int | Processes | None = None,
    progress: Counted | None = None,
) -> CompiledKernels:
    """Compiles kernels, given by name. layers: by kernel, the names of the model's layers.
    progress(n, m) is called when n of the m kernels that must be compiled are.

    `workers` processes, or those, compile them, by default the PassContext's number. If passes are
    watched or added, this process compiles all kernels, without the cache; else only those with
    operators, implementations or intrinsics of the user's. Raises LowerError, ScheduleError,
    CodegenError.
    """
    form = _Form("kernels", compile_unit, packed, lambda entry: unpacked(entry, target))
    with processes_of(workers) as processes:
        making = _Making(form, target, processes)

        def first(alone: Sequence[str]) -> None:
            processes.for_missing(len(sources))
            making.begin({name: (sources[name],) for name in alone})

        sharing = _sharing(sources, target, first)
        scheduled = {n: replace(sources[n], scheduled=f) for n, f in sharing.scheduled.items()}
        known = {**sources, **scheduled}
        units = {names[0]: tuple(known[name] for name in names) for names in sharing.names}
        making.begin(
            dict(sorted(units.items(), key=lambda item: _statements(item[1]), reverse=True))
        )
        worked = {
            names[0]: [layer for name in names for layer in layers.get(name, ())]
            for names in sharing.names
        }
        made, cached = making.finish(worked, progress)
    found = {
        name: kernel
        for names in sharing.names
        for name, kernel in zip(names, made[names[0]], strict=True)
    }
    count = sum(len(units[name]) for name in cached)
    return CompiledKernels({name: found[name] for name in sources}, count)


def _statements(unit: Unit) -> int:
    """How many statements a unit has, where that is known. Those with more take longer to compile:
    they begin first, so that all processes end at about one time."""
    known = (source.scheduled for source in unit)
    return max((sum(1 for _ in statements(f.body)) for f in known if f is not None), default=0)


def _sharing(
    sources: Mapping[str, KernelSource], target: Target, first: Callable[[Sequence[str]], None]
) -> Sharing:
    """Which kernels share a function. If passes are watched, none do, so that each is seen alone.
    If the cache does not say, first(names) is called with those that are alone: they need not
    wait for the answer, and some kernels are probably missing, too."""
    own = {name: source for name, source in sources.items() if _is_own(source)}
    if _is_private() or not option("compile.share"):
        return Sharing([(name,) for name in sources])
    context = _loops_context()
    store = Cache(user_folder() / FOLDER) if option("compile.cache") else None
    found = sharing_of(
        own,
        target,
        store,
        key=lambda source: _key((source,), target, context),
        unknown=first,
    )
    others = ((name,) for name in sources if name not in own)
    return replace(found, names=[*found.names, *others])


def source_texts(
    sources: Mapping[str, KernelSource], target: Target, layers: Mapping[str, Sequence[str]]
) -> dict[str, KernelText]:
    """The texts of kernels, with the arguments of compile_sources and made the same way; a kernel
    that shares a function appears as it would be alone."""
    form = _Form("texts", unit_text, _packed_text, _unpacked_text)
    with Processes() as processes:
        making = _Making(form, target, processes)
        making.begin({name: (source,) for name, source in sources.items()})
        return making.finish(layers)[0]


@dataclass(frozen=True, slots=True)
class _Form(Generic[T]):
    """A product of a kernel's source: its folder in the cache, how to make it, and how to pack it
    for the cache; `unpack` returns None for an invalid entry."""

    folder: str
    make: Callable[[Unit, Target, PassContext | None], T]
    pack: Callable[[T], bytes]
    unpack: Callable[[bytes], T | None]


class _Making(Generic[T]):
    """The products of a form for units of kernels: from the cache, by processes, or here."""

    def __init__(self, form: _Form[T], target: Target, processes: Processes) -> None:
        self._form, self._target, self._processes = form, target, processes
        self._private, self._context = _is_private(), _loops_context()
        cached = option("compile.cache") and not self._private
        self._store = Cache(user_folder() / form.folder) if cached else None
        self._units: dict[str, Unit] = {}
        self._keys: dict[str, bytes] = {}
        self._begun: dict[str, Future[T]] = {}
        self._found: dict[str, T] = {}

    def begin(self, units: Mapping[str, Unit]) -> None:
        """Takes on more units, by name: those that are not in the cache go to processes."""
        units = {name: unit for name, unit in units.items() if name not in self._units}
        self._units.update(units)
        own = {n: u for n, u in units.items() if not self._private and all(map(_is_own, u))}
        for name, unit in own.items():
            self._keys[name] = _key(unit, self._target, self._context)
            entry = self._store.get(self._keys[name]) if self._store is not None else None
            made = self._form.unpack(entry) if entry is not None else None
            if made is not None:
                self._found[name] = made
        missing = [name for name in own if name not in self._found]
        if missing and (pool := self._processes.for_missing(len(missing))):
            for name in missing:
                task = units[name], self._target, self._context
                self._begun[name] = pool.submit(self._form.make, *task)

    def finish(
        self, layers: Mapping[str, Sequence[str]], progress: Counted | None = None
    ) -> tuple[dict[str, T], set[str]]:
        """The product for each unit, by name, and the names that the cache had."""
        cached = set(self._found)
        left = {name: unit for name, unit in self._units.items() if name not in cached}
        told = _Count(sum(map(len, left.values())), progress)
        for name, future in self._begun.items():
            try:
                self._found[name] = told.after(future.result(), left[name])
            except WorkerDied as died:
                raise _ended(name, layers.get(name, ()), died) from None
        for name, unit in left.items():
            if name not in self._found:
                self._found[name] = told.after(self._form.make(unit, self._target, None), unit)
            if self._store is not None and name in self._keys:
                self._store.put(self._keys[name], self._form.pack(self._found[name]))
        return {name: self._found[name] for name in self._units}, cached


def packed(kernels: Sequence[KernelObject]) -> bytes:
    """The cache's entry of a kernel, or of several that share a function."""
    entry: bytes = msgpack.packb([kernels[0].code, *(k.signature for k in kernels)])
    return entry


def unpacked(entry: bytes, target: Target) -> tuple[KernelObject, ...] | None:
    """The kernels of an entry of the cache; None if they cannot be kernels of the target. The
    entry's digest proves nothing: whoever writes to the cache can compute it."""
    try:
        code, *signatures = msgpack.unpackb(entry)
        shared = len(signatures) > 1
        names = tuple(f"{KERNEL}{n}" for n in range(len(signatures))) if shared else KERNEL
        merge([(names, code), ("", empty_object(target))], b"")
        for signature in signatures:
            if not _is_signature(signature):
                return None
        numbers = range(len(signatures)) if shared else (None,)
        return tuple(KernelObject(code, *of) for of in zip(signatures, numbers, strict=True))
    except NO_KERNEL as error:
        log.debug("no kernel: %s", error)
        return None


def _is_signature(signature: SignatureMap) -> bool:
    """Whether a kernel may have this signature. Raises what NO_KERNEL lists."""
    known = parse_metadata(
        msgpack.packb(
            {"target": "", "machine": "", "features": [],
             "kernels": [{"name": KERNEL, **signature}]}
        )
    )  # fmt: skip
    (kernel,) = known.kernels.values()
    sized = type(kernel.tasks) in (int, str) and all(
        type(extent) in (int, str) for p in kernel.params for extent in p.shape
    )
    return sized and all(type(name) is str for name in signature["scalars"])


def compile_unit(
    unit: Unit, target: Target, context: PassContext | None = None
) -> tuple[KernelObject, ...]:
    """Compiles one kernel, or several that share a function, as compile_source does."""
    if len(unit) == 1:
        return (compile_source(unit[0], target, context),)
    with context or nullcontext():
        return compile_together(unit, target)


def compile_source(
    source: KernelSource, target: Target, context: PassContext | None = None
) -> KernelObject:
    """Compiles one kernel in this process, by the loop passes of the (or the current) context."""
    with context or nullcontext():
        return compile_kernel(loops_of(source, target), target)


def unit_text(unit: Unit, target: Target, context: PassContext | None = None) -> KernelText:
    (source,) = unit
    return source_text(source, target, context)


def source_text(
    source: KernelSource, target: Target, context: PassContext | None = None
) -> KernelText:
    """The text of one kernel, made in this process as compile_source makes objects."""
    with context or nullcontext():
        loops = lower_kernel(source, target)
        if target.kind == "c":
            return KernelText(str(loops), "")
        return KernelText(str(loops), assembly_of(lower(loops, target), target))


def _packed_text(text: KernelText) -> bytes:
    return zlib.compress(json.dumps([text.loops, text.assembly]).encode())


def _unpacked_text(entry: bytes) -> KernelText | None:
    """The text of an entry of the cache; None if others wrote it."""
    try:
        match parsed(zlib.decompress(entry)).value:
            case [str(loops), str(assembly)]:
                return KernelText(loops, assembly)
    except (NoJson, zlib.error, MemoryError) as error:
        log.debug("no text: %s", error)
    return None


def _is_private() -> bool:
    """Whether the passes must run in this process: they are watched, or some were added."""
    watched = PassContext.current().instruments or option("lower.dump")
    return bool(watched or os.environ.get("MLC_DUMP") or option("lower.add_pass"))


def _is_own(source: KernelSource) -> bool:
    """Whether a worker knows everything that the kernel uses."""
    match source.computes:
        case Function(bindings=bindings):
            return all(_is_own_call(b.call) for b in bindings)
        case PrimFunc() as func:
            return _is_own_func(func)


def _is_own_func(func: PrimFunc) -> bool:
    others = [i.calls for i in registered_intrins() if i not in OWN_INTRINS]
    foreign = frozenset().union(*others)
    return not any(isinstance(n, ir.Call) and n.name in foreign for n in walk(func.body))


def _is_own_call(call: AnyCall) -> bool:
    """Whether this package defines the operator and every implementation of it, or every intrinsic
    that the function calls."""
    match call:
        case Call(op):
            others = {i.op for i in implementations() if i not in OWN_IMPLEMENTATIONS}
            return op in OWN_OPERATORS and op not in others
        case CallTIR(definition=Definition(func)):
            return _is_own_func(func)
    return False


def _loops_context() -> PassContext:
    """The current context's options of loop passes, sorted."""
    current = PassContext.current()
    names = {step.__name__ for step in (*STEPS, *LLVM_STEPS) if not isinstance(step, str)}
    return PassContext(
        opt_level=current.opt_level,
        disabled_pass=sorted(names.intersection(current.disabled_pass)),
        required_pass=sorted(names.intersection(current.required_pass)),
        config={k: v for k, v in sorted(current.config.items()) if k.startswith("lower.")},
    )


def _key(unit: Unit, target: Target, context: PassContext) -> bytes:
    names = [_names(source) for source in unit]
    text = repr((names, str(target), target.llvm_cpu, target.llvm_features, context))
    parts = *(source.digest for source in unit), text.encode(), _compiler()
    return hashlib.blake2b(b"\0".join(parts), digest_size=32).digest()


def _names(source: KernelSource) -> list[str]:
    """The names in the object's metadata; the digest of a source leaves them out."""
    match source.computes:
        case Function(params=params):
            return [p.name for p in params]
        case PrimFunc(params=others):
            return [f"{p.name} {p.shape}" if isinstance(p, Buffer) else p.name for p in others]


@cache
def _compiler() -> bytes:
    """A digest of LLVM's version and of the sources of this package."""
    state = hashlib.blake2b(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for package in (Path(__file__).parents[1], Path(mlc_targets.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            content = path.read_bytes()
            state.update(f"{path.relative_to(package)} {len(content)}\n".encode() + content)
    return state.digest()


def _ended(name: str, layers: Sequence[str], died: WorkerDied) -> CodegenError:
    words = next((w for w in died.words.splitlines() if "LLVM ERROR" in w), died.words)
    parts = [f"layers {', '.join(layers)}" if layers else "", words[-LAST_WORDS:]]
    return CodegenError(
        f"the process that compiled kernel '{name}' ended with {died.how}",
        where="\n".join(filter(None, parts)),
        mend="PassContext(opt_level=0), or a target with other features",
    )
