"""The readers of saved models and .npy files under sanitizers, on mutated files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.artifact.format import write_file
from tests.runtime.driver import RUNTIME

SOURCES = ("artifact", "blake2b", "cpu", "cpu_model", "failure", "msgpack", "npy", "segment",
           "tensor")  # fmt: skip
SANITIZERS = "-fsanitize=address,undefined"


def build(folder: Path) -> Path:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no clang or gcc for the sanitizers; try: apt-get install gcc")
    path = folder / "fuzz_files"
    subprocess.run(
        [compiler, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow",
         "-Werror", SANITIZERS, "-fno-sanitize-recover=all", "-DMLC_FUZZ_MAIN",
         "-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION", f"-I{RUNTIME / 'src'}",
         *(str(RUNTIME / "src" / f"{name}.c") for name in SOURCES),
         *(str(RUNTIME / "fuzz" / f"{name}.c") for name in ("fuzz_files", "mutate")),
         "-o", str(path)],
        check=True,
    )  # fmt: skip
    return path


def seeds(folder: Path) -> list[Path]:
    paths = []
    for dtype in ("float32", "bool", "int64", "float16"):
        paths.append(folder / f"{dtype}.npy")
        np.save(paths[-1], np.zeros((2, 3), dtype))
    for version in ((1, 0), (2, 0), (3, 0)):
        paths.append(folder / f"version{version[0]}.npy")
        with open(paths[-1], "wb") as file:
            np.lib.format.write_array(file, np.arange(5, dtype=np.uint8), version)
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
    for count in (1, 4):
        paths.append(folder / f"{count}.mlc")
        manifest = {"name": "m", "writer": "test", "programs": programs[:count]}
        write_file(paths[-1], manifest, [bytes(70), b"object", bytes(128), b""])
    return paths


def run(folder: Path, count: int) -> None:
    result = subprocess.run(
        [build(folder), str(count), *seeds(folder)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    match = re.search(r"(\d+) of them accepted: no finding", result.stdout)
    # Mutants that all fail early would prove little.
    assert match and int(match[1]) > count / 20


def test_mutated_files_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 20_000)


@pytest.mark.fuzz
def test_many_mutated_files_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 1_000_000)
