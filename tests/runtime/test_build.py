"""Building the device runtime: when it is stale, where binaries come from, which bits they have."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

import runtime_build
from runtime_build import EXPORTED, NAMES, BuildError

REAL_ROOT = runtime_build.ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the smallest sources there are, and an empty cache for its binaries."""
    monkeypatch.setattr(runtime_build, "cache_folder", lambda wanted: tmp_path / "cache" / wanted)
    return checkout(tmp_path / "checkout")


def checkout(root: Path) -> Path:
    files = {
        "export/mlc_runtime.c": '#include "../include/mlc_runtime.h"\n#include "part.c"\n',
        "export/part.c": '#include "../include/answer.h"\nint answer = ANSWER;\n',
        "include/answer.h": "#define ANSWER 0\n",
        "include/mlc_runtime.h": '#include "answer.h"\nextern int answer;\n',
        "src/main.c": '#include "../include/answer.h"\nint main(void) { return ANSWER; }\n',
        "qemu_plugin/count.c": "int qemu_plugin_version = 1;\n",
        "Makefile": (REAL_ROOT / "device_runtime" / "Makefile").read_text(),
    }
    for name, text in files.items():
        path = root / "device_runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def pretend_binaries(root: Path, folder: Path) -> None:
    """What a build leaves in `folder`, without the build."""
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_text(name)
    wanted = runtime_build.digest(runtime_build.read_sources(root))
    (folder / "DIGEST").write_text(wanted + "\n")


def without_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    "name", ["export/part.c", "include/answer.h", "src/main.c", "qemu_plugin/count.c"]
)
def test_stale_after_an_edit(root: Path, name: str) -> None:
    pretend_binaries(root, runtime_build.destination(root))
    assert runtime_build.is_fresh(root) and not runtime_build.needs_zig(root)
    path = root / "device_runtime" / name
    path.write_text(path.read_text() + "\n")
    assert not runtime_build.is_fresh(root) and runtime_build.needs_zig(root)


def test_stale_after_a_rename(root: Path) -> None:
    pretend_binaries(root, runtime_build.destination(root))
    source = root / "device_runtime" / "src" / "main.c"
    source.rename(source.with_name("serve.c"))
    assert not runtime_build.is_fresh(root)


def test_stale_when_flags_or_zig_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_binaries(root, runtime_build.destination(root))
    makefile = root / "device_runtime" / "Makefile"
    text = makefile.read_text()
    makefile.write_text(text + "\n# a remark\n")
    assert runtime_build.is_fresh(root)
    makefile.write_text(text.replace("-Os", "-O1"))
    assert not runtime_build.is_fresh(root)
    makefile.write_text(text)
    monkeypatch.setattr(runtime_build, "ZIG", "ziglang==0.0.0")
    assert not runtime_build.is_fresh(root)


def test_makefile_lacks_a_variable(root: Path) -> None:
    (root / "device_runtime" / "Makefile").write_text("WARNINGS = -Wall\n")
    with pytest.raises(BuildError) as error:
        runtime_build.build(root)
    assert str(error.value) == "device_runtime/Makefile does not define TARGET_arm"


def test_exported_sources_need_nothing_else(root: Path) -> None:
    sources = runtime_build.read_sources(root)
    header, source = (runtime_build.amalgamated(path, sources) for path in EXPORTED.values())
    assert header == "#define ANSWER 0\nextern int answer;\n"
    assert source == '#include "mlc_runtime.h"\nint answer = ANSWER;\n'


def test_flags_are_those_of_the_makefile() -> None:
    binary, *_ = runtime_build.binaries(runtime_build.read_sources(REAL_ROOT))
    assert binary.name == "mlc-runtime-arm"
    assert binary.compiling[:3] == (
        "-target",
        "thumb-linux-musleabihf",
        "-mcpu=generic+v7a-neon+vfp3d16-d32",
    )
    assert {"-std=c11", "-Os", "-Wconversion", "-Werror"} <= set(binary.compiling)
    assert {"-static", "-s"} <= set(binary.linking)
    assert "src/main.c" in binary.units


@pytest.mark.parametrize("name", NAMES)
def test_stale_without_one_of_the_binaries(root: Path, name: str) -> None:
    pretend_binaries(root, runtime_build.destination(root))
    (runtime_build.destination(root) / name).unlink()
    assert not runtime_build.is_fresh(root)


def test_binaries_come_from_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_zig(monkeypatch)
    wanted = runtime_build.digest(runtime_build.read_sources(root))
    kept = runtime_build.cache_folder(wanted)
    pretend_binaries(root, kept)
    assert not runtime_build.needs_zig(root)
    lines: list[str] = []
    assert runtime_build.build(root, lines.append)
    assert lines == [f"device runtime: taken from {kept}"]
    assert runtime_build.is_fresh(root)
    assert not runtime_build.build(root, lines.append)


def test_zig_is_not_installed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_zig(monkeypatch)
    with pytest.raises(BuildError) as error:
        runtime_build.build(root)
    assert str(error.value) == (
        "zig 0.17.0 builds the device runtime, and no zig is installed\n"
        f"  try: {sys.executable} -m pip install ziglang==0.17.0"
    )
    assert not runtime_build.is_fresh(root)


def test_another_zig_is_installed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99.0")
    with pytest.raises(BuildError) as error:
        runtime_build.build(root)
    assert str(error.value) == (
        "zig 0.17.0 builds the device runtime, and zig 0.99.0 is installed\n"
        f"  try: {sys.executable} -m pip install ziglang==0.17.0"
    )


def test_compiler_says_what_is_wrong(root: Path) -> None:
    (root / "device_runtime" / "src" / "main.c").write_text("int main(void) { return ANSWER; }\n")
    with pytest.raises(BuildError, match="undeclared identifier 'ANSWER'"):
        runtime_build.build(root)
    assert not runtime_build.is_fresh(root)


def test_check_takes_a_warning_for_an_error(root: Path) -> None:
    runtime_build.check(root)
    source = root / "device_runtime" / "qemu_plugin" / "count.c"
    source.write_text("int narrow(long x);\nint narrow(long x) { return x; }\n")
    with pytest.raises(BuildError, match="implicit conversion loses integer precision"):
        runtime_build.check(root)


def test_same_bits_in_every_checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another = checkout(root.parent / "elsewhere" / "another")
    runtime_build.build(root)
    monkeypatch.setattr(runtime_build, "cache_folder", lambda wanted: root.parent / "empty")
    assert runtime_build.needs_zig(another)
    runtime_build.build(another)
    for name in NAMES:
        one, two = (runtime_build.destination(r) / name for r in (root, another))
        assert one.read_bytes() == two.read_bytes(), name


def test_pyproject_asks_for_the_same_zig() -> None:
    project = tomllib.loads((REAL_ROOT / "pyproject.toml").read_text())["project"]
    assert runtime_build.ZIG in project["optional-dependencies"]["dev"]
