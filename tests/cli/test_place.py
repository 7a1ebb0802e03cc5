"""Which target and board a command line means."""

from __future__ import annotations

import platform

import pytest

import mlc_deploy as mlc
from mlc_deploy.cli.place import choose, runs_here

HOST = mlc.Target("host")


@pytest.mark.parametrize(
    ("target", "board", "expected_target", "expected_board"),
    [
        ("armv7a", "qemu://max", "armv7a", "qemu://max"),
        ("aarch64", "ssh://pi@board", "aarch64", "ssh://pi@board"),
        (None, "qemu://cortex-a7", None, "qemu://cortex-a7"),
        (None, "ssh://board:2222", None, "ssh://board:2222"),
        (None, "local://", "host", "local://"),
        (None, None, "host", "local://"),
        ("host", None, "host", "local://"),
        ("aarch64", "none", "aarch64", None),
        (None, "none", "host", None),
        ("raspberry-pi/2b", None, "raspberry-pi/2b", "qemu://cortex-a7"),
        ("raspberry-pi/4b-aarch64", None, "raspberry-pi/4b-aarch64", "qemu://cortex-a72"),
        ("raspberry-pi/4b-armv7a", None, "raspberry-pi/4b-armv7a", "qemu://max"),
    ],
)
def test_choice(
    target: str | None,
    board: str | None,
    expected_target: str | None,
    expected_board: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if platform.machine() != "x86_64":
        monkeypatch.setattr("mlc_deploy.cli.place.runs_here", lambda target: target == HOST)
    chosen = choose(mlc.Target(target) if target else None, board)
    assert chosen == (mlc.Target(expected_target) if expected_target else None, expected_board)


def test_this_machine_runs_what_it_has_the_features_for() -> None:
    assert runs_here(HOST)
    other = {"x86_64": "aarch64", "aarch64": "x86_64", "arm": "x86_64"}[HOST.arch]
    assert not runs_here(mlc.Target(other))
    lacking = {
        "x86_64": "llvm -mtriple=x86_64-linux-gnu -mattr=+avxvnniint16",
        "aarch64": "llvm -mtriple=aarch64-linux-gnu -mattr=+faminmax",
        "arm": "llvm -mtriple=armv7a-linux-gnueabihf -mattr=+i8mm",
    }[HOST.arch]
    assert not runs_here(mlc.Target(lacking))
