"""Primitives that note something on loops and blocks, for lowering to heed."""

from __future__ import annotations

from typing import Any

from ..ir import Block, For, PrimFunc, with_fields
from ..ir.pragmas import DIM_ALIGN, align_defect, defect
from .tree import block_at, find_block, path_to, refuse, replace


def annotate(func: PrimFunc, at: str, key: str, value: Any) -> PrimFunc:
    """Adds (or with None removes) an annotation of a loop or block."""
    path = path_to(
        func,
        lambda s: (isinstance(s, Block) and s.name == at) or (isinstance(s, For) and s.name == at),
    )
    if path is None:
        refuse("annotate", f"no loop or block '{at}'")
    target = path[-1]
    assert isinstance(target, (Block, For))
    why, mend = defect(key, value) if value is not None else ("", "")
    if why:
        refuse("annotate", why, target, mend)
    notes = {**target.annotations, key: value}
    if value is None:
        del notes[key]
    return replace(func, target, with_fields(target, annotations=notes))


def storage_align(
    func: PrimFunc, block: str, index: int, axis: int, factor: int, offset: int
) -> PrimFunc:
    """Notes on a block that, of the scratch buffer number `index` that it writes, the stride of
    dimension `axis` is to be a multiple of `factor` plus `offset`, in elements."""
    primitive = "storage_align"
    target = block_at(find_block(func, block, primitive))
    buffers = list(dict.fromkeys(w.buffer for w in target.writes))
    if not 0 <= index < len(buffers):
        refuse(primitive, f"block '{block}' writes no buffer number {index}", target)
    buffer = buffers[index]
    if buffer in func.buffers:
        refuse(
            primitive,
            f"'{buffer.name}' is an argument, whose memory the caller gives",
            target,
            f"cache_write '{buffer.name}', and storage_align the copy",
        )
    if not -buffer.ndim <= axis < buffer.ndim:
        refuse(primitive, f"'{buffer.name}' has no dimension {axis}", target)
    if why := align_defect(factor, offset):
        refuse(primitive, why, target)
    rows = [r for r in target.annotations.get(DIM_ALIGN, ()) if r[:2] != [index, axis]]
    rows.append([index, axis % buffer.ndim, factor, offset])
    return annotate(func, block, DIM_ALIGN, rows)
