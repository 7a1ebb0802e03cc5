"""The data caches that QEMU's plugin simulates (device_runtime/qemu_plugin/cache.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cores import core

BEHIND_KIB = (128, 256, 512, 1024, 2048, 4096)  # second and last levels that cores have
WAYS, FIRST_WAYS = 16, 4  # of these, and of the first, as Arm's cores have


@dataclass(frozen=True, slots=True)
class Cache:
    """The core's own cache, or one that could stand behind it."""

    bytes: int
    ways: int

    @property
    def name(self) -> str:
        return f"{self.bytes >> 10}K"


def caches_of(l1_kib: int) -> tuple[Cache, ...]:
    """A core's first cache and all alternatives behind it."""
    return Cache(l1_kib << 10, FIRST_WAYS), *(Cache(kib << 10, WAYS) for kib in BEHIND_KIB)


def caches_for(cpu: str) -> tuple[Cache, ...]:
    """What a prediction for LLVM's `cpu` needs; () where nothing is known of its speed."""
    known = core(cpu)
    return caches_of(known.l1_kib) if known else ()


def caches_option(caches: Sequence[Cache]) -> str:
    """What the plugin's option `caches` takes."""
    return ":".join(f"{cache.bytes}x{cache.ways}" for cache in caches)


def share_kib(last_kib: int, threads: int) -> int:
    """What of a core's last cache each of so many threads has, as one of the simulated caches."""
    return max((kib for kib in BEHIND_KIB if kib * threads <= last_kib), default=BEHIND_KIB[0])
