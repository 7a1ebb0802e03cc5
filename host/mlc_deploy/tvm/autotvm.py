"""tvm.autotvm: templates of schedules, whose knobs are tuned on this machine.

    @autotvm.template("matmul")
    def matmul(n):
        ...
        cfg = autotvm.get_config()
        cfg.define_split("tile_y", y, num_outputs=2)
        yo, yi = cfg["tile_y"].apply(s, C, y)
        return s, [A, B, C]

A tuner measures configurations and logs each. All tuners but GridSearchTuner choose at random.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, MlcError
from ..files.fields import Field, Malformed, parsed
from . import absent
from .arrays import array, cpu
from .module import build
from .target import Target

__all__ = [
    "GATuner", "GridSearchTuner", "LocalBuilder", "LocalRunner", "RandomTuner", "XGBTuner",
    "apply_history_best", "callback", "get_config", "measure_option", "task", "template", "tuner",
]  # fmt: skip

_TEMPLATES: dict[str, Callable[..., Any]] = {}
_config: ContextVar[Config | None] = ContextVar("autotvm_config", default=None)
_best: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("autotvm_best", default={})  # noqa: B039


@dataclass(frozen=True)
class SplitEntity:
    """The sizes of a split's parts, outermost first."""

    size: tuple[int, ...]

    def apply(self, s: Any, op: Any, axis: Any) -> list[Any]:
        """Splits an axis of a stage. Returns the parts."""
        parts = []
        for factor in reversed(self.size[1:]):
            axis, inner = s[op].split(axis, factor=factor)
            parts.append(inner)
        return [axis, *reversed(parts)]


@dataclass(frozen=True)
class KnobEntity:
    val: Any


class Config:
    """A configuration: each knob's choice. The first call of a template finds the choices."""

    def __init__(self, chosen: Mapping[str, Any] | None = None) -> None:
        self.choices: dict[str, list[Any]] = {}
        self.chosen = dict(chosen or {})

    def axis(self, axis: Any) -> Any:
        return axis

    def define_split(
        self,
        name: str,
        axis: Any,
        policy: str = "factors",
        num_outputs: int = 2,
        max_factor: int | None = None,
        filter: Callable[[SplitEntity], bool] | None = None,
        **_: Any,
    ) -> None:
        extent = _extent(axis)
        found = []
        for inner in itertools.product(_divisors(extent), repeat=num_outputs - 1):
            rest, uneven = divmod(extent, math.prod(inner))
            entity = SplitEntity((rest, *inner))
            small = max_factor is None or all(n <= max_factor for n in inner)
            if not uneven and small and (filter is None or filter(entity)):
                found.append(entity)
        self._define(name, found)

    def define_knob(self, name: str, candidate: Sequence[Any]) -> None:
        self._define(name, [KnobEntity(value) for value in candidate])

    def _define(self, name: str, found: list[Any]) -> None:
        if not found:
            raise InputError(f"knob '{name}' has no candidate")
        self.choices[name] = found
        self.chosen.setdefault(name, found[0])

    def add_flop(self, flop: float) -> None:
        """The work of the task. It is counted in kernels here."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.chosen:
            raise InputError(f"there is no knob '{name}'", mend=", ".join(self.chosen))
        return self.chosen[name]

    def __len__(self) -> int:
        return math.prod(len(c) for c in self.choices.values())

    def __repr__(self) -> str:
        knobs = (f"  {name}: {len(c)} candidates" for name, c in self.choices.items())
        return f"ConfigSpace ({len(self)} configurations)\n" + "\n".join(knobs)

    def to_json(self) -> dict[str, Any]:
        return {
            name: list(e.size) if isinstance(e, SplitEntity) else e.val
            for name, e in self.chosen.items()
        }


def _extent(axis: Any) -> int:
    extent = axis if isinstance(axis, int) else getattr(axis, "dom", axis)
    extent = getattr(extent, "extent", extent)
    extent = getattr(extent, "value", extent)
    if not isinstance(extent, int):
        raise InputError(f"define_split: the extent of {axis} is not a number")
    return extent


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _of_json(known: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: SplitEntity(tuple(v)) if isinstance(v, list) else KnobEntity(v)
        for name, v in known.items()
    }


def get_config() -> Config:
    """The configuration that a template is called with."""
    return _config.get() or Config()


def _key(name: str, args: Sequence[Any]) -> str:
    return json.dumps([name, list(args)])


def template(task_name: str, func: Callable[..., Any] | None = None) -> Any:
    """Registers a function that makes a schedule by get_config(). Called in apply_history_best, it
    takes the best configuration that the log has for its arguments."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if _config.get() is not None:
                return function(*args)
            with _configured(Config(_of_json(_best.get().get(_key(task_name, args), {})))):
                return function(*args)

        _TEMPLATES[task_name] = function
        return called

    return decorate if func is None else decorate(func)


@contextmanager
def _configured(config: Config) -> Iterator[None]:
    token = _config.set(config)
    try:
        yield
    finally:
        _config.reset(token)


@dataclass
class Task:
    """A template with arguments, for a target."""

    name: str
    args: tuple[Any, ...]
    target: Any
    config_space: Config = field(default_factory=Config)

    def instantiate(self, config: Config) -> Any:
        with _configured(config):
            return _TEMPLATES[self.name](*self.args)


class task:
    """autotvm.task.create(name, args, target)."""

    @staticmethod
    def create(task_name: str, args: Sequence[Any], target: Any, target_host: Any = None) -> Task:
        if task_name not in _TEMPLATES:
            raise InputError(f"there is no template '{task_name}'", mend=", ".join(_TEMPLATES))
        made = Task(task_name, tuple(args), Target(target))
        made.instantiate(made.config_space)
        return made


