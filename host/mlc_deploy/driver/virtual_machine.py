"""A compiled model on a board, as functions of arrays by name.

    ex = mlc.compile(module, target)
    vm = mlc.VirtualMachine(ex, "local://")
    y = vm["main"](x)
    print(vm.time_evaluator("main", number=100)(x).median)

These are the names of TVM's virtual machine for `Session.load` and `RemoteModule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.closing import Closing

from ..board.connect import connect
from ..errors import InputError

if TYPE_CHECKING:
    from mlc_rpc import Session, Timing

    from .compile import CompiledModel

Array = NDArray[Any]
MAIN = "main"


class VirtualMachine(Closing):
    """A model that is loaded on a board. device: a session, or a board's URL; with a URL the
    machine opens a session, and `close` or the end of a `with` ends it."""

    def __init__(self, exec: CompiledModel, device: Session | str = "local://") -> None:
        self._owns_session = isinstance(device, str)
        self.session: Session = connect(device) if isinstance(device, str) else device
        self._exec = exec
        self._names = [param.name for param in exec.reference.params]
        self.module = self.session.load(exec)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The function `name`. It takes arrays by position or by name and returns its output, or a
        tuple of them. Raises InputError if the model has no such function."""
        self._require(name)

        def run(*args: Any, **named: Any) -> Any:
            outputs = tuple(self.module.run(self._inputs(args, named)).values())
            return outputs[0] if len(outputs) == 1 else outputs

        return run

    def time_evaluator(
        self, func_name: str, dev: object = None, **options: Any
    ) -> Callable[..., Timing]:
        """A function of the same arrays that times the model. `options` are those of
        RemoteFunction.time_evaluator: number, repeat, min_repeat_ms … dev is ignored: it is the
        board."""
        self._require(func_name)
        return lambda *args, **named: self.module.time(self._inputs(args, named), **options)

    def close(self) -> None:
        """Ends a session that the machine opened; from another one it unloads the model."""
        if self._owns_session:
            self.session.close()
        else:
            self.module.close()

    def _require(self, name: str) -> None:
        known = (MAIN, self._exec.name)
        if name not in known:
            raise InputError(f"the compiled module has no function '{name}'", mend=f'"{known[0]}"')

    def _inputs(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Array]:
        if len(args) > len(self._names):
            raise InputError(
                f"{len(args)} inputs are given, and the model takes {len(self._names)}",
                mend=", ".join(self._names),
            )
        given = {**dict(zip(self._names, args, strict=False)), **named}
        return {name: np.asarray(array) for name, array in given.items()}
