"""What cores can do at most: by hand, and against what predictions say of them."""

from __future__ import annotations

import pytest

from mlc_deploy.driver.resources import limits_of
from mlc_targets import Target
from mlc_targets.cores import core_names, speed
from mlc_targets.peaks import FLOATS, peak


def test_a_core_by_hand() -> None:
    """The Raspberry Pi 4: one fmla of four floats each of 1.8e9 cycles."""
    found = peak(Target("raspberry-pi/4b"))
    assert found is not None and (found.core, found.mhz) == ("cortex-a72", 1800)
    assert found.macs_per_s == {"float32": 7.2e9, "float16": 7.2e9, "int8": 14.4e9}
    assert 3e9 < found.bytes_per_s < 6e9
    newer = peak(Target("raspberry-pi/5"))
    assert newer is not None
    assert newer.macs_per_s == {"float32": 19.2e9, "float16": 38.4e9, "int8": 76.8e9}
    assert peak(Target("rockchip/rk3288")) is None and peak(Target("aarch64")) is None


@pytest.mark.parametrize("name", core_names())
def test_predictions_are_below_the_peak(name: str) -> None:
    """A fitted vector instruction takes no less than the peak allows, but for the fit's error."""
    arch = "armv7a-linux-gnueabihf" if name == "cortex-a7" else "aarch64-linux-gnu"
    found, known = peak(Target(f"llvm -mtriple={arch} -mcpu={name}")), speed(name)
    assert known is not None
    if found is None:
        pytest.skip(f"nothing is known of the peak of {name}")
    fitted = FLOATS * known.mhz * 1e6 / (known.vector * known.pace)
    assert fitted < found.macs_per_s["float32"] * 1.15


def test_threads_share_memory_and_not_computing() -> None:
    one, four = (limits_of(Target("raspberry-pi/4b"), "float32", n) for n in (1, 4))
    assert four["macs_per_s"] == 4 * one["macs_per_s"] == 28.8e9
    assert four["by_dtype"]["int8"] == 4 * one["by_dtype"]["int8"]
    assert four["bytes_per_s"] == one["bytes_per_s"]
    assert one["source"] == "a cortex-a72 at 1,800 MHz"
    assert four["source"] == "4 cores cortex-a72 at 1,800 MHz"
    unknown = limits_of(Target("aarch64"), "float16")
    assert unknown == {
        "macs_per_instruction": 8, "macs_per_s": None, "by_dtype": {}, "bytes_per_s": None,
        "source": "8 numbers of float16 in a vector register; layers of integers may do more",
    }  # fmt: skip
