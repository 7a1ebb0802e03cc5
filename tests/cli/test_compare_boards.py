"""`mlc-deploy compare-boards`: a table of boards that are not there, and what it refuses."""

from __future__ import annotations

import shutil

import pytest

from tests.cli.command import MODELS, Command

needs_qemu = pytest.mark.skipif(
    not (shutil.which("qemu-arm") and shutil.which("qemu-aarch64")),
    reason="no QEMU; try: apt-get install qemu-user",
)

DIGITS = str(MODELS / "digits_cnn.onnx")


@needs_qemu
def test_boards_in_the_order_of_their_times(mlc_deploy: Command) -> None:
    boards = ["raspberry-pi/2b", "raspberry-pi/4b", "raspberry-pi/5"]
    given = [text for name in boards for text in ("--target", name)]
    ended = mlc_deploy("compare-boards", DIGITS, *given, "--json", "-")
    assert ended.status == 0, ended.stderr
    rows = ended.record["boards"]
    assert [row["board"] for row in rows] == boards[::-1]
    for row in rows:
        found = row["predicted"]
        assert found["low"] < found["ms"] < found["high"]
        assert found["threads"].keys() == {"1", "4"} and found["threads"]["1"] == found["ms"]
        assert row["fits"] and row["needed_bytes"] < 1 << 20 < row["memory_bytes"]
    alone = mlc_deploy("--target", "raspberry-pi/5", "--json", "-").record["predicted"]
    assert alone["core"] == rows[0]["predicted"]["core"] == "cortex-a76"
    assert " predicted, not measured" in ended.stderr + ended.stdout


@needs_qemu
def test_memory_is_that_of_the_board_or_not_known(mlc_deploy: Command) -> None:
    boards = ("raspberry-pi/4b", "raspberry-pi/4b-armv7a", "xilinx/kv260")
    given = [text for name in boards for text in ("--target", name)]
    ended = mlc_deploy("compare-boards", DIGITS, *given, "--json", "-")
    assert ended.status == 0, ended.stderr
    rows = {row["board"]: row for row in ended.record["boards"]}
    a64, a32, unknown = (rows[name] for name in boards)
    assert a64["memory_bytes"] == a32["memory_bytes"] == (1024 - 128) << 20 and a32["fits"]
    assert unknown["memory_bytes"] is None and unknown["fits"] is None
    assert " unknown  unknown" in " ".join(ended.stderr.split(" ")), ended.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "rockchip/rk3288",
            "error: nothing is known of how fast a cortex-a17 is\n"
            "  in:  --target rockchip/rk3288\n"
            "  try: a board with one of cortex-a7, cortex-a53, cortex-a55, cortex-a57, cortex-a72, "
            "cortex-a73, cortex-a76, cortex-a78\n",
        ),
        (
            "aarch64",
            "error: 'aarch64' is not a board\n"
            "  in:  --target aarch64\n"
            "  try: one of raspberry-pi/2b, raspberry-pi/zero-2w, raspberry-pi/3b, "
            "raspberry-pi/4b, raspberry-pi/5, rockchip/rk3328, …\n",
        ),
    ],
)
def test_boards_that_nothing_is_known_of(target: str, message: str, mlc_deploy: Command) -> None:
    ended = mlc_deploy("compare-boards", DIGITS, "--target", target)
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", message)
