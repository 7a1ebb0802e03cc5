"""What must hold of a schedule of stages: in every form that it is lowered to, the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen.signature import scalars_of
from mlc_deploy.ir import Buffer, Var, with_fields
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import Kernel
from mlc_deploy.schedule.stages import stage_program
from mlc_rpc import Session

Array = NDArray[Any]


def small_integers(shape: Sequence[int], seed: int, dtype: str = "float32") -> Array:
    """Data whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, tuple(shape)).astype(dtype)


def run_flat(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Flat loops in the interpreter; symbolic dimensions are those of the arrays."""
    declared = {p.name: p for p in kernel.params if isinstance(p, Buffer)}
    values = {
        d: extent
        for p, a in zip(kernel.body.buffers, arrays, strict=True)
        for d, extent in zip(declared[p.name].shape, a.shape, strict=True)
        if isinstance(d, Var)
    }
    scalars = scalars_of(kernel)
    flat = with_fields(kernel.body, params=(*scalars, *kernel.body.buffers))
    run(flat, *(values[v] for v in scalars), *(a.reshape(-1) for a in arrays))


def check(
    s: te.StageSchedule,
    args: Sequence[te.Tensor],
    inputs: Sequence[Array],
    reference: Callable[..., Array],
    board: Session | None = None,
    target: str = "host",
    more: Sequence[Sequence[Array]] = (),
) -> str:
    """Holds the last argument against reference(*inputs), interpreted as blocks, as simple loops
    and as flat loops, and compiled where there is a board; and the same for each of `more` inputs.
    The simple loops as text."""
    blocks, flat = stage_program(s, args), mlc.lower(s, args)
    simple = mlc.lower(s, args, simple_mode=True)
    forms: dict[str, Callable[[list[Array]], object]] = {
        "blocks": lambda arrays: run(blocks, *arrays),
        "simple loops": lambda arrays: run(simple, *arrays),
        "flat loops": lambda arrays: run_flat(flat, arrays),
    }
    if board is not None:
        library = mlc.build(s, args, target)
        forms["compiled"] = lambda arrays: run_on(board, library, arrays)
    for given in (inputs, *more):
        wanted = reference(*given)
        for what, runs in forms.items():
            arrays = [*given, np.full_like(wanted, 77)]
            runs(arrays)
            np.testing.assert_array_equal(arrays[-1], wanted, err_msg=f"{what}\n{simple}")
    return str(simple)


def run_on(board: Session, library: mlc.Library, arrays: list[Array]) -> None:
    """The library's kernel on a board; the last array becomes the last tensor."""
    tensors = [board.tensor(a) for a in arrays]
    board.load(library)[library.kernels[0].name](*tensors)
    arrays[-1] = tensors[-1].numpy()
