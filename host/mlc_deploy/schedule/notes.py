"""Primitives that annotate loops and blocks for lowering."""

from __future__ import annotations

from typing import Any

from ..ir import Block, Buffer, For, PrimFunc, Stmt, with_fields
from ..ir.pragmas import DIM_ALIGN, DOUBLE_BUFFER, align_defect, defect
from .tree import block_at, blocks_in, find_block, find_node, readers, refuse, replace


def annotate(func: PrimFunc, at: str, key: str, value: Any) -> PrimFunc:
    """Adds (or with None removes) an annotation of a loop or block."""
    path = find_node(func, at, "annotate")
    target = path[-1]
    assert isinstance(target, (Block, For))
    why, mend = defect(key, value) if value is not None else ("", "")
    if why:
        refuse("annotate", why, target, mend)
    if key == DOUBLE_BUFFER and value is not None and isinstance(target, Block):
        _require_turns(func, path, target, value)
    notes = {**target.annotations, key: value}
    if value is None:
        del notes[key]
    return replace(func, target, with_fields(target, annotations=notes))


def _require_turns(func: PrimFunc, path: list[Stmt], block: Block, index: int) -> None:
    """Refuses unless a loop is around the block and all readers of the scratch buffer that it
    writes."""
    buffer = _scratch("double_buffer", func, block, index)
    around = [s for s in path if isinstance(s, For)]
    users = [b for b in readers(func, buffer) if b is not block]
    if not any(all(u in set(blocks_in(loop.body)) for u in users) for loop in around):
        refuse(
            "double_buffer",
            f"'{buffer.name}' is not computed in a loop of what reads it",
            block,
            "compute_at first",
        )


def _scratch(primitive: str, func: PrimFunc, block: Block, index: int) -> Buffer:
    """The scratch buffer number `index` that a block writes."""
    buffers = list(dict.fromkeys(w.buffer for w in block.writes))
    if not 0 <= index < len(buffers):
        refuse(primitive, f"block '{block.name}' writes no buffer number {index}", block)
    buffer = buffers[index]
    if buffer in func.buffers:
        refuse(
            primitive,
            f"'{buffer.name}' is an argument, whose memory the caller gives",
            block,
            f"cache_write '{buffer.name}', and {primitive} the copy",
        )
    return buffer


def storage_align(
    func: PrimFunc, block: str, index: int, axis: int, factor: int, offset: int
) -> PrimFunc:
    """Annotates a block: in the scratch buffer number `index` that it writes, the stride of
    dimension `axis` becomes a multiple of `factor` plus `offset`, in elements."""
    primitive = "storage_align"
    target = block_at(find_block(func, block, primitive))
    buffer = _scratch(primitive, func, target, index)
    if not -buffer.ndim <= axis < buffer.ndim:
        refuse(primitive, f"'{buffer.name}' has no dimension {axis}", target)
    if why := align_defect(factor, offset):
        refuse(primitive, why, target)
    rows = [r for r in target.annotations.get(DIM_ALIGN, ()) if r[:2] != [index, axis]]
    rows.append([index, axis % buffer.ndim, factor, offset])
    return annotate(func, block, DIM_ALIGN, rows)
