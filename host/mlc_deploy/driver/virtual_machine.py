"""A compiled model on a board as functions by name, which take and give arrays.

    ex = mlc.compile(module, target)
    vm = mlc.VirtualMachine(ex, "local://")
    y = vm["main"](x)
    print(vm.time_evaluator("main", number=100)(x).median)

The names of TVM's virtual machine for what `Session.load` and `RemoteModule` do.
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
    """A model that is loaded on a board. device: a session, or a board's URL, to which it connects,
    and from which it leaves with `close` or at the end of a `with`."""

    def __init__(self, exec: CompiledModel, device: Session | str = "local://") -> None:
        self._own = connect(device) if isinstance(device, str) else None
        self.session: Session = self._own or device  # type: ignore[assignment]
        self._exec = exec
        self._names = [param.name for param in exec.reference.params]
        self.module = self.session.load(exec)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The function of arrays: inputs by position or by name; its output, or a tuple of them.
        Raises InputError for a name that is not the model's function."""
        self._require(name)

        def run(*args: Any, **named: Any) -> Any:
            outputs = tuple(self.module.run(self._inputs(args, named)).values())
            return outputs[0] if len(outputs) == 1 else outputs

        return run

    def time_evaluator(
        self, func_name: str, dev: object = None, **options: Any
    ) -> Callable[..., Timing]:
        """A function of the same arrays that times it; `options` are RemoteFunction's
        time_evaluator's: number, repeat, min_repeat_ms … dev is not looked at: it is the board."""
        self._require(func_name)
        return lambda *args, **named: self.module.time(self._inputs(args, named), **options)

    def close(self) -> None:
        """Leaves the board, where the machine connected to it; unloads the model elsewhere."""
        if self._own is not None:
            self._own.close()
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
