"""The memory and energy that a run takes, and the limits of its cores: parts of the record
(deployment.py)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mlc_targets import Target
from mlc_targets.object_format import Metadata
from mlc_targets.peaks import peak

from .flow import Flow, accesses_of, alive

if TYPE_CHECKING:
    from mlc_rpc.host_call import HostCall
    from mlc_rpc.timing import Conditions, Timing


def memory_of(
    metadata: Metadata, host_calls: Sequence[HostCall], costs: Sequence[float], timing: Timing
) -> dict[str, float]:
    """The record's `memory`. costs: of the layers, the weights of the mean over time."""
    accesses = accesses_of(metadata, host_calls)
    assert metadata.model is not None
    flow = Flow(metadata.model, accesses, [host.at_call for host in host_calls])
    used = alive(flow.tensors, len(accesses))
    found: dict[str, float] = {}
    if used:
        weights = costs if sum(costs) else [1.0] * len(used)
        found["alive_peak_bytes"] = max(used)
        found["alive_mean_bytes"] = round(fmean(used, weights))
    now = None if timing.emulated else timing.conditions
    if now is not None and (rows := _known(now, "memory_kb")):
        most = max(*rows, *_known(now, "memory_most_kb"))  # the kernel may update this one late
        found["resident_peak_bytes"] = most * 1024
        found["resident_mean_bytes"] = round(fmean(rows) * 1024)
    return found


def energy_of(timing: Timing) -> dict[str, float] | None:
    """The record's `energy`, by the board's sensors; None if it has none."""
    now = None if timing.emulated else timing.conditions
    if now is None:
        return None
    found: dict[str, float] = {}
    if (microjoules := timing.per_run("energy_uj") or 0.0) > 0.0:  # a counter wraps around
        found["joules_per_run"] = microjoules / 1e6
    if power := _known(now, "power_uw"):
        found["watts"] = fmean(power) / 1e6
    return found or None


def limits_of(target: Target, precision: str, threads: int = 1) -> dict[str, Any]:
    """The record's `limits`: of an instruction; and, if the target's core is known, of `threads`
    such cores per second, which share the memory's bandwidth."""
    dtype = precision if precision == "float16" else "float32"
    lanes = target.lanes(dtype)
    found = peak(target)
    rates = {} if found is None else {n: r * threads for n, r in found.macs_per_s.items()}
    source = f"{lanes} numbers of {dtype} in a vector register; layers of integers may do more"
    if found is not None:
        cores = f"{found.core} at {found.mhz:,.0f} MHz"
        source = f"{threads} cores {cores}" if threads > 1 else f"a {cores}"
    return {
        "macs_per_instruction": lanes,
        "macs_per_s": rates.get(dtype),
        "by_dtype": rates,
        "bytes_per_s": None if found is None else found.bytes_per_s,
        "source": source,
    }


def _known(now: Conditions, fact: str) -> list[int]:
    return [n for n in (*now.before[fact], *now.after[fact]) if n is not None]
