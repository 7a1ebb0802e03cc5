"""Times a set of networks on a user's board and counts them in QEMU. The board's own figures are
fitted to these measurements (predict/calibration.py).

The networks have different bottlenecks: some compute from caches, some wait for memory, some do
neither.

If a timing's verdict is ok, its median is the network's time. Other programs and a throttled clock
only make runs longer. On a disturbed board a network is therefore timed again until the least
samples of two timings agree; the least sample is its time. The typical excess over it widens the
interval of predictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.counters import plugin_remedy
from mlc_rpc.timing import Timing
from mlc_rpc.verdict import HOT, hottest
from mlc_targets import Target, qemu_cpu
from mlc_targets.caches import Cache, caches_of
from mlc_targets.cores import Speed, speed

from ..board.calibrated import damaged, read_calibration
from ..board.connect import connect
from ..errors import DeployError
from ..graph import BlockBuilder, Constant, Function
from ..predict.calibration import Calibration, Row, from_json
from ..predict.counting import Counts, speed_for
from .compile import compile
from .deploy import deploy
from .deployment import Deployment

if TYPE_CHECKING:
    from mlc_rpc import Session

TIMINGS = 5  # of a network at most, while the board is disturbed
AGREE = 0.05  # as a share: least samples nearer than this agree
HOPELESS = 0.5  # as a share: least samples further apart than this after TIMINGS are useless
COOL_S = 5.0  # seconds of rest for a board that throttles from heat
ENOUGH = 2 / 3  # of the networks must have usable times
FAR = 4.0  # a factor on a core's published speed; one further off is not that core
DOUBT = 0.5  # a typical error of the fit, as a share, above which times do not follow counts
# (factor, seconds). The board's time <= this machine's time * factor + seconds, and vice versa.
CLOCK_AHEAD = (1.05, 0.05)
CLOCK_BEHIND = (6.0, 10.0)
# By the board's machine: the core whose speed stands in for an unknown one, and the target whose
# code is counted then, since QEMU counts no instructions of x86-64.
LIKE = {"aarch64": "cortex-a72", "arm": "cortex-a7", "x86_64": "cortex-a76"}
COUNTED = {"x86_64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"}


@dataclass(frozen=True, slots=True)
class Basis:
    """The base of a board's factors: a core's speed, and the target whose code is counted.
    like: whether another core stands in for the board's unknown one."""

    target: Target
    base: Speed
    like: bool

    @property
    def caches(self) -> tuple[Cache, ...]:
        return caches_of(self.base.l1_kib)


def basis_of(target: Target) -> Basis:
    """The basis for a board with this target."""
    if (known := speed_for(target)) is not None:
        return Basis(target, known, False)
    stand_in = speed(LIKE[target.arch])
    assert stand_in is not None
    return Basis(Target(COUNTED.get(target.arch, str(target))), stand_in, True)


def own_figures(name: str) -> Calibration | None:
    """The calibration of a board, by its name; None if there is none. Raises InputError."""
    body = read_calibration(name)
    if body is None:
        return None
    try:
        return from_json(body)
    except ValueError as error:
        raise damaged(name, f"the figures of '{name}' cannot be read: {error}") from None


# ------------------------------------------------------------------------------------ the networks


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    build: Callable[[], Function]


