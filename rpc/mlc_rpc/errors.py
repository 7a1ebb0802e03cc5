"""What can go wrong between the client and a board.

    RpcError
    ├── Unreachable      no session came about: no such program, host, CPU, key or permission
    │   └── Mismatch     the board answered, but speaks another version of the wire
    ├── Lost             the session ended under the caller: the board's program or the link died
    │   └── Silent       nothing came from the board for seconds, and nothing arrived there
    ├── Timeout          a deadline passed, on the board or here
    ├── Crashed          a kernel died of a signal; the session and its tensors live on
    ├── Refused          the board understood and said no: wrong machine, feature, argument, busy
    ├── OutOfMemory      the board has not the memory that was asked for
    └── ProtocolError    one side sent what the wire does not allow: a mistake in the programs

`str(error)` says what, then where ("on"), then how to mend it ("try").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlc_rpc.wire import SAME_RELEASE
from mlc_targets.text import paragraph


class RpcError(Exception):
    """`board` and `method` say where ("" if unknown), `attempt` how to mend it. Their text may come
    from outside, so it is escaped.

    `signal`, `kernel` and `layer` are what the board says of a failed kernel ("" if none). `call`
    is the index in the model's call table (-1 if none).
    """

    def __init__(
        self,
        what: str,
        *,
        board: str = "",
        method: str = "",
        attempt: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        self.what = what = paragraph(what)
        self.board = board = paragraph(board)
        self.method = method
        self.attempt = attempt = paragraph(attempt)
        self.details = dict(details or {})
        self.signal = str(self.details.get("signal", ""))
        self.kernel = str(self.details.get("kernel", ""))
        self.layer = str(self.details.get("layer", ""))
        call = self.details.get("call", -1)
        self.call = call if isinstance(call, int) else -1
        where = ", ".join(filter(None, (board, method and f"method {method}")))
        lines = [what]
        if where:
            lines.append(f"  on:  {where}")
        if attempt:
            lines.append(f"  try: {attempt}")
        super().__init__("\n".join(lines))


class Unreachable(RpcError):
    """No session came about."""


class Mismatch(Unreachable):
    """The board's program speaks a version of the wire that this client does not."""


class Lost(RpcError):
    """The session ended while in use; its tensors and modules on the board are gone."""


class Silent(Lost):
    """The link is dead, or the board hangs or has no power."""


class Timeout(RpcError):
    """A deadline passed."""


class Crashed(RpcError):
    """A signal killed a kernel or its worker process."""


class Refused(RpcError):
    """The board understood the request and said no."""


class OutOfMemory(RpcError):
    """The board lacks the memory that was asked for."""


class ProtocolError(RpcError):
    """One side sent what the wire does not allow."""


# The exception of each of wire.ERROR_KINDS, and the advice.
KINDS: dict[str, tuple[type[RpcError], str]] = {
    "protocol": (ProtocolError, SAME_RELEASE),
    "refused": (Refused, ""),
    "crashed": (Crashed, "build the kernel with bound checks; tensors and modules are still there"),
    "timeout": (Timeout, "a larger timeout, if it is slow rather than stuck"),
    "memory": (OutOfMemory, "close tensors that are no longer used, or a smaller model"),
}

# The advice for each status of a kernel (mlc_abi.h) that its arguments are the reason of.
STATUS_ADVICE = {
    "2": "arguments whose sizes fit each other; tensors and modules are still there",
    "3": "inputs of smaller sizes, or a larger bound where it was compiled (--bind 'NAME<=N'); "
    "tensors and modules are still there",
    "4": "inputs whose indices are within the axis that they index; tensors and modules are still "
    "there",
}


def advice(kind: str, what: str) -> str:
    """What may help against an error that a board answers. what: its text."""
    status = re.search(r" returned status (\d+)", what)
    return STATUS_ADVICE.get(status[1], KINDS[kind][1]) if status else KINDS[kind][1]
