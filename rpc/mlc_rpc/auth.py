"""How both ends of a TCP connection prove that they hold the same key; described in wire.py.

The client proves first, so the board shows nothing made with the key to a client without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from mlc_rpc.errors import Mismatch, RpcError, Unreachable
from mlc_rpc.record import Opener, Sealer
from mlc_rpc.wire import HASH_BYTES, NONCE_BYTES, SAME_RELEASE, VERSION, version_refusal
from mlc_targets.text import shown

QUOTED = 160  # characters quoted from a peer that has proven nothing

Call = Callable[..., Any]  # method, *params -> result; raises Refusal


class Refusal(Exception):
    """The error that answered a greeting; its sender has proven nothing."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text

    @property
    def quoted(self) -> str:
        """The peer's words, shortened and without its advice."""
        words = shown(self.text.partition("; try: ")[0], QUOTED)
        return f'it says "{words}"'


@dataclass(frozen=True, slots=True)
class Hellos:
    """Both ends' versions (major, minor) and nonces."""

    client_version: tuple[int, int]
    board_version: tuple[int, int]
    client_nonce: bytes
    board_nonce: bytes

    def mac(self, key: bytes, purpose: str) -> bytes:
        """The MAC of both hellos for one purpose (wire.py)."""
        mac = blake2b(key=key, digest_size=HASH_BYTES)
        mac.update(purpose.encode().ljust(16, b"\0"))
        for number in (*self.client_version, *self.board_version):
            mac.update(number.to_bytes(4, "big"))
        mac.update(self.client_nonce + self.board_nonce)
        return mac.digest()


def prove(call: Call, key: bytes, board: str) -> tuple[Sealer, Opener]:
    """Says hello, proves the key and lets the board prove it.

    Raises Unreachable (the keys differ), Mismatch. The peer's words are quoted; its advice is
    dropped.
    """
    hellos = _hello(call, board)
    try:
        answer = call("auth", hellos.mac(key, "client proves"))
    except Refusal as error:
        raise _another_key(board, f"the client's key is not taken: {error.quoted}") from error
    if not compare_digest(answer, hellos.mac(key, "board proves")):
        raise _another_key(board, "what answers there does not have this board's key")
    return Sealer(hellos.mac(key, "client sends")), Opener(hellos.mac(key, "board sends"))


def _hello(call: Call, board: str) -> Hellos:
    nonce = os.urandom(NONCE_BYTES)
    try:
        major, minor, theirs = call("hello", *VERSION, nonce)
    except Refusal as error:
        raise Mismatch(
            f"what answers there refuses version {VERSION[0]}.{VERSION[1]} of the wire: "
            f"{error.quoted}",
            board=board,
            attempt=SAME_RELEASE,
        ) from error
    if refusal := version_refusal(major, minor):
        raise Mismatch(refusal[0], board=board, attempt=refusal[1])
    return Hellos(VERSION, (major, minor), nonce, bytes(theirs))


def _another_key(board: str, what: str) -> RpcError:
    return Unreachable(
        what, board=board, attempt="enroll the board again, or copy the key it was started with"
    )
