"""The user's files for `link=`: objects unchanged, C files compiled by the user's compiler."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlc_targets import Target

from ..codegen.link import LinkedObject
from ..errors import CodegenError

COMPILER = "MLC_CC"  # the environment variable that names the compiler and its options
MOST = 64 << 20  # bytes of an object; the limit of a board's loader
LAST_WORDS = 2000  # characters of a compiler's messages
SECONDS = 300  # for a compiler's run

# For every compiler: the code links into any program and calls only the functions it names.
FLAGS = (
    "-O2", "-fPIC", "-fvisibility=hidden", "-fno-common", "-fno-stack-protector",
    "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE",
)  # fmt: skip
TRIPLES = {  # a GNU compiler's prefix, zig's target
    "arm": ("arm-linux-gnueabihf", "arm-linux-musleabihf"),
    "aarch64": ("aarch64-linux-gnu", "aarch64-linux-musl"),
    "x86_64": ("x86_64-linux-gnu", "x86_64-linux-musl"),
}

FileName = str | os.PathLike[str]


def linked_objects(files: Iterable[FileName], target: Target) -> tuple[LinkedObject, ...]:
    """The objects of .o files, and of .c files compiled for the target. Raises CodegenError."""
    return tuple(_object(Path(file), target) for file in files)


def _object(path: Path, target: Target) -> LinkedObject:
    where = f"--link {path}"
    if path.suffix not in (".o", ".obj", ".c"):
        raise CodegenError(
            "only objects and C files are linked",
            where=where,
            mend="a .o or a .c file; of an archive, the .o files in it: ar x",
        )
    try:
        if path.stat().st_size > MOST:
            raise CodegenError(f"the file has more than {MOST >> 20} MB", where=where)
        code = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CodegenError(f"{path.name} cannot be read: {reason}", where=where) from None
    if path.suffix == ".c":
        code = _compiled(path, target)
    return LinkedObject(path.name, code)


def _compiled(path: Path, target: Target) -> bytes:
    """The object of a C file."""
    command = compiler(target)
    if command is None:
        gnu, _ = TRIPLES[target.arch]
        raise CodegenError(
            f"no C compiler for {target.arch} is found",
            where=f"--link {path}",
            mend=f"apt install gcc-{gnu}, pip install ziglang, {COMPILER}='cc …', or a .o file",
        )
    with tempfile.TemporaryDirectory(prefix="mlc-link-") as folder:
        made = Path(folder) / "linked.o"
        try:
            done = subprocess.run(
                [*command, *FLAGS, "-c", str(path), "-o", str(made)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
                errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError(
                f"the C compiler does not run: {error}",
                where=f"--link {path}",
                mend=f"{COMPILER}='cc …' with a compiler for {target.arch}",
            ) from None
        if done.returncode != 0:
            raise CodegenError(
                f"{Path(command[0]).name} does not compile {path.name}",
                where=done.stderr[-LAST_WORDS:].strip() or f"--link {path}",
            )
        return made.read_bytes()


def compiler(target: Target) -> Sequence[str] | None:
    """The command of a C compiler: MLC_CC's, GNU's cross compiler, zig's, or this machine's own if
    the architecture is the same. Its code runs on every CPU of the architecture; only MLC_CC can
    ask for more of the target's features."""
    if own := os.environ.get(COMPILER):
        return shlex.split(own)
    gnu, triple = TRIPLES[target.arch]
    neon = target.has("neon")
    if (found := shutil.which(f"{gnu}-gcc")) is not None:
        fpu = f"-mfpu={'neon' if neon else 'vfpv3-d16'}"
        return [found, *(("-march=armv7-a", fpu, "-mfloat-abi=hard") * (target.arch == "arm"))]
    zig = [found] if (found := shutil.which("zig")) is not None else None
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang"]
    if zig is not None:
        cpu = f"-mcpu=generic+v7a{'+neon' if neon else '-neon+vfp3d16-d32'}"
        return [*zig, "cc", "-target", triple, *([cpu] * (target.arch == "arm"))]
    native = platform.machine().lower() in (target.arch, {"x86_64": "amd64"}.get(target.arch))
    return [found] if native and (found := shutil.which("cc")) is not None else None
