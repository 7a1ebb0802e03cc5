from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def count_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plugin") / "libmlc-count-x86_64.so"
    source = ROOT / "device_runtime" / "qemu_plugin" / "count.c"
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28"]
    flags = ["-std=c11", "-shared", "-fPIC", "-O2", "-s", "-fvisibility=hidden"]
    subprocess.run([*zig, *flags, "-o", out, source], check=True)
    return out
