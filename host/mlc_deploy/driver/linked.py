"""Files of the user's for `link=`: objects as they are, C files by the user's compiler."""

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

COMPILER = "MLC_CC"  # the environment variable that names the compiler, with options of its own
MOST = 64 << 20  # bytes of an object; what a board's loader takes
LAST_WORDS = 2000  # characters of what a compiler says
SECONDS = 300  # for a compiler's run

# Of every compiler: code that links into any program, and calls nothing but what it says.
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
    """The objects of .o files, and of .c files as the user's compiler makes them for the target.
    Raises CodegenError."""
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
    """The command of a C compiler for what every CPU of the target's architecture has: MLC_CC's,
    GNU's for the machine, zig's, or this machine's own where it is of the same kind. What a target
    has beyond that is for MLC_CC to ask for."""
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
