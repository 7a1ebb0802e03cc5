"""The form of messages, and those about files that an installation lacks."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from mlc_deploy.board import runtime_files
from mlc_deploy.errors import InstallError, LowerError


def test_message_says_what_where_and_how_to_mend() -> None:
    error = LowerError(
        "unroll: loop 'k' has extent n, which is not a constant",
        where="for k in unroll(n)\n  a[k] = b[k]",
        mend="split 'k' by a constant first,\nthen unroll its inner loop",
    )
    assert str(error) == (
        "unroll: loop 'k' has extent n, which is not a constant\n"
        "  in:  for k in unroll(n)\n"
        "         a[k] = b[k]\n"
        "  try: split 'k' by a constant first,\n"
        "       then unroll its inner loop"
    )
    assert str(LowerError("nothing more is known")) == "nothing more is known"


def test_no_runtime_for_a_machine() -> None:
    with pytest.raises(InstallError) as error:
        runtime_files.runtime_file("riscv64")
    assert str(error.value) == (
        "there is no device runtime for machine 'riscv64'\n"
        "  try: a board with one of: arm, aarch64, x86_64"
    )


def test_installation_lacks_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_files, "FOLDER", tmp_path)
    with pytest.raises(InstallError) as error:
        runtime_files.runtime_file("arm")
    assert str(error.value) == (
        "this installation of mlc-deploy lacks the file 'mlc-runtime-arm'\n"
        f"  in:  {tmp_path}\n"
        "  try: python -m pip install --force-reinstall mlc-deploy\n"
        "       in a checkout: python device_runtime/runtime_build.py"
    )
    (tmp_path / "mlc-runtime-arm").touch()
    assert runtime_files.runtime_file("arm") == tmp_path / "mlc-runtime-arm"


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("Linux", "x86_64", "libmlc-count-x86_64.so"),
        ("Linux", "aarch64", "libmlc-count-aarch64.so"),
    ],
)
def test_counting_plugin_of_a_host(
    system: str, machine: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(runtime_files, "FOLDER", tmp_path)
    (tmp_path / name).touch()
    assert runtime_files.counting_plugin() == tmp_path / name


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64")]
)
def test_host_that_cannot_count(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(InstallError) as error:
        runtime_files.counting_plugin()
    assert str(error.value) == (
        f"instructions cannot be counted on this host ({system} on {machine})\n"
        "  try: a Linux host, x86_64 or aarch64"
    )
