"""Builds the program that goes to a board, and the plugin that counts instructions in QEMU.

    src/*.c              -> mlc-runtime-{arm,aarch64,x86_64}        static, for any Linux
    qemu_plugin/*.c      -> libmlc-count-{x86_64,aarch64}.so        for the machine QEMU runs on
    export/*.c           -> mlc_runtime.c, mlc_runtime.h            for programs that hold a model

They are put into `host/mlc_deploy/_runtime/`, and beside them a DIGEST of all that decides their
bits: the sources, the commands, zig's version. While it agrees, nothing is built and zig is not
needed. The build hook, the tests and the scripts ask this module, which needs Python alone.

    python device_runtime/runtime_build.py              build what is stale
    python device_runtime/runtime_build.py --digest     print the digest of the sources
    python device_runtime/runtime_build.py --check      look for warnings, link nothing

Finished binaries are kept in the user's cache by digest too: zig builds its C library again for
every place it is installed in (a minute per machine), which an isolated build is each time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ZIG_VERSION = "0.17.0"  # a version, one set of bits; pyproject.toml asks for the same one
ZIG = f"ziglang=={ZIG_VERSION}"

MACHINES = ("arm", "aarch64", "x86_64")  # of boards
HOSTS = ("x86_64", "aarch64")  # where QEMU runs
EXPORTED = {"mlc_runtime.h": "include/mlc_runtime.h", "mlc_runtime.c": "export/mlc_runtime.c"}
BINARIES = (
    *(f"mlc-runtime-{machine}" for machine in MACHINES),
    *(f"libmlc-count-{host}.so" for host in HOSTS),
)
NAMES = (*BINARIES, *EXPORTED)

Sources = dict[str, bytes]  # path relative to device_runtime, with "/" -> content


class BuildError(Exception):
    """The binaries cannot be built: no zig, a broken Makefile, or the compiler's own words."""


@dataclass(frozen=True, slots=True)
class Binary:
    """How zig makes one file: arguments for both steps, and the C files it is made of."""

    name: str
    compiling: tuple[str, ...]
    linking: tuple[str, ...]
    units: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        return (*self.compiling, *self.linking, *self.units)


def binaries(sources: Sources) -> tuple[Binary, ...]:
    """What to build, with the flags of the Makefile. Raises BuildError where it lacks one.

    The plugin is built for glibc 2.28, older than that of any distribution whose QEMU takes it.
    """
    make = _variables(sources["Makefile"].decode())
    runtimes = (
        Binary(
            f"mlc-runtime-{machine}",
            (*make[f"TARGET_{machine}"], *make["CFLAGS"]),
            (*make["LDFLAGS"], *make["LDLIBS"]),
            _units("src", sources),
        )
        for machine in MACHINES
    )
    plugins = (
        Binary(
            f"libmlc-count-{host}.so",
            (
                "-target",
                f"{host}-linux-gnu.2.28",
                "-std=c11",
                "-O2",
                "-fPIC",
                "-fvisibility=hidden",
                *make["WARNINGS"],
            ),
            ("-shared", "-s"),
            _units("qemu_plugin", sources),
        )
        for host in HOSTS
    )
    return (*runtimes, *plugins)


class _Variables(dict[str, tuple[str, ...]]):
    def __missing__(self, name: str) -> tuple[str, ...]:
        raise BuildError(f"device_runtime/Makefile does not define {name}")


def _variables(makefile: str) -> _Variables:
    """The Makefile's plain definitions, `NAME = words`, with $(NAME) expanded."""
    variables = _Variables()
    for name, value in re.findall(r"^(\w+) *= *(.*)$", makefile.replace("\\\n", " "), re.MULTILINE):
        words: list[str] = []
        for word in value.split():
            reference = re.fullmatch(r"\$\((\w+)\)", word)
            words += variables[reference[1]] if reference else [word]
        variables[name] = tuple(words)
    return variables


def _units(folder: str, sources: Sources) -> tuple[str, ...]:
    return tuple(path for path in sources if re.fullmatch(folder + r"/.*\.c", path))


def destination(root: Path = ROOT) -> Path:
    """Where the package looks for its binaries."""
    return root / "host" / "mlc_deploy" / "_runtime"


def read_sources(root: Path = ROOT) -> Sources:
    """The Makefile, and every file that the compiler may read, by path."""
    base = root / "device_runtime"
    paths = [base / "Makefile"]
    for folder in ("export", "include", "qemu_plugin", "src"):
        paths += sorted((base / folder).rglob("*.[ch]"))
    return {path.relative_to(base).as_posix(): path.read_bytes() for path in paths}


def digest(sources: Sources) -> str:
    """64 hexadecimal digits that change with whatever changes the binaries' bits."""
    state = hashlib.blake2b(digest_size=32)
    items = [ZIG.encode()]
    for binary in binaries(sources):
        items += [binary.name.encode(), " ".join(binary.command).encode()]
    for path, content in sources.items():
        if path != "Makefile":  # what matters of it is in the commands
            items += [path.encode(), content]
    for item in items:
        state.update(len(item).to_bytes(8, "little") + item)
    return state.hexdigest()


def is_fresh(root: Path = ROOT) -> bool:
    """Whether the package's binaries are those of the sources."""
    return _holds(destination(root), digest(read_sources(root)))


def needs_zig(root: Path = ROOT) -> bool:
    """Whether `build` would compile: what is wanted is neither there nor in the user's cache."""
    wanted = digest(read_sources(root))
    return not _holds(destination(root), wanted) and not _keeps(cache_folder(wanted), wanted)


