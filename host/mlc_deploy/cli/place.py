"""The target and the board of a job, when --target or --board is missing.

both given     those
board only     the target that the board reports
target only    local:// if this host runs it, else qemu:// with the target's CPU, or max
neither        this host, on local://

An enrolled board may be given by name; its target is then the one in boards.toml, if any.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mlc_rpc import Unreachable
from mlc_rpc.transport import SCHEMES, LocalUrl, QemuUrl, parse_url
from mlc_targets import Target, TargetError, board_names, qemu_cpu
from mlc_targets.caches import Cache, caches_for, caches_of

from ..board.enrolled import Enrolled, enrolled_boards
from .options import Misuse

if TYPE_CHECKING:
    from ..predict.calibration import Calibration

NONE = "none"


def choose(target: Target | None, board: str | None) -> tuple[Target | None, str | None]:
    """The target (None: ask the board) and the board's URL (None: compile only). Raises Misuse."""
    if board == NONE:
        return target or Target("host"), None
    if board is None:
        if target is None:
            return Target("host"), "local://"
        return target, "local://" if runs_here(target) else f"qemu://{qemu_cpu(target)}"
    known = located(board)
    if known.target and target is None:
        target = Target(known.target)
    board = known.url
    if target is None and is_local(board):
        return Target("host"), board  # it knows more features than the runtime
    return target, board


def simulated(target: Target | None, url: str, own: Calibration | None = None) -> tuple[Cache, ...]:
    """The caches that an emulated board simulates for a prediction: those of the target's core, or
    of the core that the user's board was calibrated with."""
    if target is None or not isinstance(parse_url(url), QemuUrl):
        return ()
    return caches_of(own.base.l1_kib) if own else caches_for(target.mcpu)


def located(board: str) -> Enrolled:
    """The board with this URL, or with this name in the user's boards.toml. Raises Misuse."""
    known = {} if "://" in board else enrolled_boards()
    return known.get(board) or Enrolled(checked(board, known))


def runs_here(target: Target) -> bool:
    """Whether this machine's own runtime can run the target's code."""
    if sys.platform != "linux":
        return False
    from mlc_rpc.local import local_machine

    try:
        host = Target("host")
        same = target.arch == local_machine()
    except (Unreachable, TargetError):
        return False
    return same and set(target.required_features) <= host.features


def is_local(board: str) -> bool:
    return "://" in board and parse_url(checked(board)) == LocalUrl()


def checked(board: str, names: Collection[str] = ()) -> str:
    """The board if it is a URL. Raises Misuse for anything else, with the nearest of `names`."""
    if "://" in board:
        try:
            parse_url(board)
        except Unreachable as error:
            raise Misuse(error.what, where=f"--board {board}", mend=error.attempt) from None
        return board
    if board.lower() in board_names():
        raise Misuse(
            f"'{board}' is a kind of board, not an address",
            where=f"--board {board}",
            mend=f"--target {board} --board ssh://[user@]host[:port]",
        )
    raise Misuse(
        f"unknown board '{board}'",
        where=f"--board {board}",
        mend=" or ".join(get_close_matches(board, names)) or f"one of {', '.join(SCHEMES)}, {NONE}",
    )
