"""How far a compilation is, as the command says it."""

from __future__ import annotations

import pytest

import mlc_deploy as mlc
from mlc_deploy.cli.progress import QUIET_SECONDS, _rarely, kernel_progress
from mlc_deploy.driver.processes import FEW
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.passes.context import options


def layers() -> Function:
    """More kernels than one process compiles."""
    bb = BlockBuilder("layers")
    x = bb.param("x", (1, 3))
    sums = [bb.emit("tile", x, reps=(1, n + 2)) for n in range(FEW + 2)]
    return bb.finish(sums)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_kernels_and_the_time_that_is_left() -> None:
    clock, said = Clock(), list[str]()
    counted = kernel_progress(said.append, clock)
    for done, seconds in ((0, 5.0), (1, 7.0), (10, 25.0), (39, 83.0), (40, 85.0)):
        clock.now = seconds
        counted(done, 40)
    assert said == [
        "0 of 40 kernels",
        "1 of 40 kernels",
        "10 of 40 kernels, about 60 s left",
        "39 of 40 kernels, about 2 s left",
        "40 of 40 kernels",
    ]


def test_without_a_terminal_a_line_from_time_to_time() -> None:
    clock, said = Clock(), list[str]()
    say = _rarely(said.append, clock)
    for n in range(100):
        clock.now = n
        say(str(n))
    assert said == [str(int(n * QUIET_SECONDS)) for n in range(1, 7)]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_kernel_is_counted(workers: int) -> None:
    seen: list[tuple[int, int]] = []
    with options({"compile.cache": False}):
        model = mlc.compile(
            layers(), "host", workers=workers, progress=lambda n, m: seen.append((n, m))
        )
    count = model.kernels_compiled
    assert seen == [(n, count) for n in range(count + 1)] and count > 0
    seen.clear()
    again = mlc.compile(layers(), "aarch64", progress=lambda n, m: seen.append((n, m)))
    seen.clear()
    again = mlc.compile(layers(), "aarch64", progress=lambda n, m: seen.append((n, m)))
    assert not again.kernels_compiled and not seen  # all were in the cache
