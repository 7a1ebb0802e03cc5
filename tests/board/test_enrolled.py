"""boards.toml as somebody else may have left it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc_deploy.board.enrolled import Enrolled, boards_file, enrolled_boards
from mlc_deploy.errors import InputError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    boards_file().parent.mkdir()
    return boards_file()


def refusal() -> str:
    with pytest.raises(InputError) as error:
        enrolled_boards()
    return str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 100_000, b"a" + b".a" * 100_000 + b" = 1", b"[" + b"a." * 50_000 + b"a]",
        b"a = " + b"9" * 6000, b"\xff\xfe", b"[x", b"a = {" * 3000,
    ],
)  # fmt: skip
def test_files_that_are_none(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    text = refusal()
    assert f"\n  in:  {file}\n  try: " in text


def test_deep_nesting(file: Path) -> None:
    file.write_bytes(b"a = " + b"[" * 100_000)
    assert refusal() == f"cannot be read: it is nested too deeply\n  in:  {file}\n  try: an editor"


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_a_file_that_others_may_write_to(file: Path) -> None:
    file.write_text('[kitchen]\nurl = "ssh://pi@pi"\n')
    file.chmod(0o666)
    assert refusal() == (
        "boards are not taken from this file: others may write to it\n"
        f"  in:  {file}\n"
        f"  try: look into it, then: chown $USER {file}; chmod go-w {file}"
    )
    file.chmod(0o644)
    assert enrolled_boards() == {"kitchen": Enrolled("ssh://pi@pi")}