def build(root: Path = ROOT, say: Callable[[str], None] = lambda line: None) -> bool:
    """Makes the package's binaries those of the sources; whether there was anything to do.

    `say` gets a line of progress now and then. Raises BuildError.
    """
    sources = read_sources(root)
    wanted = digest(sources)
    if _holds(destination(root), wanted):
        return False
    if not _keeps(cache_folder(wanted), wanted):
        with tempfile.TemporaryDirectory() as scratch:
            finished = Path(scratch, "finished")
            _compile_all(sources, finished, say)
            _install(finished, destination(root), wanted)
            try:
                _install(finished, cache_folder(wanted), wanted)
            except OSError as error:  # the package has what it needs; only a later build is slower
                say(f"device runtime: not kept in the cache: {error}")
    else:
        say(f"device runtime: taken from {cache_folder(wanted)}")
        _install(cache_folder(wanted), destination(root), wanted)
    return True


def _holds(folder: Path, wanted: str) -> bool:
    """Whether `folder` has all binaries of this digest."""
    record = folder / "DIGEST"
    return (
        record.is_file()
        and record.read_text().strip() == wanted
        and all((folder / name).is_file() for name in NAMES)
    )


def _keeps(folder: Path, wanted: str) -> bool:
    """Whether a folder of the cache has all binaries, and nobody else may have put them there."""
    if not _holds(folder, wanted):
        return False
    if os.name != "posix":
        return True
    about = [path.stat() for path in (folder, *(folder / name for name in NAMES))]
    return all(a.st_uid in (os.geteuid(), 0) and not a.st_mode & 0o022 for a in about)


def cache_folder(wanted: str) -> Path:
    """The folder in the user's cache for the binaries of this digest."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "mlc-deploy" / "runtime" / wanted


def _install(source: Path, folder: Path, wanted: str) -> None:
    """Copies the binaries; the digest goes first and comes last, so it never stands beside others.

    Each file appears whole under its name, since another process may be starting it right now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "DIGEST").unlink(missing_ok=True)
    for name in NAMES:
        mode = 0o755 if name in BINARIES else 0o644
        _put(folder / name, (source / name).read_bytes(), mode)
    _put(folder / "DIGEST", wanted.encode() + b"\n", 0o644)


def _put(path: Path, content: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, mode)
    os.replace(name, path)


def _compile_all(sources: Sources, finished: Path, say: Callable[[str], None]) -> None:
    """Compiles a copy of the sources, so that bits do not depend on where the checkout lies.

    A file saved meanwhile then cannot come under the wrong digest either.
    """
    finished.mkdir()
    for name, path in EXPORTED.items():
        (finished / name).write_text(amalgamated(path, sources))
    say(f"device runtime: compiling {len(BINARIES)} binaries; a machine's first takes a minute")
    with _staged(sources) as base:
        for binary in binaries(sources):
            begin = time.monotonic()
            _zig(*binary.command, "-o", str(finished / binary.name), folder=base)
            seconds, size = time.monotonic() - begin, (finished / binary.name).stat().st_size
            say(f"  {binary.name:<24} {size / 1000:7.1f} KB {seconds:6.1f} s")


def amalgamated(path: str, sources: Sources, seen: set[str] | None = None) -> str:
    """A C file with every file of ours that it includes in the place of its first #include; what is
    exported under a name of its own goes on being included, by that name."""
    seen = set() if seen is None else seen
    seen.add(path)
    lines = []
    for line in sources[path].decode().splitlines(keepends=True):
        match = re.match(r'#include "(.+)"', line)
        found = os.path.normpath(Path(path).parent / match[1]).replace(os.sep, "/") if match else ""
        if not match:
            lines.append(line)
        elif found in EXPORTED.values():
            lines.append(f'#include "{Path(found).name}"\n')
            amalgamated(found, sources, seen)  # which has what it includes
        elif found not in seen:
            lines.append(amalgamated(found, sources, seen))
    return "".join(lines)


def check(root: Path = ROOT) -> None:
    """Compiles every C file for every machine, links nothing. Raises BuildError at a warning."""
    sources = read_sources(root)
    with _staged(sources) as base:
        for binary in binaries(sources):
            for unit in binary.units:
                _zig(*binary.compiling, "-c", unit, "-o", "checked.o", folder=base)
            for unit in _units("export", sources):
                _zig(*binary.compiling, "-c", unit, "-o", "checked.o", folder=base)


@contextmanager
def _staged(sources: Sources) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in sources.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        yield Path(folder)


def _zig(*arguments: str, folder: Path) -> None:
    _require_zig()
    command = [sys.executable, "-m", "ziglang", "cc", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{result.stderr.strip()}\n  in:  zig cc {' '.join(arguments)}")


def _require_zig() -> None:
    """Another version than the digest names would give its bits under a wrong digest."""
    try:
        installed = f"zig {importlib.metadata.version('ziglang')}"
    except importlib.metadata.PackageNotFoundError:
        installed = "no zig"
    if installed != f"zig {ZIG_VERSION}":
        raise BuildError(
            f"zig {ZIG_VERSION} builds the device runtime, and {installed} is installed\n"
            f"  try: {sys.executable} -m pip install {ZIG}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the device runtime's binaries.")
    parser.add_argument("--digest", action="store_true", help="print the digest of the sources")
    parser.add_argument("--zig", action="store_true", help="print what pip is to install")
    parser.add_argument("--needs-zig", action="store_true", help="exit 0 if a build would compile")
    parser.add_argument("--check", action="store_true", help="only look for warnings")
    options = parser.parse_args()
    try:
        if options.digest:
            print(digest(read_sources()))
        elif options.zig:
            print(ZIG)
        elif options.needs_zig:
            return 0 if needs_zig() else 1
        elif options.check:
            check()
        else:
            build(say=lambda line: print(line, file=sys.stderr, flush=True))
    except BuildError as error:
        print(f"BuildError: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
