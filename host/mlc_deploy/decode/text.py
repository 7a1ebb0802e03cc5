"""A text on a board: tokens are read into its cache, and it gives the next one.

    with Text(board.load(model)) as text:
        for token in text.reply([1, 15, 27], 64): ...

A model is one of decode.model: the state `position` says how many tokens were read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.module import RUN_SECONDS, Run

from ..errors import DecodeError
from ..graph.decoder import FILLED, LOGITS, POSITION, TOKEN
from .sampling import Sampling

if TYPE_CHECKING:
    from mlc_rpc.module import RemoteModule
    from mlc_targets.object_format import Model, Param

Array = NDArray[Any]
IDS = "input_ids"


@dataclass(frozen=True, slots=True)
class Step:
    """A run of the model on `tokens` of them: seconds on the board's clock, and as this machine
    sees them; executed instructions, where the board counts."""

    tokens: int
    board_s: float
    host_s: float
    instructions: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the board."""

    weights: int
    cache: int
    arena: int


class Text:
    """One text of a loaded decoder. Texts of one module share its weights."""

    def __init__(
        self, module: RemoteModule, *, threads: int = 1, cores: str = "",
        timeout: float = RUN_SECONDS, given: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        """given: what the first step takes beside its tokens, such as a sound."""
        refuse_other(module.model)
        self.model = module.model
        self._stream = module.stream(threads=threads, cores=cores, timeout=timeout)
        ids = self.model.arguments[IDS]
        self._widest, self._dtype = int(ids.shape[1]), ids.dtype
        self.steps: list[Step] = []
        self.read_so_far = 0
        self._given = dict(given or {})

    @property
    def room(self) -> int | None:
        """How many more tokens can be read; None where there is no end."""
        if FILLED in self.model.states:
            return None
        return length_of(self.model) - self.read_so_far

    @property
    def memory(self) -> Memory:
        cache = sum(map(_bytes, self.model.states.values()))
        return Memory(self.model.weights_bytes, cache, self.model.arena_bytes)

    def read(self, tokens: Sequence[int]) -> None:
        """Reads tokens behind those that were read. Raises DecodeError where there is no room, or
        for a number that is no token."""
        if not tokens:
            raise DecodeError("there is no token to read", mend="one at least, such as a beginning")
        if self.room is not None and len(tokens) > self.room:
            raise DecodeError(
                f"{len(tokens)} tokens do not fit into the cache, which has room for {self.room}"
                f" of {length_of(self.model)}",
                mend=f"--max-length {self.read_so_far + len(tokens)} or more (length= in Python)",
            )
        for begin in range(0, len(tokens), self._widest):
            part = list(tokens[begin : begin + self._widest])
            began = time.perf_counter()
            run = self._stream.profile({IDS: np.array([part], self._dtype), **self._given})
            self._given = {}
            self.steps.append(_step(len(part), run, time.perf_counter() - began))
            self.read_so_far += len(part)

    def next(self, sampling: Sampling, random: np.random.Generator) -> int:
        """The token behind those that were read."""
        if not sampling.draws:
            return self.likeliest()
        return sampling.draw(self._stream.results(LOGITS)[LOGITS], random)

    def likeliest(self) -> int:
        return int(self._stream.results(TOKEN)[TOKEN])

    def logits(self) -> Array:
        """How likely each token is to be the next, as the model says it."""
        return self._stream.results(LOGITS)[LOGITS]

    def reply(
        self, tokens: Sequence[int], most: int | None = None, sampling: Sampling | None = None,
        ends: Collection[int] = (),
    ) -> Iterator[int]:  # fmt: skip
        """Reads tokens and gives those that follow, `most` at most, until one of `ends`, which is
        not given, or until the cache is full."""
        how = sampling or Sampling()
        random = np.random.default_rng(how.seed)
        self.read(tokens)
        count = 0
        while True:
            if most is not None and count >= most:
                return
            token = self.next(how, random)
            if token in ends:
                return
            yield token
            count += 1
            if count == most or self.room == 0:
                return
            self.read([token])

    def save_state(self) -> dict[str, Array]:
        """All that was read, for `load_state` of any text of the model."""
        return self._stream.save_state()

    def load_state(self, states: Mapping[str, Array]) -> None:
        """Goes on from a saved state. Raises Refused, ValueError."""
        self._stream.load_state(states)
        self.read_so_far = int(states[POSITION])

    def close(self) -> None:
        """Frees what the text has on the board. Safe to call again."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _step(tokens: int, run: Run, host_s: float) -> Step:
    counted = None if run.counts is None else sum(c.total for c in run.counts)
    return Step(tokens, sum(run.nanoseconds) / 1e9, host_s, counted)


def _bytes(param: Param) -> int:
    return math.prod(map(int, param.shape)) * np.dtype(param.dtype).itemsize


def length_of(model: Model) -> int:
    """The tokens that a decoder's cache has room for."""
    return int(next(p.shape[2] for p in model.states.values() if len(p.shape) == 4))


def refuse_other(model: Model) -> None:
    """Raises DecodeError for a model that is no decoder as decode.model makes it."""
    lacking = [n for n, own in ((IDS, model.arguments), (POSITION, model.states)) if n not in own]
    if lacking:
        raise DecodeError(
            f"this model was not compiled as a decoder: it has no {' and no '.join(lacking)}",
            mend="mlc-deploy generate MODEL.onnx --save FILE.mlc",
        )
