"""Many kernels in one object, called on a board and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_deploy.codegen import Library, compile_kernels
from mlc_targets import Target
from tests.schedule.draws import Drawn, compare

if TYPE_CHECKING:
    from mlc_rpc import Session


def check_on_board(board: Session, drawn: Sequence[Drawn], target: Target) -> Library:
    """Each schedule's kernel gives the unscheduled program's numbers on the board."""
    kernels = [d.kernel(f"kernel_{n}", target) for n, d in enumerate(drawn)]
    library = compile_kernels("drawn", kernels, target)
    stored = board.put(library.object_bytes)
    module = board.load(library)
    for n, d in enumerate(drawn):
        tensors = [board.tensor(a) for a in d.inputs]
        try:
            module[f"kernel_{n}"](*tensors)
        except Exception as error:
            raise AssertionError(f"on the board: {error}\n{d}") from error
        compare(d, [t.numpy() for t in tensors], f"on the board\n{kernels[n].body}")
        for tensor in tensors:
            tensor.close()
    module.close()
    board.forget(stored)
    return library
