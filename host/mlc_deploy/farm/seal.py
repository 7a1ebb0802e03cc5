"""Calls that only members of a farm can read, and results that only the caller can.

A caller makes a key pair for each call and agrees with the members' key (X25519, RFC 7748) on two
keys of ChaCha20-Poly1305 (RFC 8439): one for the call, one for its result. Whoever carries them,
the scheduler and everybody who asks it, sees lengths only. Whoever has not got the members' public
key can make no call: it is given to users, and never sent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32  # of X25519, private or public
NONCE_BYTES = 12  # of ChaCha20-Poly1305
CALL, RESULT = b"mlc-deploy farm call", b"mlc-deploy farm result"


class Unsealable(Exception):
    """Bytes that were not sealed for us, or were changed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The keys of one call. `mine`: the caller's public key, which goes with the call."""

    mine: bytes
    call: bytes
    result: bytes

    def seal_call(self, plain: bytes) -> bytes:
        return self.mine + _seal(self.call, plain)

    def seal_result(self, plain: bytes) -> bytes:
        return _seal(self.result, plain)

    def open_result(self, sealed: bytes) -> bytes:
        """Raises Unsealable."""
        return _open(self.result, sealed)


def new_private() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def calling(members: bytes) -> Pair:
    """The keys of a further call. members: their public key."""
    own = X25519PrivateKey.generate()
    mine = own.public_key().public_bytes_raw()
    return _agreed(own, members, mine, members)


def opened_call(private: bytes, sealed: bytes) -> tuple[bytes, Pair]:
    """A call that a member got, and the keys for its result. Raises Unsealable."""
    mine, rest = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    own = X25519PrivateKey.from_private_bytes(private)
    try:
        pair = _agreed(own, mine, mine, own.public_key().public_bytes_raw())
    except ValueError:  # too short, or a point of small order
        raise Unsealable from None
    return _open(pair.call, rest), pair


def _agreed(own: X25519PrivateKey, other: bytes, caller: bytes, members: bytes) -> Pair:
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))

    def derived(purpose: bytes) -> bytes:
        of = HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose + caller + members)
        return of.derive(shared)

    return Pair(caller, derived(CALL), derived(RESULT))


def _seal(key: bytes, plain: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, None)


def _open(key: bytes, sealed: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        raise Unsealable from None
