"""The file of a saved model: what is written is read, and nothing else is."""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy.artifact.format import (
    ALIGNMENT,
    HEAD,
    MAGIC,
    VERSION,
    digest,
    parse,
    read_file,
    write_file,
)
from mlc_deploy.artifact.saved import saved_model

Golden = Callable[..., None]
BLOBS = [b"first" * 100, b"", bytes(range(256)) * 40]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlc"
    write_file(path, {"name": "m"}, BLOBS)
    return path


def test_what_is_written_is_read(file: Path) -> None:
    manifest, blobs = read_file(file)
    assert manifest == {"name": "m"}
    assert [bytes(blob.content) for blob in blobs] == BLOBS
    assert [blob.name for blob in blobs] == [digest(content) for content in BLOBS]
    data = file.read_bytes()
    assert data.index(BLOBS[0]) % ALIGNMENT == data.index(BLOBS[2]) % ALIGNMENT == 0
    assert len(data) == data.index(BLOBS[2]) + len(BLOBS[2])


def test_blobs_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "large.mlc"
    write_file(path, {}, [np.ones(1 << 20, np.uint8).data])
    _, (blob,) = read_file(path)
    assert isinstance(blob.content.obj, mmap.mmap) and blob.content.readonly


def test_same_bytes_again_and_a_mode_as_of_other_files(file: Path, tmp_path: Path) -> None:
    again, plain = tmp_path / "again.mlc", tmp_path / "plain"
    write_file(again, {"name": "m"}, BLOBS)
    plain.touch()
    assert again.read_bytes() == file.read_bytes()
    assert stat.S_IMODE(again.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_file_appears_whole_or_not_at_all(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(TypeError):
        write_file(file, {"name": "m"}, [b"fine", None])  # type: ignore[list-item]
    with pytest.raises(OSError):
        write_file(file.parent / "nowhere" / "model.mlc", {}, [])
    assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


def test_every_byte_counts(file: Path) -> None:
    data = bytearray(file.read_bytes())
    step = 31  # through the blobs, which a hash covers as a whole
    for at in (*range(ALIGNMENT // 8), *range(ALIGNMENT // 8, len(data), step)):
        data[at] ^= 1 << at % 8
        with pytest.raises(mlc.ArtifactError):
            parse(memoryview(data), "file")
        data[at] ^= 1 << at % 8
    parse(memoryview(data), "file")


@given(data=st.data())
def test_mutations_are_refused(digits_file: Path, data: st.DataObject) -> None:
    original = digits_file.read_bytes()
    mutant = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutant) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert", "delete", "copy"])):
            case "set":
                mutant[at] = data.draw(st.integers(0, 255))
            case "cut":
                del mutant[at + 1 :]
            case "insert":
                mutant[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del mutant[at : at + data.draw(st.integers(1, 5000))]
                mutant = mutant or bytearray(b"\0")
            case "copy":
                other = data.draw(st.integers(0, len(mutant) - 1))
                mutant[at : at + 64] = mutant[other : other + 64]
    if mutant == original:
        return
    with pytest.raises(mlc.ArtifactError):
        manifest, blobs = parse(memoryview(mutant), "mutant")
        saved_model(manifest, blobs, "mutant")


UNREAD = ("name", "writer", "level", "precision")  # any text
KEYS = st.sampled_from([*UNREAD, "programs", "target", "machine", "features", "object", "weights",
                        "indices"])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 40) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_hostile_manifests_are_refused(digits_file: Path, data: st.DataObject) -> None:
    """With hashes that are right, as whoever makes a file on purpose would have them."""
    manifest, blobs = read_file(digits_file)
    program = dict(manifest["programs"][0])
    where = data.draw(st.sampled_from([manifest, program]))
    key = data.draw(st.sampled_from(sorted(where)))
    before = where[key]
    if data.draw(st.booleans()):
        del where[key]
    else:
        where[key] = data.draw(VALUES)
    if where is program:
        manifest["programs"] = [program]
    unread = key in UNREAD and isinstance(where.get(key), str)
    after = where.get(key)
    same = after == before and type(after) is type(before)  # True is 1, too
    if unread or same or (key == "indices" and after == {}):
        saved_model(manifest, blobs, "hostile")
        return
    try:
        found = saved_model(manifest, blobs, "hostile")
    except mlc.ArtifactError:
        return
    assert key == "indices" and found.index_extents == where[key]


def packed(manifest: Any, *blobs: bytes) -> bytes:
    """A file's bytes with right hashes around whatever the manifest says."""
    data = manifest if isinstance(manifest, bytes) else msgpack.packb(manifest)
    head = MAGIC + VERSION.to_bytes(4, "little") + len(data).to_bytes(4, "little") + digest(data)
    made = head + data
    for blob in blobs:
        made += bytes(-len(made) % ALIGNMENT) + blob
    return made


def test_refusals(golden: Golden) -> None:
    blob = b"content"
    row = [len(blob), digest(blob), zlib.crc32(blob)]
    good = packed({"blobs": [row]}, blob)
    cases: dict[str, bytes] = {
        "empty": b"",
        "of another kind": b"\x7fELF" + bytes(100),
        "sent as text": good.replace(b"\r\n", b"\n"),
        "cut in its head": good[:20],
        "of another version": good[:8] + (VERSION + 1).to_bytes(4, "little") + good[12:],
        "cut in its manifest": good[: HEAD + 5],
        "with a damaged manifest": good[:HEAD] + b"\xff" + good[HEAD + 1 :],
        "cut before its blob": good[: len(good) - len(blob)],
        "cut in its blob": good[:-1],
        "with a damaged blob": good[:-1] + b"!",
        "with something between": good[: -len(blob) - 1] + b"!" + good[-len(blob) :],
        "with more after it": good + b"!",
        "manifest is not msgpack": packed(b"\xc1"),
        "manifest is followed by more": packed(b"\x80\x80"),
        "manifest is a list": packed([]),
        "manifest has numbers for keys": packed({1: 2}),
        "manifest is deep": packed({"blobs": [[[[[[[[[[]]]]]]]]]]}),
        "manifest has no blobs": packed({}),
        "manifest has many blobs": packed({"blobs": [row] * 65}),
        "manifest has a negative size": packed({"blobs": [[-1, digest(b""), 0]]}),
        "manifest has a huge size": packed({"blobs": [[1 << 63, digest(b""), 0]]}),
        "manifest has no checksum": packed({"blobs": [row[:2]]}, blob),
        "manifest has another checksum": packed({"blobs": [[*row[:2], 0]]}, blob),
        "manifest has a short hash": packed({"blobs": [[7, b"?", 0]]}, blob),
    }
    told = []
    for name, data in cases.items():
        with pytest.raises(mlc.ArtifactError) as caught:
            parse(memoryview(data), "model.mlc")
        told.append(f"# {name}\n{caught.value}")
    golden("\n\n".join(told), "artifact_refusals")


def test_contradictions(digits_file: Path, golden: Golden) -> None:
    """Manifests that do not go with the blobs that they name."""
    manifest, blobs = read_file(digits_file)
    program = manifest["programs"][0]
    changes: list[dict[str, Any]] = [
        {"object": 2},
        {"object": True},
        {"object": 1},
        {"weights": 0},
        {"weights": None},
        {"target": "aarch64"},
        {"target": "nonsense"},
        {"machine": "arm"},
        {"features": ["neon"]},
        {"indices": {"image": 0}},
        {"level": 3},
    ]
    told = []
    for change in changes:
        with pytest.raises(mlc.ArtifactError) as caught:
            saved_model(manifest | {"programs": [program | change]}, blobs, "model.mlc")
        told.append(f"# {change}\n{caught.value}")
    for programs in ([], [program] * 17, ["program"], None):
        with pytest.raises(mlc.ArtifactError) as caught:
            saved_model(manifest | {"programs": programs}, blobs, "model.mlc")
        count = len(programs) if programs is not None else programs
        told.append(f"# programs: {count}\n{caught.value}")
    golden("\n\n".join(told), "artifact_contradictions")