@dataclass(frozen=True)
class LocalBuilder:
    timeout: float = 10
    n_parallel: int | None = None


@dataclass(frozen=True)
class LocalRunner:
    timeout: float = 10
    number: int = 4
    repeat: int = 3
    min_repeat_ms: int = 0
    cooldown_interval: float = 0.1
    enable_cpu_cache_flush: bool = False


def measure_option(builder: Any = None, runner: Any = None) -> LocalRunner:
    """Where to measure: on this machine."""
    if runner in (None, "local"):
        return LocalRunner()
    if not isinstance(runner, LocalRunner):
        what = "a template is measured on this machine"
        raise InputError(what, mend="mlc_deploy.tune.tune_tir(..., runner=board)")
    return runner


@dataclass(frozen=True)
class Measured:
    """What a callback sees of a configuration: its seconds, or why it has none."""

    task: Task
    config: Config
    costs: tuple[float, ...]
    error: str = ""


def _measured(task: Task, config: Config, runner: LocalRunner) -> Measured:
    try:
        schedule, args = task.instantiate(config)
        func = build(schedule, args, target=task.target)
        rng = np.random.default_rng(0)
        given = [
            array(rng.uniform(-1, 1, tuple(map(int, a.shape))).astype(a.dtype), cpu()) for a in args
        ]
        timed = func.time_evaluator(
            func.entry_name,
            number=runner.number,
            repeat=runner.repeat,
            min_repeat_ms=runner.min_repeat_ms,
        )(*given)
    except MlcError as error:
        return Measured(task, config, (), str(error).partition("\n")[0])
    return Measured(task, config, tuple(timed.results))


class RandomTuner:
    """Measures configurations in random order, each once."""

    def __init__(self, task: Task, *_: Any, **__: Any) -> None:
        self.task = task
        self.best_config: Config | None = None
        self.best_seconds = math.inf

    def order(self, every: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return random.Random(0).sample(every, len(every))

    def tune(
        self,
        n_trial: int,
        measure_option: LocalRunner | None = None,
        early_stopping: int | None = None,
        callbacks: Sequence[Callable[[Any, Any, Any], None]] = (),
        **_: Any,
    ) -> None:
        choices = self.task.config_space.choices
        every = self.order(list(itertools.product(*choices.values())))
        since = 0
        for chosen in every[:n_trial]:
            config = Config(dict(zip(choices, chosen, strict=True)))
            result = _measured(self.task, config, measure_option or LocalRunner())
            since += 1
            if result.costs and np.mean(result.costs) < self.best_seconds:
                self.best_seconds, since = float(np.mean(result.costs)), 0
                self.best_config = config
            for call in callbacks:
                call(self, [result], [result])
            if early_stopping is not None and since >= early_stopping:
                break


class GridSearchTuner(RandomTuner):
    """Measures configurations in their order."""

    def order(self, every: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return every


class XGBTuner(RandomTuner):
    """TVM's name. mlc_deploy.tune.tune_tir has a cost model."""


class GATuner(RandomTuner):
    """TVM's name. mlc_deploy.tune.tune_tir has an evolutionary search."""


class tuner:
    """autotvm.tuner.XGBTuner(task)."""

    GATuner, GridSearchTuner = GATuner, GridSearchTuner
    RandomTuner, XGBTuner = RandomTuner, XGBTuner


class callback:
    """Callbacks of tune."""

    @staticmethod
    def log_to_file(file_out: str | Path) -> Callable[[Any, Any, Any], None]:
        def log(tuner: Any, inputs: Any, results: Sequence[Measured]) -> None:
            with Path(file_out).open("a") as file:
                for one in results:
                    line = {"key": _key(one.task.name, one.task.args), "error": one.error,
                            "config": one.config.to_json(), "costs": one.costs}  # fmt: skip
                    file.write(json.dumps(line) + "\n")

        return log

    @staticmethod
    def progress_bar(total: int, prefix: str = "", si_prefix: str = "G") -> Callable[..., None]:
        def show(tuner: RandomTuner, inputs: Any, results: Any) -> None:
            print(f"{prefix} best {tuner.best_seconds * 1e3:.4f} ms")

        return show


def _record(line: Field) -> tuple[str, list[float], dict[str, Any]]:
    """Key, seconds and knobs of a log's line. Raises Malformed."""
    config = {
        name: [size.count() for size in knob] if isinstance(knob.value, list) else knob.value
        for name, knob in line["config"].items()
    }
    return line["key"].text(), [seconds.amount() for seconds in line["costs"]], config


@contextmanager
def apply_history_best(records: str | Path) -> Iterator[None]:
    """Templates called inside take the best configuration of a log. Raises InputError where the log
    is missing or no log of callback.log_to_file."""
    path = Path(records)
    if not path.is_file():
        raise InputError(f"there is no log {path.name}", mend="callback.log_to_file(path)")
    best: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            key, costs, config = _record(parsed(line))
        except Malformed as error:
            raise InputError(
                f"line {number} of {path.name} is not a record of a tuner here: {error}",
                mend="write the log by autotvm.callback.log_to_file; logs of Apache TVM have "
                "another form",
            ) from None
        if costs and (seconds := float(np.mean(costs))) < best.get(key, (math.inf, {}))[0]:
            best[key] = seconds, config
    token = _best.set({key: config for key, (_, config) in best.items()})
    try:
        yield
    finally:
        _best.reset(token)


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.autotvm.{name}", __all__)
