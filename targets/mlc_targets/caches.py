"""The data caches that our QEMU plugin simulates (device_runtime/qemu_plugin/cache.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cores import core

BEHIND_KIB = (128, 256, 512, 1024, 2048, 4096)  # sizes of second and last levels
WAYS, FIRST_WAYS = 16, 4  # of the caches after the first, and of the first; as in Arm's cores


@dataclass(frozen=True, slots=True)
class Cache:
    """A core's first cache, or a candidate for the next one."""

    bytes: int
    ways: int

    @property
    def name(self) -> str:
        return f"{self.bytes >> 10}K"


def caches_of(l1_kib: int) -> tuple[Cache, ...]:
    """A core's first cache and all candidates for the next one."""
    return Cache(l1_kib << 10, FIRST_WAYS), *(Cache(kib << 10, WAYS) for kib in BEHIND_KIB)


def caches_for(cpu: str) -> tuple[Cache, ...]:
    """The caches to simulate for a prediction for `cpu` (LLVM's name); () if its speed is
    unknown."""
    known = core(cpu)
    return caches_of(known.l1_kib) if known else ()


def caches_option(caches: Sequence[Cache]) -> str:
    """The text of the plugin's option `caches`."""
    return ":".join(f"{cache.bytes}x{cache.ways}" for cache in caches)


def share_kib(last_kib: int, threads: int) -> int:
    """Each thread's share of the last cache, rounded down to a simulated size."""
    return max((kib for kib in BEHIND_KIB if kib * threads <= last_kib), default=BEHIND_KIB[0])
