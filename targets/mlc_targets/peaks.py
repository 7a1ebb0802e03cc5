"""A core's peaks: multiply-accumulates per second by dtype, and bytes per second from memory. A
kernel exceeds them only by data from caches or by multiplications that Winograd saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cores import core, site
from .target import Target

# Multiply-accumulates of 128-bit float32 vectors per cycle. Source: Arm's software optimization
# guides (A55, A57, A72, A76, A78: "FP multiply accumulate, Q-form"); A53 and A73 have two pipes of
# 64 bits; the A7 multiplies one number per cycle.
_PER_CYCLE = {
    "cortex-a7": 0.25,
    "cortex-a53": 1.0,
    "cortex-a55": 1.0,
    "cortex-a57": 1.0,
    "cortex-a72": 1.0,
    "cortex-a73": 1.0,
    "cortex-a76": 2.0,
    "cortex-a78": 2.0,
}
FLOATS, HALVES = 4, 8  # in a register
PRODUCTS, DOTS, SQUARES = 8, 16, 32  # of int8 by an instruction: smlal, sdot, smmla


@dataclass(frozen=True, slots=True)
class Peak:
    """The peaks of one thread on `core` at `mhz`: multiply-accumulates per second by dtype, and
    bytes per second from memory."""

    core: str
    mhz: float
    macs_per_s: Mapping[str, float]
    bytes_per_s: float


def peak(target: Target) -> Peak | None:
    """The peak of the target's core; None if unknown."""
    known = core(target.mcpu)
    if known is None or known.name not in _PER_CYCLE:
        return None
    at = site(target.model, target.mcpu)
    per_second = _PER_CYCLE[known.name] * at.mhz * 1e6
    rates = {
        "float32": per_second * FLOATS,
        "float16": per_second * (HALVES if target.has("fullfp16") else FLOATS),
    }
    if target.arch == "aarch64":
        wide = DOTS if target.has("dotprod") else PRODUCTS
        rates["int8"] = per_second * (SQUARES if target.has("i8mm") else wide)
    return Peak(known.name, at.mhz, rates, at.gb_per_s * 1e9)
