"""The bytes of a saved model: a head, a manifest, blobs. device_runtime/src/artifact.h has the full
layout, and its reader in C refuses the same files.

A file that is shorter, longer, or differs in one bit is refused, as is another format version.
Nothing is copied: blobs are views of the mapped file.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack

from ..errors import ArtifactError
from ..files.limits import MANIFEST_BYTES, MANIFEST_DEPTH
from ..files.mapped import Buffer, pieces
from ..files.outside import open_file
from ..files.unfinished import replacing

MAGIC = b"\x89MLC\r\n\x1a\n"
VERSION = 2
ALIGNMENT = 4096  # of blobs; with larger pages, mapping a blob also maps bytes before it
HEAD = 48  # bytes in front of the manifest
MAX_BLOBS = 64  # of a file: objects and weights
HASH_BYTES = 32
COPY_AGAIN = "copy the file again, or save the model again"


class Blob(NamedTuple):
    """A blob; its name is its hash."""

    name: bytes
    content: memoryview


def digest(data: Buffer) -> bytes:
    """BLAKE2b-256: the name of a blob, here and on a board."""
    found = blake2b(digest_size=HASH_BYTES)
    for piece in pieces(data):
        found.update(piece)
    return found.digest()


def is_saved(path: Path) -> bool:
    """Whether a file begins like a saved model. Raises OSError."""
    with open_file(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def write_file(path: Path, manifest: Mapping[str, Any], blobs: Sequence[Buffer]) -> None:
    """Writes a file; it appears whole or not at all. Equal arguments give equal bytes. Adds the
    manifest's "blobs". Raises OSError."""
    table = [[len(blob), digest(blob), zlib.crc32(blob)] for blob in blobs]
    packed = msgpack.packb({**manifest, "blobs": table})
    assert len(packed) <= MANIFEST_BYTES.most and len(blobs) <= MAX_BLOBS
    head = MAGIC + VERSION.to_bytes(4, "little") + len(packed).to_bytes(4, "little")
    with replacing(path) as part, open(part, "wb") as file:
        file.write(head + digest(packed) + packed)
        for blob in blobs:
            file.write(bytes(-file.tell() % ALIGNMENT))
            for piece in pieces(blob):
                file.write(piece)


def read_file(path: Path) -> tuple[dict[str, Any], list[Blob]]:
    """The manifest, without "blobs", and the blobs. Their hashes are checked, the manifest's other
    entries are not. Raises ArtifactError, OSError."""
    with open_file(path) as file:
        data = memoryview(_mapped(file))
    return parse(data, str(path))


def _mapped(file: BinaryIO) -> bytes | mmap.mmap:
    if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
        return b""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def parse(data: memoryview, where: str) -> tuple[dict[str, Any], list[Blob]]:
    """As read_file, from a file's bytes; `where` is its name in messages."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise ArtifactError(
            "this is not a saved model", where=where, mend="mlc-deploy MODEL --save model.mlc"
        )
    if len(data) < HEAD:
        raise ArtifactError("the file ends within its header", where=where, mend=COPY_AGAIN)
    version, size = (int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
    if version != VERSION:
        raise ArtifactError(
            f"the file has format version {version}, this mlc-deploy reads version {VERSION}",
            where=where,
            mend="save and run it with the same version of mlc-deploy",
        )
    end = HEAD + size
    if size > MANIFEST_BYTES.most or end > len(data):
        raise ArtifactError(
            f"the file ends within its manifest of {size} bytes", where=where, mend=COPY_AGAIN
        )
    if digest(data[HEAD:end]) != bytes(data[16:HEAD]):
        raise ArtifactError("the file's manifest is damaged", where=where, mend=COPY_AGAIN)
    manifest = _unpacked(data[HEAD:end], where)
    return manifest, _blobs(data, end, manifest.pop("blobs", None), where)


def _unpacked(packed: memoryview, where: str) -> dict[str, Any]:
    try:
        manifest = msgpack.unpackb(packed, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError):
        raise disorder("not msgpack", where) from None
    if not isinstance(manifest, dict) or not all(isinstance(key, str) for key in manifest):
        raise disorder("not a map of names", where)
    if _depth(manifest) > MANIFEST_DEPTH.most:
        raise disorder(f"nested more than {MANIFEST_DEPTH.most} levels deep", where)
    return manifest


def _depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(_depth, value.values()), default=0)
        case list():
            return 1 + max(map(_depth, value), default=0)
        case _:
            return 0


def _blobs(data: memoryview, at: int, table: object, where: str) -> list[Blob]:
    if not isinstance(table, list) or len(table) > MAX_BLOBS:
        raise disorder("its table of blobs is missing or too long", where)
    blobs: list[Blob] = []
    for number, row in enumerate(table):
        match row:
            case [int(size), bytes(name), int(crc)] if size >= 0 and len(name) == HASH_BYTES:
                begin = at + -at % ALIGNMENT
            case _:
                raise disorder(f"blob {number} has no size, hash and checksum", where)
        if begin + size > len(data):
            raise ArtifactError(
                f"the file ends before its blob {number} of {size} bytes",
                where=where,
                mend=COPY_AGAIN,
            )
        blob = data[begin : begin + size]
        if any(data[at:begin]) or digest(blob) != name or zlib.crc32(blob) != crc:
            raise ArtifactError(
                f"the file's blob {number} is damaged", where=where, mend=COPY_AGAIN
            )
        blobs.append(Blob(name, blob))
        at = begin + size
    if at != len(data):
        raise ArtifactError(
            f"the file has {len(data) - at} bytes more than its manifest lists",
            where=where,
            mend=COPY_AGAIN,
        )
    return blobs


def disorder(what: str, where: str) -> ArtifactError:
    """The error for an intact manifest that no mlc-deploy wrote."""
    return ArtifactError(f"the file's manifest is invalid: {what}", where=where)
