"""Streams, file names and locales as laptops have them: a character may be lost, never a result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_rpc.own import absolute
from tests.cli.command import MODELS

ENCODINGS = ("gbk", "cp932", "euc-kr", "big5", "cp1252", "ascii")
POSIX = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}


def run(folder: Path, *args: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "mlc_deploy.cli", *args]
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONIOENCODING", "LC_ALL")}
    return subprocess.run(
        command, cwd=folder, env={**own, **environment}, capture_output=True, timeout=300
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pipes_of_any_encoding(encoding: str, tmp_path: Path) -> None:
    """What Python uses for pipes in China, Japan, Korea, Taiwan and in the POSIX locale. The name
    of the model has a character that none of them has."""
    shutil.copy(MODELS / "digits_mlp.onnx", tmp_path / "d\N{EYES}.onnx")
    name = "d\N{EYES}.onnx"
    for args in (("inspect", name), (name, "--board", "none"), ("compare-boards", "--help")):
        done = run(tmp_path, *args, PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr.decode(encoding)
        if "--help" not in args:  # click writes help in UTF-8 where a stream is ascii
            done.stdout.decode(encoding)
    missing = run(tmp_path, "\N{EYES}.onnx", PYTHONIOENCODING=encoding)
    assert missing.returncode == 2 and b"Traceback" not in missing.stderr
    assert missing.stderr.startswith(b"error: ")


@pytest.mark.skipif(sys.platform != "linux", reason="others have only names in Unicode")
@pytest.mark.parametrize(
    ("name", "environment", "shown"),
    [(b"h \xff", {}, "h \\xff"), ("müßig".encode(), POSIX, "müßig")],
    ids=["no UTF-8", "C locale"],
)
def test_file_names_of_any_bytes(
    name: bytes, environment: dict[str, str], shown: str, tmp_path: Path
) -> None:
    file = os.fsencode(tmp_path) + b"/" + name + b".onnx"
    shutil.copy(MODELS / "digits_mlp.onnx", os.fsdecode(file))
    for args in (
        (b"--board", b"none", b"--json", b"r.json", b"--report", b"r.html"),
        (b"--board", b"none", b"--save", b"saved/"),
        (b"--board", b"none", b"--save", name + b".mlc"),
    ):
        done = run(tmp_path, name + b".onnx", *args, **environment)
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["model"] == shown
    done = run(tmp_path, "inspect", name + b".onnx", **environment)
    assert done.returncode == 0, done.stderr
    assert name + b".mlc" in os.listdir(os.fsencode(tmp_path))


def test_relative_folders_of_xdg_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the specification says."""
    for value, found in ((str(tmp_path), tmp_path), ("rel/x", None), ("", None)):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert absolute("XDG_CACHE_HOME") == found
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert absolute("XDG_CACHE_HOME") is None
    shutil.copy(MODELS / "digits_mlp.onnx", tmp_path / "d.onnx")
    home = {"MLC_CACHE_DIR": "", "HOME": str(tmp_path / "home")}
    relative = {"XDG_CACHE_HOME": "rel/x", "XDG_CONFIG_HOME": "rel/y"}
    done = run(tmp_path, "d.onnx", "--board", "none", **home, **relative)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "rel").exists() and (tmp_path / "home/.cache/mlc-deploy").exists()
