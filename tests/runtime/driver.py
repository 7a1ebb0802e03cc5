"""Builds load_driver for each machine, natively or under QEMU, and runs it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.zig import static_cc

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "device_runtime"
SOURCES = (
    *(RUNTIME / "src" / f"{name}.c" for name in (
        "elf_reader", "load", "native", "symbols", "arm_abi", "reloc_arm", "reloc_aarch64",
        "reloc_x86_64", "cpu", "cpu_model", "kernel_text",
    )),
    ROOT / "tests" / "runtime" / "load_driver.c",
)  # fmt: skip


@cache
def driver(machine: str) -> Path:
    """The driver's executable; kept in the user's cache under the digest of all it is made of."""
    state = hashlib.blake2b(repr(static_cc(machine)[1:]).encode(), digest_size=16)
    for path in (*SOURCES, *sorted(RUNTIME.glob("*/*.h"))):
        state.update(path.read_bytes())
    cache_base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_base / "mlc-deploy" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"load_driver-{machine}-{state.hexdigest()}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch, "load_driver")
            subprocess.run(
                [
                    *static_cc(machine),
                    f"-I{RUNTIME / 'include'}",
                    f"-I{RUNTIME / 'src'}",
                    *map(str, SOURCES),
                    "-o",
                    str(built),
                ],
                check=True,
            )
            built.replace(path)  # another test process may build the same; either one is good
    return path


def run_driver(
    machine: str, *arguments: str | Path, stdin: bytes = b"", cpu: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Runs the driver, under QEMU unless it is this machine's (or a CPU model is asked for)."""
    emulator = []
    if machine != platform.machine() or cpu:
        emulator = [f"qemu-{machine}", *(("-cpu", cpu) if cpu else ())]
    command = [*emulator, str(driver(machine)), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60)
