"""The engine as in TensorIR: a mutable handle on an immutable PrimFunc.

Every primitive is a function from PrimFunc to PrimFunc in another file of this folder. Handles are
the names of loops and blocks, which are unique and deterministic. The calls are recorded
(trace.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from random import Random
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast

from ..ir import TUNE_CPU, Block, Expr, For, IRModule, PrimFunc, statements, with_fields
from ..ir.nodes import ForKind, Scope
from ..ir.verify import verify_each
from ..te.threads import no_thread
from . import blockize as blockize_
from . import caching, epilogue, layout, location, loops, notes, reduction, sampling
from . import padding as padding_
from . import tensorize as tensorize_
from .sampling import Chooser
from .trace import BlockRV, LoopRV, Recorder, SampledInt, Trace, as_results
from .tree import (
    block_at,
    blocks_under,
    find_block,
    find_node,
    loops_of,
    nearest,
    readers,
    refuse,
    writers,
)

IS_SCHEDULED = "tir.is_scheduled"  # a function that carries it is lowered as it stands

P = ParamSpec("P")
R = TypeVar("R")


def primitive(
    method: Callable[Concatenate[Schedule, P], R],
) -> Callable[Concatenate[Schedule, P], R]:
    """Records a method's calls in the trace, once they have succeeded."""
    names: list[str] = []  # of plain parameters
    rest = ""  # of the parameter that takes all others, if there is one
    for name, parameter in list(signature(method).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = name
        else:
            names.append(name)
    assert not rest or not names, "a trace tells arguments apart by their names"

    @wraps(method)
    def recorded(self: Schedule, *args: P.args, **kwargs: P.kwargs) -> R:
        before = self._module, self._func
        try:
            self._work_where((*args, *kwargs.values()))
            result = method(self, *args, **kwargs)
        except Exception:
            self._module, self._func = before
            raise
        for handle in as_results(result) if self._several else ():
            if isinstance(handle, (BlockRV, LoopRV)):
                handle.func = self._func.name
        if rest:
            arguments: dict[str, Any] = {f"*{rest}": list(args)}
        else:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            arguments = {name: given[name] for name in names if name in given}
        self._recorder.add(method.__name__, arguments, result)
        return result

    PRIMITIVES.add(method.__name__)
    return cast("Callable[Concatenate[Schedule, P], R]", recorded)


PRIMITIVES = {  # the names that a trace may hold; the decorator adds to them
    "sample_categorical",
    "sample_compute_location",
    "transform_layout",
    "transform_block_layout",
}


class Schedule:
    """Applies primitives to one function at a time. A primitive either succeeds, or raises
    ScheduleError and changes nothing.

    mod: a PrimFunc, or an IRModule. Of a module, `func` is scheduled until `work_on` or a handle
    selects another function. seed: for the sampling primitives; the same seed gives the same trace.
    """

    def __init__(
        self, mod: PrimFunc | IRModule, *, seed: int | None = None, func: str = "main"
    ) -> None:
        self._func: PrimFunc = mod if isinstance(mod, PrimFunc) else _the_function(mod, func)
        self._module = mod if isinstance(mod, IRModule) else None
        self._several = self._module is not None and len(self._module.functions) > 1
        chooser = sampling.in_force() if seed is None else None
        self._chooser = chooser or Chooser(Random(seed))
        # In a search, this schedule continues the one that made the function.
        maker = self._chooser.maker(self._func)
        self._recorder: Recorder = Recorder() if maker is None else maker._recorder.copy()
        self._chooser.note(self)

    @property
    def func(self) -> PrimFunc:
        return self._func

    @property
    def mod(self) -> IRModule:
        """The module with the function as it is scheduled now."""
        others = dict(self._module.functions) if self._module is not None else {}
        return IRModule({**others, self._func.name: self._func})

    @property
    def trace(self) -> Trace:
        """The instructions so far."""
        return self._recorder.trace()

    def copy(self) -> Schedule:
        """An independent schedule in the same state, with the same random numbers to come."""
        other = Schedule(self._module or self._func, func=self._func.name)
        other._func = self._func
        other._chooser = self._chooser.copy()
        other._recorder = self._recorder.copy()
        return other

    def show(self) -> None:
        """Prints the function."""
        print(self._func)

    def perform(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls the primitive `name` with arguments as a trace has them."""
        if name not in PRIMITIVES:
            refuse("trace", f"no primitive '{name}'")
        positional = [v for key, given in arguments.items() if key[0] == "*" for v in given]
        named = {key: v for key, v in arguments.items() if key[0] != "*"}
        return getattr(self, name)(*positional, **named)

    def _set(self, func: PrimFunc, primitive: str) -> None:
        if IS_SCHEDULED not in func.attrs:
            func = with_fields(func, attrs={**func.attrs, IS_SCHEDULED: True})
        self._func = verify_each(func, primitive)

    def _work_where(self, arguments: Iterable[Any]) -> None:
        """Turns to the function of the handles among a primitive's arguments."""
        if self._several:
            handles = [a for a in arguments if isinstance(a, (BlockRV, LoopRV))]
            of = dict.fromkeys(f for h in handles if (f := getattr(h, "func", None)) is not None)
            if len(of) > 1:
                refuse("Schedule", f"handles of several functions: {', '.join(of)}")
            self._turn_to(*of)

    def _turn_to(self, name: str = "") -> None:
        if not name or name == self._func.name:
            return
        module = self.mod
        func = module.functions.get(name)
        if not isinstance(func, PrimFunc):
            funcs = [n for n, f in module.functions.items() if isinstance(f, PrimFunc)]
            refuse("work_on", f"the module has no PrimFunc '{name}'", mend=nearest(name, funcs))
        self._module, self._func = module, func

    # ------------------------------------------------------------------------------- looking

    @primitive
    def work_on(self, func_name: str) -> None:
        """Names of blocks and loops refer to this function of the module from now on."""
        self._turn_to(func_name)

    @primitive
    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """A block by its name, in the current function or in another of the module."""
        self._turn_to(func_name or "")
        return BlockRV(block_at(find_block(self._func, name, "get_block")).name)

    @primitive
    def get_loops(self, block: str) -> list[LoopRV]:
        """The loops around a block, outermost first."""
        return [LoopRV(o.name) for o in loops_of(find_block(self._func, block, "get_loops"))]

    @primitive
    def get_child_blocks(self, at: str) -> list[BlockRV]:
        """The blocks right inside a loop or block."""
        node = find_node(self._func, at, "get_child_blocks")[-1]
        assert isinstance(node, (For, Block))
        return [BlockRV(b.name) for b in blocks_under(self._func, node.body)]

    @primitive
    def get_producers(self, block: str) -> list[BlockRV]:
        """The blocks that write what this one reads."""
        found = [p for r in self.block(block).reads for p in writers(self._func, r.buffer)]
        return [BlockRV(b.name) for b in dict.fromkeys(found)]

    @primitive
    def get_consumers(self, block: str) -> list[BlockRV]:
        """The blocks that read what this one writes."""
        found = [c for w in self.block(block).writes for c in readers(self._func, w.buffer)]
        return [BlockRV(b.name) for b in dict.fromkeys(found)]

    @primitive
    def get_output_blocks(self) -> list[BlockRV]:
        """The blocks that write a parameter."""
        outputs = set(self._func.buffers)
        return [
            BlockRV(b.name)
            for b in blocks_under(self._func, self._func.body)
            if any(w.buffer in outputs for w in b.writes)
        ]

    def get_blocks(self) -> list[BlockRV]:
        """All blocks in program order, without the root."""
        return [BlockRV(b.name) for b in blocks_under(self._func, self._func.body)]

    def block(self, name: str) -> Block:
        """The block itself, to look at."""
        return block_at(find_block(self._func, name, "get_block"))

    def loop(self, name: str) -> For:
        """The loop itself, to look at."""
        return next(s for s in statements(self._func.body) if isinstance(s, For) and s.name == name)

    # ------------------------------------------------------------------------------ sampling

    @primitive
    def sample_perfect_tile(
        self,
        loop: str,
        n: int,
        max_innermost_factor: int = 16,
        decision: Sequence[int] | None = None,
    ) -> list[SampledInt]:
        """n factors whose product is the loop's extent, outermost first."""
        factors = sampling.perfect_tile(
            self._func, self._chooser, loop, n, max_innermost_factor, decision
        )
        return [SampledInt(f) for f in factors]

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
    ) -> SampledInt:
        """One of the candidates, by their probabilities."""
        chosen = sampling.categorical(self._chooser, candidates, probs, decision)
        result = SampledInt(candidates[chosen])
        arguments = {"candidates": list(candidates), "probs": list(probs), "decision": chosen}
        self._recorder.add("sample_categorical", arguments, result)
        return result

    def choice(self, default: int, candidates: Sequence[int]) -> int:
        """`default`, which is one of the candidates; in a tuner's search, any candidate, recorded
        as sample_categorical. So a hand-written schedule is a search space, too."""
        if not self._chooser.searches or len(candidates) < 2:
            return default
        chosen = self._chooser.prefer(candidates, list(candidates).index(default))
        return self.sample_categorical(candidates, [1.0] * len(candidates), chosen)

    def sample_compute_location(
        self, block: str, decision: int | None = None
    ) -> LoopRV | SampledInt:
        """A loop of the block's first consumer to compute it at; -1 leaves it where it is, -2 says
        that it may be inlined. The decision is the number of the consumer's loop."""
        self._work_where([block])
        choice, loop = sampling.compute_location(self, block, self._chooser, decision)
        result = LoopRV(loop) if loop is not None else SampledInt(choice)
        arguments = {"block": block, "decision": choice}
        self._recorder.add("sample_compute_location", arguments, result)
        return result

    # --------------------------------------------------------------------------------- loops

    @primitive
    def split(
        self,
        loop: str,
        factors: Sequence[int | Expr | None],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
    ) -> list[LoopRV]:
        """See loops.split."""
        func, names = loops.split(
            self._func, loop, factors, preserve_unit_iters, disable_predication
        )
        self._set(func, "split")
        return [LoopRV(n) for n in names]

    @primitive
    def fuse(self, *order: str) -> LoopRV:
        """See loops.fuse."""
        func, name = loops.fuse(self._func, order)
        self._set(func, "fuse")
        return LoopRV(name)

    @primitive
    def reorder(self, *order: str) -> None:
        """See loops.reorder."""
        self._set(loops.reorder(self._func, order), "reorder")

    @primitive
    def add_unit_loop(self, at: str) -> LoopRV:
        """See loops.add_unit_loop."""
        func, name = loops.add_unit_loop(self._func, at)
        self._set(func, "add_unit_loop")
        return LoopRV(name)

    def _mark(self, loop: str, kind: ForKind) -> None:
        self._set(loops.set_kind(self._func, loop, kind), kind)

    @primitive
    def parallel(self, loop: str) -> None:
        """The loop's iterations may run at once, on several threads."""
        self._mark(loop, "parallel")

    @primitive
    def vectorize(self, loop: str) -> None:
        """The loop's iterations are the lanes of vectors."""
        self._mark(loop, "vectorized")

    @primitive
    def unroll(self, loop: str) -> None:
        """The loop's iterations are written out."""
        self._mark(loop, "unrolled")

    def bind(self, loop: str, thread_axis: object) -> NoReturn:
        """Refused: a CPU has no threads of a GPU."""
        why, mend = no_thread(thread_axis)
        refuse("bind", why, self.loop(loop), mend)

    @primitive
    def storage_align(
        self, block: str, buffer_index: int, axis: int, factor: int, offset: int
    ) -> None:
        """See notes.storage_align."""
        func = notes.storage_align(self._func, block, buffer_index, axis, factor, offset)
        self._set(func, "storage_align")

    @primitive
    def annotate(self, at: str, key: str, value: Any) -> None:
        """Adds an annotation to a loop or block."""
        self._set(notes.annotate(self._func, at, key, value), "annotate")

    @primitive
    def unannotate(self, at: str, key: str) -> None:
        """Removes an annotation."""
        self._set(notes.annotate(self._func, at, key, None), "unannotate")

    # -------------------------------------------------------------------------------- blocks

    @primitive
    def compute_inline(self, block: str) -> None:
        """See location.compute_inline."""
        self._set(location.compute_inline(self._func, block), "compute_inline")

    @primitive
    def reverse_compute_inline(self, block: str) -> None:
        """See location.reverse_compute_inline."""
        self._set(location.reverse_compute_inline(self._func, block), "reverse_compute_inline")

    @primitive
    def compute_at(self, block: str, loop: str, whole: Sequence[int] = ()) -> None:
        """See location.compute_at."""
        self._set(location.compute_at(self._func, block, loop, whole), "compute_at")

    @primitive
    def reverse_compute_at(self, block: str, loop: str) -> None:
        """See location.reverse_compute_at."""
        self._set(location.reverse_compute_at(self._func, block, loop), "reverse_compute_at")

    @primitive
    def decompose_reduction(self, block: str, loop: str) -> BlockRV:
        """See reduction.decompose_reduction."""
        func, name = reduction.decompose_reduction(self._func, block, loop)
        self._set(func, "decompose_reduction")
        return BlockRV(name)

    @primitive
    def rfactor(self, loop: str, factor_axis: int = 0) -> BlockRV:
        """See reduction.rfactor."""
        func, name = reduction.rfactor(self._func, loop, factor_axis)
        self._set(func, "rfactor")
        return BlockRV(name)

    @primitive
    def cache_read(self, block: str, index: int, scope: Scope) -> BlockRV:
        """See caching.cache_read."""
        func, name = caching.cache_read(self._func, block, index, scope)
        self._set(func, "cache_read")
        return BlockRV(name)

    @primitive
    def cache_write(self, block: str, index: int, scope: Scope) -> BlockRV:
        """See caching.cache_write."""
        func, name = caching.cache_write(self._func, block, index, scope)
        self._set(func, "cache_write")
        return BlockRV(name)

    @primitive
    def set_scope(self, block: str, index: int, scope: Scope) -> None:
        """See caching.set_scope."""
        self._set(caching.set_scope(self._func, block, index, scope), "set_scope")

    @primitive
    def blockize(self, loop: str) -> BlockRV:
        """See blockize.blockize."""
        func, name = blockize_.blockize(self._func, loop)
        self._set(func, "blockize")
        return BlockRV(name)

    @primitive
    def tensorize(self, at: str, intrin: str) -> BlockRV:
        """See tensorize.tensorize. at: a loop or a block."""
        func, name = tensorize_.tensorize(self._func, at, intrin)
        self._set(func, "tensorize")
        return BlockRV(name)

    @primitive
    def fuse_reduction_epilogue(
        self,
        reduction_block: str,
        epilogue_block: str,
        read: str | None = None,
        at: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """See epilogue.fuse_reduction_epilogue."""
        func = epilogue.fuse_reduction_epilogue(
            self._func, reduction_block, epilogue_block, read, at
        )
        self._set(func, "fuse_reduction_epilogue")

    @primitive
    def tune_for(self, cpu: str) -> None:
        """LLVM schedules instructions for this CPU, whatever the target's CPU is."""
        attrs = {**self._func.attrs, TUNE_CPU: cpu}
        self._set(with_fields(self._func, attrs=attrs), "tune_for")

    # ------------------------------------------------------------------------------- layouts

    def transform_layout(
        self, block: str, buffer: str | tuple[str, int], index_map: layout.IndexMap | str
    ) -> None:
        """See layout.transform_layout. buffer: its name, or ("read" or "write", its number)."""
        self._work_where([block])
        name = buffer if isinstance(buffer, str) else self._buffer_name(block, *buffer)
        func = layout.transform_layout(self._func, block, name, index_map)
        ndim = self._dimensions(block, name)
        self._set(func, "transform_layout")
        arguments = {"block": block, "buffer": name, "index_map": layout.map_text(index_map, ndim)}
        self._recorder.add("transform_layout", arguments, None)

    def transform_block_layout(self, block: str, index_map: layout.IndexMap | str) -> None:
        """See layout.transform_block_layout."""
        self._work_where([block])
        func = layout.transform_block_layout(self._func, block, index_map)
        ndim = len(self.block(block).iters)
        self._set(func, "transform_block_layout")
        arguments = {"block": block, "index_map": layout.map_text(index_map, ndim)}
        self._recorder.add("transform_block_layout", arguments, None)

    def _buffer_name(self, block: str, side: str, number: int) -> str:
        target = self.block(block)
        regions = {"read": target.reads, "write": target.writes}.get(side)
        if regions is None:
            refuse("transform_layout", f"'{side}' is neither 'read' nor 'write'", target)
        names = list(dict.fromkeys(r.buffer.name for r in regions))
        if not 0 <= number < len(names):
            refuse("transform_layout", f"block '{block}' has no {side} number {number}", target)
        return names[number]

    def _dimensions(self, block: str, buffer: str) -> int:
        target = self.block(block)
        return next(
            (r.buffer.ndim for r in (*target.writes, *target.reads) if r.buffer.name == buffer), 0
        )

    # ------------------------------------------------------------------------------- padding

    @primitive
    def decompose_padding(self, block: str, loop: str) -> BlockRV:
        """See padding.decompose_padding."""
        func, name = padding_.decompose_padding(self._func, block, loop)
        self._set(func, "decompose_padding")
        return BlockRV(name)

    @primitive
    def pad_einsum(self, block: str, padding: Sequence[int]) -> None:
        """See padding.pad_einsum."""
        self._set(padding_.pad_einsum(self._func, block, padding), "pad_einsum")


def _the_function(mod: IRModule, name: str) -> PrimFunc:
    funcs = {n: f for n, f in mod.functions.items() if isinstance(f, PrimFunc)}
    if name in funcs:
        return funcs[name]
    if len(funcs) == 1:
        return next(iter(funcs.values()))
    refuse("Schedule", f"the module has no PrimFunc '{name}'", mend=f"func= one of {sorted(funcs)}")
