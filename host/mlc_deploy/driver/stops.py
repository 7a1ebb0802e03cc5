"""Runs that stop after a layer, or after one iteration of it, and return its results.

    for stopped in stop_after(model, board, {"x": x}, ["lstm@0-9", "head"]):
        print(stopped.layer, stopped.turn, stopped.results)

Iterations count from 0, over all loops around a layer. Each iteration is a run of its own, from the
same inputs and states, so later layers need not work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mlc_rpc.stopped import Stopped

from ..errors import InputError
from .deploy import (
    RUN_SECONDS,
    Levelled,
    every_input,
    fitting,
    refuse_cores,
    refuse_unfit,
    thread_count,
)
from .deployment import Array, Deployable, described_model, host_calls_of

if TYPE_CHECKING:
    from mlc_rpc import Session

_TURNS = re.compile(r"(?P<layer>.+)@(?P<first>\d+)(-(?P<last>\d+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Iterations of a layer; as text "LAYER" (iteration 0), "LAYER@3" or "LAYER@0-9"."""

    layer: str
    turns: range


def places_of(model: Deployable, texts: Sequence[str]) -> list[Place]:
    """The places in the model that the texts name. Raises InputError."""
    layers = [call.layer for call in described_model(model).calls]
    on_host = {call.layer for call in host_calls_of(model)}
    found: list[Place] = []
    for text in texts:
        parts = None if text in layers else _TURNS.fullmatch(text)
        layer = parts["layer"] if parts else text
        first = int(parts["first"]) if parts else 0
        last = int(parts["last"] or first) if parts else 0
        if layer in on_host:
            raise InputError(
                f"layer '{layer}' is a function of this machine, which no board stops after",
                mend="the layer after it",
            )
        if layer not in layers:
            near = get_close_matches(layer, layers, 3, 0.4) or layers[:3]
            raise InputError(f"the model has no layer '{layer}'", mend=", ".join(near))
        if last < first:
            raise InputError(
                f"iterations go from the first to the last, not from {first} to {last}",
                where=text,
                mend=f"{layer}@{last}-{first}",
            )
        found.append(Place(layer, range(first, last + 1)))
    return found


def stop_after(
    model: Deployable | Levelled,
    board: Session,
    inputs: Mapping[str, Array] | None,
    layers: Sequence[str],
    *,
    threads: int | None = None,
    cores: str = "",
    timeout: float = RUN_SECONDS,
) -> Iterator[Stopped]:
    """The results of each of `layers`, written as Place says, in each iteration. `deploy` takes the
    same inputs, threads and cores. Raises InputError for an unknown layer; DeployError; RpcError,
    among them Refused for an iteration that the layer does not reach."""
    if isinstance(model, Levelled):
        model = model.fitting(board.device.machine, board.device.features)
    refuse_unfit(model.target, board.board, board.device)
    refuse_cores(cores, board.board, board.device)
    places = places_of(model, layers)
    described = described_model(model)
    given = fitting("input", inputs or {}, described.arguments | described.states)
    every = every_input(model, given)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    module = board.load(model)
    try:
        for place in places:
            for turn in place.turns:
                yield module.stop_after(
                    every, place.layer, turn, threads=threads, cores=cores, timeout=timeout
                )
    finally:
        module.close()
