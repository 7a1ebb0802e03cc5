"""Valid inputs for the fuzz targets, from which mutation begins.

python -m tests.fuzz.seeds FOLDER       writes them to FOLDER/<target>/
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from mlc_deploy.artifact.format import write_file
from mlc_rpc.link import DEAD_BEATS
from mlc_rpc.wire import HASH_BYTES, NONCE_BYTES, TAG_BYTES, VERSION
from mlc_targets.object_format import PROGRAM_ABI
from tests.runtime.board import metadata_of, model_of
from tests.runtime.elf_objects import Object, Relocation, Section, Symbol
from tests.runtime.kernels import MACHINES, object_of

RELOCATIONS = {
    "aarch64": (257, 258, 260, 261, 263, 269, 275, 277, 280, 283, 285, 299, 311, 312, 313),
    "arm": (2, 3, 10, 24, 25, 26, 28, 29, 30, 40, 42, 43, 44, 45, 46, 47, 48, 49, 50, 96),
    "x86_64": (1, 2, 4, 9, 10, 11, 24, 41, 42),
}


def wire() -> Iterable[bytes]:
    """Streams from hello on; ids as fuzz_wire.c has them."""
    name = blake2b(b"blob", digest_size=HASH_BYTES).digest()
    ten, mod = (int.from_bytes(text + b"\0") for text in (b"TEN", b"MOD"))
    options = {
        "timeout_ms": 9, "from": 0, "until": 3, "threads": 1, "mark": True, "quiet": True,
        "stop": [1, 2],
    }  # fmt: skip
    timer = {
        "number": 1,
        "repeat": 2,
        "min_repeat_ms": 1.5,
        "limit_zero_time_iterations": 1,
        "cooldown_interval_ms": 0,
        "repeats_to_cooldown": 1,
        "cache_flush_bytes": 64,
    }
    hello = ("hello", [*VERSION, bytes(NONCE_BYTES)])
    tensor = ("tensor.new", ["float32", [2, 3]])
    blob = ("blob.put", [name, 4, 0, b"blob"])
    sessions = [
        [("describe", []), ("ping", [{"any": [1.5, True, b"x"]}]), ("auth", [name])],
        [("heartbeat", [1000 * DEAD_BEATS]), ("no.method", [None])],
        [tensor, ("tensor.write", [ten, 4, b"12345678"]), ("tensor.read", [ten, 0, 24])],
        [tensor, ("tensor.fill", [ten, "random", 3]), ("tensor.fill", [ten, "zero", 0])],
        [tensor, ("tensor.descriptor", [ten]), ("tensor.free", [ten])],
        [("blob.has", [name]), blob, ("blob.get", [name, 1, 2]), ("blob.free", [name])],
        [blob, ("module.load", [name, None]), ("module.free", [mod])],
        [tensor, blob, ("module.load", [name, name]), ("run", [mod, None, [ten], options])],
        [tensor, blob, ("module.load", [name, None]), ("time", [mod, "add", [ten], timer])],
    ]
    for calls in sessions:
        yield b"".join(
            msgpack.packb([0, number, method, params])
            for number, (method, params) in enumerate([hello, *calls])
        )


def record() -> Iterable[bytes]:
    """A first byte chooses greetings (1) or records (0), whose tags are not looked at."""
    hello = msgpack.packb([0, 1, "hello", [*VERSION, bytes(NONCE_BYTES)]])
    auth = msgpack.packb([0, 2, "auth", [bytes(HASH_BYTES)]])
    yield b"\1" + hello + auth
    for sizes in ((1,), (40, 3000, 2)):
        parts = (size.to_bytes(4, "big") + bytes(TAG_BYTES) + bytes(size) for size in sizes)
        yield b"\0" + b"".join(parts)


def loader() -> Iterable[bytes]:
    """LLVM's objects of every machine, and tiny ones, where a change more often hits something."""
    yield from (object_of(machine) for machine in MACHINES)
    for machine, kinds in RELOCATIONS.items():
        relocations = tuple(Relocation(kind, 2) for kind in kinds)
        sections = (
            Section(content=bytes(64), relocations=relocations),
            Section(".mlc", b"\x80", flags=0),
        )
        for symbol in (Symbol("f"), Symbol("expf", 0)):
            yield Object(machine, sections, (Symbol("g"), symbol)).build()


def table() -> Iterable[bytes]:
    """What objects say of themselves."""
    yield msgpack.packb(metadata_of("x86_64", ["add", "count"]))
    yield msgpack.packb(metadata_of("x86_64", ["symbolic", "workspace"]))
    described = metadata_of("x86_64", ["add64", "double64"])
    yield msgpack.packb(described | {"model": model_of(bytes(256))})
    moved = [[2, 0, 0, 256, 0, 0], [1, 0, 0, 256], [0, 0, 0, 256, 1, 64]]
    calls = [[1, "l", [[2, 0, 0, 256, 0, 0], [3, 0, 0, 256, 0, 0]]], [0, "l", moved]]
    loop = [0, 0, 3, 1, None, [0, 0, 448, 8], None]
    inner = [0, 1, 2, 2, [0, 0, 440, 1], None, [0, 0, 432, 8]]
    branch = [1, [2, 0, 0, 1], 3, 4]
    procedures = [[0, loop, 0], [inner, branch], [1], [0], []]
    model = model_of(bytes(256), calls=calls, procedures=procedures)
    yield msgpack.packb(described | {"abi": PROGRAM_ABI, "model": model})


def artifact() -> Iterable[bytes]:
    """Files that a board reads: .npy, and saved models of one and of several programs."""
    for dtype in ("float32", "bool", "int64", "float16"):
        yield _npy(np.zeros((2, 3), dtype), None)
    for version in ((1, 0), (2, 0), (3, 0)):
        yield _npy(np.arange(5, dtype=np.uint8), version)
    programs = [
        {
            "level": level,
            "target": "llvm",
            "machine": machine,
            "features": features,
            "object": number,
            "weights": weights,
            "indices": {"x": 7},
        }
        for number, (level, machine, features, weights) in enumerate(
            [("base", "x86_64", [], 2), ("more", "x86_64", ["sse2"], None),
             ("base", "aarch64", ["neon"], 2), ("base", "arm", [], None)]
        )
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 4):
            manifest = {"name": "m", "writer": "test", "programs": programs[:count]}
            path = Path(folder, "model")
            write_file(path, manifest, [bytes(70), b"object", bytes(128), b""])
            yield path.read_bytes()


def _npy(array: NDArray[Any], version: tuple[int, int] | None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


TARGETS = {
    "wire": wire,
    "record": record,
    "loader": loader,
    "table": table,
    "artifact": artifact,
}


def write_seeds(target: str, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, content in enumerate(TARGETS[target]()):
        paths.append(folder / f"seed{number}")
        paths[-1].write_bytes(content)
    return paths


if __name__ == "__main__":
    for target in TARGETS:
        write_seeds(target, Path(sys.argv[1], target))