def _drawn(*shape: int) -> Constant:
    rng = np.random.default_rng(shape)
    return Constant((rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def _convolutions(channels: Sequence[int], size: int, kernel: int, groups: int = 1) -> Function:
    """A chain of convolutions, each with an activation."""
    b = BlockBuilder("main")
    y: Any = b.param("x", (1, channels[0], size, size))
    pads = (kernel // 2,) * 4
    for before, after in pairwise(channels):
        y = b.emit("conv2d", y, _drawn(after, before // groups, kernel, kernel),
                   strides=(1, 1), dilations=(1, 1), pads=pads, groups=groups)  # fmt: skip
        y = b.emit("relu", y)
    return b.finish([y], ["y"])


def _dense(rows: int, *widths: int) -> Function:
    b = BlockBuilder("main")
    y: Any = b.param("x", (rows, widths[0]))
    for before, after in pairwise(widths):
        y = b.emit("relu", b.emit("dense", y, _drawn(after, before), transpose_b=True))
    return b.finish([y], ["y"])


def _sum(channels: int, size: int) -> Function:
    b = BlockBuilder("main")
    x, y = (b.param(name, (1, channels, size, size)) for name in "xy")
    return b.finish([b.emit("add", x, y)], ["z"])


def _pool(channels: int, size: int) -> Function:
    b = BlockBuilder("main")
    x = b.param("x", (1, channels, size, size))
    y = b.emit("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1),
               ceil_mode=False)  # fmt: skip
    return b.finish([y], ["y"])


def _softmax(rows: int, columns: int) -> Function:
    b = BlockBuilder("main")
    return b.finish([b.emit("softmax", b.param("x", (rows, columns)), axis=1)], ["y"])


NETWORKS = (
    Network("convolutions of 3 x 3", lambda: _convolutions((64, 64, 64), 56, 3)),
    Network("convolutions of 3 x 3, deep", lambda: _convolutions((256, 256), 14, 3)),
    Network("convolutions of 1 x 1", lambda: _convolutions((96, 192, 96), 28, 1)),
    Network("convolutions of 1 x 1, deep", lambda: _convolutions((512, 512, 512), 7, 1)),
    Network("depthwise convolutions", lambda: _convolutions((144, 144, 144), 56, 3, 144)),
    Network("product of matrices", lambda: _dense(64, 256, 256, 256)),
    Network("large dense layers", lambda: _dense(1, 2048, 2048, 1024)),
    Network("sum", lambda: _sum(64, 160)),
    Network("pool", lambda: _pool(64, 112)),
    Network("softmax", lambda: _softmax(256, 1000)),
)


# ----------------------------------------------------------------------------------- measuring


def rows_of(
    board: Session,
    target: Target,
    basis: Basis,
    networks: Sequence[Network],
    *,
    seconds: float = 600.0,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Row, ...]:
    """Measures the networks on a board. say(text) is called with each network's name.

    Raises DeployError if the board's outputs or clock are wrong, or too many times are noisy;
    RpcError if the board is lost and does not come back; and what `compile` raises.
    """
    cores = board.device.fast_cores
    rows: list[Row] = []
    noisy: list[str] = []
    for network in networks:
        say(network.name)
        graph = network.build()
        model = compile(graph, target)
        counted = model if basis.target == target else compile(graph, basis.target)
        done = _emulated(counted, basis, network.name)
        for threads in dict.fromkeys((1, cores)):
            took = _timed(model, board, done.outputs, threads, seconds, network.name)
            if took is not None:
                row = Row(network.name, threads, took.seconds * 1e3, counts_of(done), took.spread)
                rows.append(row)
            elif threads == 1:
                noisy.append(network.name)
                refuse_noisy(noisy, len(networks), board.board)
    return tuple(rows)


def refuse_noisy(noisy: Sequence[str], networks: int, board: str) -> None:
    """Raises DeployError once too many networks have noisy times for the rest to suffice."""
    if len(noisy) > networks * (1 - ENOUGH):
        raise DeployError(
            f"times stay noisy ({len(noisy)} of {networks} networks), so nothing is kept",
            where=f"{board}: {', '.join(noisy)}",
            mend="mlc-deploy board doctor says what disturbs the board; then this command again",
        )


def counts_of(done: Deployment) -> tuple[Counts, ...]:
    """The counts of each layer of a run in QEMU with simulated caches."""
    found = [(layer.by_class, layer.misses) for layer in done.layers]
    return tuple((a, b) for a, b in found if a is not None and b is not None)


def counted_run(
    model: Any, basis: Basis, inputs: Mapping[str, NDArray[Any]] | None = None
) -> Deployment:
    """Runs a model in QEMU. Raises DeployError if instructions are not counted."""
    url = f"qemu://{qemu_cpu(basis.target)}"
    with connect(url, machine=basis.target.arch, caches=basis.caches) as session:
        if not session.counting:
            raise DeployError(
                "executed instructions are not counted here, so nothing can be fitted",
                where=f"{url}: {session.why_not_counting}",
                mend=plugin_remedy(),
            )
        return deploy(model, session, inputs)


def _emulated(model: Any, basis: Basis, name: str) -> Deployment:
    done = counted_run(model, basis)
    assert done.ok, f"{name}: wrong in QEMU"
    return done


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a run; spread: by how much the median run is longer, as a share."""

    seconds: float
    spread: float


def settled(timings: Sequence[Timing]) -> Took | None:
    """A network's time, by its timings so far; None if they do not agree yet. After TIMINGS
    timings, None is final."""
    if timings[-1].verdict == "ok":
        return Took(timings[-1].median, 0.0)
    least, *others = sorted(min(timing.samples) for timing in timings)
    apart = others[0] / least - 1 if others else float("inf")
    if apart > (AGREE if len(timings) < TIMINGS else HOPELESS):
        return None
    usual = median(sample for timing in timings for sample in timing.samples)
    return Took(least, usual / least - 1)


def _timed(
    model: Any, board: Session, right: Mapping[str, NDArray[Any]], threads: int, seconds: float,
    name: str,
) -> Took | None:  # fmt: skip
    """None if the times stay noisy."""
    where = f"{board.board}: {name}"
    timings: list[Timing] = []
    while len(timings) < TIMINGS:
        clock = _Clock()
        done = deploy(model, board, expect=right, threads=threads, timeout=seconds,
                      stage=clock.stage)  # fmt: skip
        if not done.ok:
            raise DeployError(
                "the board's outputs are wrong, so nothing is kept",
                where=where,
                mend="mlc-deploy MODEL --board NAME, which says which elements are wrong",
            )
        refuse_clock(done, clock.seconds, where)
        timings.append(done.timing)
        if (took := settled(timings)) is not None:
            return took
        now = done.timing.conditions
        if done.timing.verdict == "throttled" and now is not None and hottest(now) >= HOT:
            time.sleep(COOL_S)
    return None


class _Clock:
    """Measures by this machine's clock how long a deployment's timing takes."""

    seconds = 0.0

    @contextmanager
    def _timing(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - began

    @contextmanager
    def _rest(self) -> Iterator[None]:
        yield

    def stage(self, name: str) -> Any:
        return self._timing() if name == "timing" else self._rest()


def refuse_clock(done: Deployment, passed: float, where: str) -> None:
    """Raises DeployError if this machine's clock contradicts the board's. passed: seconds that the
    timing took by this machine's clock."""
    timing = done.timing
    clocked = sum(s * n for s, n in zip(timing.samples, timing.number, strict=True))
    times, more = CLOCK_AHEAD
    slack, waited = CLOCK_BEHIND
    mend = "another board, or one whose clock is right; its figures are as before"
    if clocked > passed * times + more:
        what = (
            f"the board's clock says {clocked:.2f} s of runs that took at most {passed:.2f} s here"
        )
        raise DeployError(what, where=where, mend=mend)
    if not done.interruptions and passed > clocked * slack + waited:
        what = f"the board's clock says {clocked:.2f} s of runs that took {passed:.2f} s here"
        raise DeployError(what, where=where, mend=mend)


def refuse_far(found: Calibration) -> None:
    """Raises DeployError if the board's times are implausible for its core."""
    factors, error = found.fitted.factors, found.fitted.error
    if not found.like:
        for what, factor in (("computing", factors.computing), ("memory", factors.memory)):
            if not 1 / FAR <= factor <= FAR:
                raise DeployError(
                    f"{what} takes {factor:.3g} times what is published of a {found.core}, so "
                    "nothing is kept",
                    where=found.url,
                    mend="mlc-deploy board info says what the board is; an emulated one has no "
                    "times",
                )
    if error > DOUBT:
        raise DeployError(
            f"the times do not follow what was counted (the typical error is {error:.0%}), so "
            "nothing is kept",
            where=found.url,
            mend="mlc-deploy board doctor says what disturbs the board",
        )
