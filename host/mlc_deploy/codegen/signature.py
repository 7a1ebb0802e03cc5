"""A kernel's arguments besides its tensors: scalars, and a workspace for its scratch buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_targets.object_format import ALIGNMENT

from ..arith import expr_bounds, linear
from ..errors import CodegenError
from ..ir import LEFT_OUT, MOST, Buffer, Dim, Expr, Var, dtype_of
from ..lower import WORKSPACE, Kernel


def scratch_layout(kernel: Kernel) -> tuple[dict[Buffer, int], int]:
    """Offsets of the kernel's global scratch buffers in its workspace, and its bytes."""
    offsets: dict[Buffer, int] = {}
    total = 0
    planned = kernel.body.attrs.get(WORKSPACE, {})
    scratch = [b for b in kernel.scratch if b.scope == "global"]
    for buffer in sorted(scratch, key=lambda b: b.name not in planned):  # unplanned ones last
        offsets[buffer] = planned.get(buffer.name, total)
        size = elements(kernel, buffer) * dtype_of(buffer.dtype).bytes
        total = max(total, offsets[buffer] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets, total


def elements(kernel: Kernel, buffer: Buffer) -> int:
    """The largest number of elements of a flat scratch buffer; CodegenError where it is unknown."""
    (size,) = (most(kernel, n) for n in buffer.shape)
    if not isinstance(size, int):
        raise CodegenError(
            f"scratch buffer '{buffer.name}' has {size} elements, which is not a constant",
            where=kernel.name,
            mend="compute it inside a loop whose iterations need a constant part of it",
        )
    return size


def sharing(kernel: Kernel, workspace: Mapping[Buffer, int]) -> set[Buffer]:
    """The buffers that share bytes of the workspace with another, and so are not `restrict`."""

    def end(b: Buffer) -> int:
        return workspace[b] + elements(kernel, b) * dtype_of(b.dtype).bytes

    return {
        a
        for a in workspace
        for b in workspace
        if a is not b and workspace[a] < end(b) and workspace[b] < end(a)
    }


def most(kernel: Kernel, extent: Dim) -> Dim:
    """The largest value of an extent whose dimensions are bounded; other extents as they are."""
    bounds = kernel.body.attrs.get(MOST)
    if isinstance(extent, int) or not bounds:
        return extent
    known = {v: (0, bounds[v.name]) for v in scalars_of(kernel) if v.name in bounds}
    high = expr_bounds(extent, known)[1]
    return extent if high is None else max(int(high), 0)


def bounds_of(kernel: Kernel) -> tuple[int, ...]:
    """The largest values of the scalars, where the kernel has them."""
    bounds = kernel.body.attrs.get(MOST, {})
    return tuple(bounds[v.name] for v in scalars_of(kernel)) if bounds else ()


def left_out_of(kernel: Kernel, number: int) -> tuple[str, ...]:
    """The names of the buffers that one of the kernels of a shared function does not have."""
    names: Sequence[tuple[str, ...]] = kernel.body.attrs.get(LEFT_OUT, ())
    return names[number] if names else ()


def scalars_of(kernel: Kernel) -> tuple[Var, ...]:
    """Symbolic dimensions and scalar parameters, in the order of mlc_args.scalars."""
    found: dict[Var, None] = {}
    for param in kernel.params:
        if isinstance(param, Var):
            found[param] = None
        else:
            for extent in (*param.shape, *(param.strides or ())):
                if isinstance(extent, Expr):
                    for atom in linear(extent, {}).terms:
                        if isinstance(atom, Var):
                            found[atom] = None
    return tuple(found)
