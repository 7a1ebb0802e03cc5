"""Lowering: one list of steps iterations a scheduled PrimFunc into flat loops. The list for the
target machine follows (lower/machine/).

MLC_DUMP=all, or a comma-separated list of step names, prints the program to stderr after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlc_targets import Target

from ..arith import simplify
from ..ir import IN_PLACE, Block, Buffer, For, PrimFunc, Var, walk
from ..ir.verify import verify, verify_each
from ..passes.context import optional, run_passes
from .blocks import lower_blocks
from .bodies import with_body
from .bounds import check_bounds
from .compact import compact_buffers
from .dimensions import bind_dimensions
from .flatten import flatten_buffers
from .hoist import hoist_guards
from .kept import check_kept
from .machine import LLVM_STEPS, bind_target
from .narrow import narrow_indices
from .no_op import remove_no_ops
from .partition import partition_loops
from .prefetch import insert_prefetches
from .scratch import align_rows, double_buffers
from .storage import share_storage
from .unroll import unroll_as_asked, unroll_loops, unroll_registers
from .unroll_open import unroll_open_loops
from .vectorize import vectorize_loops


@optional(level=0)
def simplify_body(func: PrimFunc) -> PrimFunc:
    """Simplifies expressions and removes guards that always hold."""
    return with_body(func, simplify(func.body))


Step = Callable[[PrimFunc], PrimFunc]

STEPS: tuple[Step | str, ...] = (  # strings are the phases where passes of the user run
    "blocks",
    lower_blocks,
    simplify_body,
    compact_buffers,
    align_rows,
    double_buffers,  # after compaction, which finds what one iteration makes and uses
    check_kept,
    share_storage,  # before loops are cut, which copies the uses of a buffer
    "loops",
    partition_loops,  # before vectorize: lanes lose their guards
    hoist_guards,  # after partition, which would cut loops for hoisted guards, too
    narrow_indices,
    insert_prefetches,  # late: the passes above would take a prefetch for a use
    flatten_buffers,
    simplify_body,  # before vectorize, which must see that an index is base + step * lane
    "flat",
    vectorize_loops,
    unroll_registers,  # after vectorize, which may leave loops over lanes
    unroll_as_asked,  # after vectorize: a vector's lanes count as one statement
    unroll_loops,  # late, so that the passes above see each statement once
    unroll_open_loops,  # last: an iteration is the vectors that the passes above made of it
    remove_no_ops,
    check_bounds,  # before simplify, which drops the checks that always hold
    simplify_body,
    "final",
)

# The passes that must run before a pass. Required passes run in the order above; optional passes
# may be left out, moved or repeated.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "vectorize_loops": ("flatten_buffers",),  # the index of a vector is one ramp
    "unroll_loops": ("lower_blocks",),  # copies of a block would have one name
}

Watch = Callable[[str, PrimFunc, bool], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lowered function: its scheduled signature and its flat loops.

    The loops' buffers are one-dimensional. The root block holds the scratch buffers.
    body: the loops for any machine. machine: the loops for LLVM's target; body where there is no
    such target.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    outputs: tuple[str, ...]
    body: PrimFunc
    machine: PrimFunc

    def __str__(self) -> str:
        """The flat loops as script."""
        return str(self.body)

    def script(self) -> str:
        return str(self)

    def show(self) -> None:
        """Prints the flat loops."""
        print(self)

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        root = self.body.body
        assert isinstance(root, Block)
        return root.allocs

    @property
    def aliased(self) -> frozenset[Buffer]:
        """The parameters that may share memory: outputs, and inputs that outputs may overwrite."""
        over = self.body.attrs.get(IN_PLACE, ())
        names = {*over, *self.outputs} if over else set()
        return frozenset(b for b in self.body.buffers if b.name in names)

    @property
    def parallel(self) -> For | None:
        """The parallel loop, when it is the whole body; others run serially."""
        root = self.body.body
        assert isinstance(root, Block)
        loop = root.body
        return loop if isinstance(loop, For) and loop.kind == "parallel" else None


def lower(func: PrimFunc, target: Target | None = None, watch: Watch | None = None) -> Kernel:
    """Lowers a scheduled function by the passes that the PassContext allows, then by those for the
    target.

    watch(name, function, changed) is called after each pass. Raises LowerError for what cannot be
    lowered.
    """
    func = bind_dimensions(verify(func))
    flat = run_passes("lower", func, STEPS, verify_each, watch)
    machine = flat
    if target is not None and target.kind == "llvm":
        machine = run_passes("lower", bind_target(flat, target), LLVM_STEPS, verify_each, watch)
    verify(machine, "lowering")
    written = {r.buffer.name for n in walk(func.body) if isinstance(n, Block) for r in n.writes}
    outputs = tuple(b.name for b in func.buffers if b.name in written)
    return Kernel(func.name, func.params, outputs, flat, machine)
