"""Changes of bytes, of JSON and of archives, from which mutants of files are made."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

WORDS = (0, 1, 2, 3, 4, 7, 8, 127, 255, 1 << 15, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31,
         (1 << 32) - 1)  # fmt: skip
TOKENS = (b"0", b"-1", b"1e999", b"9" * 40, b"\xff\xfe", b"\0", b"[" * 50, b"(" * 50, b"'", b'"',
          b"null", b"true", b"NaN", b"{}", b"[]", b"%s%n", b"\x1b[2J", b"../")  # fmt: skip


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """data with one to four changes: bytes and words replaced, parts cut out, doubled, moved, or
    put in, or its end gone."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not out:
            return b""
        at = rng.randrange(len(out))
        match rng.randrange(9):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + rng.choice((1, 2, 4, 8, 64))]
            case 3:
                out[at:at] = out[at : at + rng.choice((1, 4, 8, 64))]
            case 4:
                other = rng.randrange(len(out))
                out[at:at] = out[other : other + rng.randint(1, 64)]
            case 5:
                out[at : at + rng.choice((0, 1, 4))] = rng.choice(TOKENS)
            case 6 if rng.random() < 0.3:
                del out[at:]
            case _:
                size, form = rng.choice(((2, "<H"), (4, "<I"), (4, ">I"), (8, "<Q")))
                place = at // size * size if rng.random() < 0.5 else at
                if place + size <= len(out):
                    most = (1 << (8 * size)) - 1
                    struct.pack_into(form, out, place, rng.choice(WORDS) & most)
    return bytes(out)


def odd(rng: random.Random) -> Any:
    """A value that a reader may not expect."""
    deep: Any = 0
    for _ in range(rng.choice((5, 300))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return rng.choice(
        (
            None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 1 << 31, 1 << 63, 1 << 70, 10**400,
            float("nan"), float("inf"), "", "x", "\x1b[31m", "\ud800", "a" * 5000, "../../etc",
            [], {}, [None], [[]], {"": None}, [1] * 300, list(range(-3, 9)), deep,
        )
    )  # fmt: skip


def tree_of(value: Any, rng: random.Random) -> Any:
    """A copy of a tree of lists and dicts, with one to three of its values changed."""
    made = [copy.deepcopy(value)]
    for _ in range(rng.randint(1, 3)):
        places = list(_places(made))
        at, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del at[key]
                if not made:
                    return odd(rng)
            case 1:
                other, name = rng.choice(places)
                found = other[name] if name in (range(len(other)) if isinstance(other, list) else
                                                other) else None  # fmt: skip
                at[key] = copy.deepcopy(found)
            case 2 if isinstance(at[key], int | float) and not isinstance(at[key], bool):
                at[key] = rng.choice((at[key] + 1, -at[key], at[key] * 1000, 0, -1.5))
            case 3 if isinstance(at[key], str):
                text = bytes_of(at[key].encode(errors="replace"), rng)
                at[key] = text.decode(errors="replace")
            case _:
                at[key] = odd(rng)
    return made[0]


def _places(value: Any, depth: int = 0) -> Any:
    if depth < 30:
        keys = range(len(value)) if isinstance(value, list) else value
        for key in keys if isinstance(value, list | dict) else ():
            yield value, key
            yield from _places(value[key], depth + 1)


def json_of(data: bytes, rng: random.Random) -> bytes:
    """A JSON text with other values; sometimes other bytes."""
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    text = json.dumps(tree_of(json.loads(data), rng))
    return text.encode(errors="surrogatepass")


def zip_of(
    data: bytes, rng: random.Random, inside: Callable[[str, bytes, random.Random], bytes]
) -> bytes:
    """An archive with one entry changed by `inside`, dropped, doubled, packed or renamed; sometimes
    other bytes."""
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(i.filename, archive.read(i)) for i in archive.infolist()]
    number = rng.randrange(len(entries))
    name, content = entries[number]
    kind = zipfile.ZIP_STORED
    match rng.randrange(10):
        case 0:
            del entries[number]
        case 1:
            entries.append((name + rng.choice(("", ".npy", "/x")), content))
        case 2:
            entries[number] = bytes_of(name.encode(), rng).decode(errors="replace"), content
        case 3:
            kind = zipfile.ZIP_DEFLATED
        case _:
            entries[number] = name, inside(name, content, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name or "x"), content, kind)
    return out.getvalue()


def png_of(data: bytes, rng: random.Random) -> bytes:
    """A PNG with one chunk changed, and its checksum right; sometimes other bytes."""
    if rng.random() < 0.3 or data[:4] != b"\x89PNG":
        return bytes_of(data, rng)
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    number = rng.randrange(len(chunks))
    kind, content = chunks[number]
    if kind == b"IDAT" and rng.random() < 0.5:
        content = zlib.compress(bytes_of(zlib.decompress(content), rng))
    else:
        content = bytes_of(content or b"\0", rng)
    chunks[number] = kind, content
    if rng.random() < 0.2:
        chunks.insert(number, (rng.choice((b"PLTE", b"tRNS", b"iCCP", b"acTL", b"zTXt")), content))
    made = data[:8]
    for kind, content in chunks:
        made += len(content).to_bytes(4) + kind + content
        made += zlib.crc32(kind + content).to_bytes(4)
    return made


def mapping_of(value: Mapping[str, Any], rng: random.Random) -> Any:
    """As tree_of, of what msgpack can hold."""
    return _plain(tree_of(dict(value), rng))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {_plain(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case bool() | None:
            return value
        case int() if not -(1 << 63) <= value < 1 << 64:
            return float(1 << 63)
        case str():
            return value.encode(errors="replace").decode()
    return value
