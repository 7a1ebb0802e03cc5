"""The tables, of records whose numbers stand still: on 80 columns, and in a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from mlc_deploy.cli.report import show

Golden = Callable[..., None]

TARGET = "llvm -mtriple=armv7a-linux-gnueabihf -mattr=+neon -device=arm_cpu"
LAYERS = [
    ("conv_0.conv2d", "conv2d", [16, 16, 8, 8], "float32", 124168),
    ("features.stage4.block12.branch_a.depthwise_conv.conv2d", "conv2d_14", [1, 1280, 7, 7],
     "float32", 1234567890),
    ("[quantize]", "cast", [1, 10], "int8", 1051),
    ("sum", "reduce_sum", [], "float32", 0),
]  # fmt: skip


def layer(name: str, kernel: str, shape: list[int], dtype: str, count: int) -> dict[str, Any]:
    classes = ("mac", "vector", "load", "store", "branch", "scalar")
    parts = dict.fromkeys(classes, count // 6)
    parts["mac"] += count - sum(parts.values())
    return {
        "name": name, "kernel": kernel, "shape": shape, "dtype": dtype, "median_us": count / 7,
        "instructions": count, "by_class": parts,
    }  # fmt: skip


def record(**changes: Any) -> dict[str, Any]:
    layers = [layer(*row) for row in LAYERS]
    found: dict[str, Any] = {
        "model": "digits_cnn",
        "target": TARGET,
        "level": "base",
        "board": {"url": "qemu://cortex-a8", "cpu_model": "unknown", "box": ["user"]},
        "outputs": [
            {"name": "probability", "shape": [16, 10], "dtype": "float32",
             "max_abs_err": 1.1920929e-07, "max_rel_err": 1.2e-07, "ok": True},
            {"name": "class", "shape": [16], "dtype": "int64",
             "max_abs_err": 3.0, "max_rel_err": None, "ok": False},
            {"name": "logits", "shape": [], "dtype": "float32",
             "max_abs_err": None, "max_rel_err": None, "ok": False},
        ],
        "predictions": {"output": "probability", "predicted": [6, 6, 2], "label": [6, 6, 3],
                        "accuracy": 2 / 3},
        "compile_s": 0.531, "threads": 1, "upload_s": 0.0042, "upload_bytes": 40712,
        "object_bytes": 8812, "weights_bytes": 27456, "arena_bytes": 7900000,
        "latency": {"n": 1, "median_ms": 15.3, "p95_ms": 15.3, "mad_ms": 0.0,
                    "samples": [15.3], "verdict": "emulated",
                    "findings": [{"what": "an emulator's", "mend": "count"}], "cores": [],
                    "per_run": dict.fromkeys(("cycles", "instructions", "cache_misses")),
                    "cluster": "",
                    "conditions": None},
        "instructions": sum(row[-1] for row in LAYERS),
        "layers": layers, "interruptions": [],
    }  # fmt: skip
    return found | changes


def timed() -> dict[str, Any]:
    """Of a board that counts nothing."""
    layers = [item | {"instructions": None, "by_class": None} for item in record()["layers"]]
    latency = {
        "n": 20, "median_ms": 176.4, "p95_ms": 180.12, "mad_ms": 0.0123, "samples": [],
        "verdict": "throttled",
        "findings": [
            {"what": "the clock was 1.20 to 1.50 GHz at 82 °C", "mend": "a fan"},
            {"what": "samples are 7.2% from their median", "mend": "more"},
        ],
        "cluster": "cortex-a72",
        "cores": [0, 1, 2, 3],
        "per_run": {"cycles": 261e6, "instructions": 312e6, "cache_misses": 120400.5},
        "conditions": {
            "before": {"clock_khz": [600000, 1500000], "zone0_mc": [61900, None]},
            "after": {"clock_khz": [1500000, 1200000], "zone0_mc": [70000, 82000]},
        },
    }  # fmt: skip
    board = {
        "url": "ssh://pi@raspberrypi.local", "cpu_model": "cortex-a53, cortex-a72",
        "box": ["syscalls", "files", "user"],
    }  # fmt: skip
    return record(
        layers=layers, instructions=None, predictions=None, latency=latency, board=board, threads=4
    )


def compiled() -> dict[str, Any]:
    absent = ("board", "outputs", "predictions", "latency", "threads", "upload_s", "upload_bytes")
    layers = [
        item | {"instructions": None, "by_class": None, "median_us": None}
        for item in record()["layers"]
    ]
    return record(instructions=None, layers=layers, **dict.fromkeys(absent))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "found", "verbose"),
    [
        ("counted", record(), True),
        ("uncounted", timed() | {"latency": record()["latency"], "threads": 1}, True),
        ("timed", timed(), False),
        ("compiled", compiled(), False),
    ],
)
def test_terminal(
    name: str,
    found: dict[str, Any],
    verbose: bool,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    show(found, stream, verbose)
    tables = stream.getvalue().split("\n\n")[1 : 3 if verbose else 2]
    assert all(len(line) <= 80 for table in tables for line in table.splitlines())
    golden(plain(stream), f"cli_report_{name}")


def test_file_has_whole_names(golden: Golden) -> None:
    stream = io.StringIO()
    show(record(), stream, verbose=True)
    golden(plain(stream), "cli_report_in_a_file")


def plain(stream: io.StringIO) -> str:
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


@pytest.mark.parametrize(
    ("rebooted", "back"), [(True, "back after 31.5 s, rebooted"), (None, "back after 31.5 s")]
)
def test_a_board_that_was_lost(rebooted: bool | None, back: str) -> None:
    seen = "no sign of life from the board for 8 s"
    lost = {"what": seen, "method": "run", "seconds": 31.5, "rebooted": rebooted}
    stream = io.StringIO()
    show(timed() | {"interruptions": [lost]}, stream)
    assert f" lost      {seen}; {back}; all was done again\n" in plain(stream)
