"""A text on a board: reads tokens into its cache and gives the next one.

    with Text(board.load(model)) as text:
        for token in text.reply([1, 15, 27], 64): ...

The model is one that decode.model made: its state `position` counts the tokens that were read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.closing import Closing
from mlc_rpc.module import RUN_SECONDS, Run
from mlc_targets.object_format import Branch, Loop

from ..errors import DecodeError
from ..graph.decoder import FILLED, LIKELIEST, LOGITS, POSITION, TOKEN
from ..graph.decoder_loop import (
    DRAW,
    DRAWS,
    ENDS,
    FIRST,
    MOST_ENDS,
    NO_TOKEN,
    REST,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WANTED,
    WRITTEN,
)
from .sampling import Sampling

if TYPE_CHECKING:
    from mlc_rpc.module import RemoteModule
    from mlc_targets.object_format import Model, Param

Array = NDArray[Any]
IDS = "input_ids"


@dataclass(frozen=True, slots=True)
class Step:
    """A run of the model on `tokens` tokens: seconds by the board's clock and by this machine's;
    executed instructions, if the board counts them."""

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


class Text(Closing):
    """One text of a loaded decoder. Texts of one module share its weights."""

    def __init__(
        self, module: RemoteModule, *, threads: int = 1, cores: str = "",
        timeout: float = RUN_SECONDS, given: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        """given: other inputs of the first step, such as a sound."""
        refuse_other(module.model)
        self.model = module.model
        self._stream = module.stream(threads=threads, cores=cores, timeout=timeout)
        ids = self.model.arguments[IDS]
        self._widest, self._dtype = int(ids.shape[1]), ids.dtype
        self._one = {IDS: np.zeros((1, 1), self._dtype)}
        self.steps: list[Step] = []
        self.read_so_far = 0
        self._vocabulary = vocabulary_of(self.model)
        self._length = None if FILLED in self.model.states else length_of(self.model)
        self._timeout = timeout
        self._most = written_at_once(self.model)
        self._in_loop = calls_in_loop(self.model) if self._most else frozenset()
        waits = choice(self.model, 0) if self._most else {}
        self._beside: dict[str, Array] = {**waits, **(given or {})}  # inputs beside the next tokens
        self._goes_ahead = LIKELIEST in self.model.states
        self._since = 0.0  # when the last step on request ended, by time.perf_counter()

    @property
    def loops(self) -> bool:
        """Whether the model can `write`: it was compiled with the loop."""
        return self._most > 0

    @property
    def room(self) -> int | None:
        """How many more tokens can be read; None for no limit."""
        return None if self._length is None else self._length - self.read_so_far

    @property
    def memory(self) -> Memory:
        cache = sum(map(_bytes, self.model.states.values()))
        return Memory(self.model.weights_bytes, cache, self.model.arena_bytes)

    def read(self, tokens: Sequence[int]) -> None:
        """Reads more tokens. Raises DecodeError if there is no room, no token, or one that the
        vocabulary lacks."""
        self._refuse(tokens)
        for begin in range(0, len(tokens), self._widest):
            part = tokens[begin : begin + self._widest]
            run, seconds = self._run(part, self._beside)
            self._beside = {}
            self.steps.append(_step(len(part), run, seconds))

    def _run(
        self, part: Sequence[int], asked: Mapping[str, Array], *, total: bool = True,
        timeout: float | None = None,
    ) -> tuple[Run, float]:  # fmt: skip
        """Reads a part in one run. Returns the run, and its seconds by this machine's clock."""
        if self._stream.asked:
            self._settle()
        began = time.perf_counter()
        if len(part) == 1 and not asked:
            given = self._one  # made once: most steps read one token
            given[IDS][0, 0] = part[0]
        else:
            given = {IDS: np.array([part], self._dtype), **asked}
        run = self._stream.profile(given, total=total, timeout=timeout)
        self.read_so_far += len(part)
        return run, time.perf_counter() - began

    def _refuse(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise DecodeError("there is no token to read", mend="one at least, such as a beginning")
        if self._vocabulary is not None:
            refuse_unknown(tokens, self._vocabulary)
        if self.room is not None and len(tokens) > self.room:
            raise DecodeError(
                f"{len(tokens)} tokens do not fit into the cache, which has room for {self.room}"
                f" of {self._length}",
                mend=f"--max-length {self.read_so_far + len(tokens)} or more (length= in Python)",
            )

    def next(self, sampling: Sampling, random: np.random.Generator) -> int:
        """The next token."""
        if not sampling.draws:
            return self.likeliest()
        return sampling.draw(self._stream.results(LOGITS)[LOGITS], random)

    def likeliest(self) -> int:
        return int(self._stream.number(TOKEN))

    def logits(self) -> Array:
        """The model's logits of the next token."""
        return self._stream.results(LOGITS)[LOGITS]

    def reply(
        self, tokens: Sequence[int], most: int | None = None, sampling: Sampling | None = None,
        ends: Collection[int] = (),
    ) -> Iterator[int]:  # fmt: skip
        """Reads tokens and yields those that follow: at most `most`, up to one of `ends`, which is
        not yielded, or until the cache is full."""
        how = sampling or Sampling()
        random = np.random.default_rng(how.seed)
        self.read(tokens)
        if not how.draws:
            yield from self.follow(self.likeliest(), most, ends)
            return
        left = math.inf if most is None else most
        while left > 0 and (token := self.next(how, random)) not in ends:
            yield token
            left -= 1
            if left > 0:
                if self.room == 0:
                    return
                self.read([token])

    def follow(
        self, token: int, most: int | None = None, ends: Collection[int] = ()
    ) -> Iterator[int]:
        """Yields `token`, which is not read yet, and the most likely ones after it, as `reply`
        does. The board reads each token as soon as it has chosen it, while this machine still
        receives the one before. Tokens that it reads beyond the text's end are forgotten."""
        left = math.inf if most is None else most
        chosen = False  # whether the board chose the token, and so knows it
        try:
            while left > 0 and token not in ends:
                if chosen:
                    self._ask(min(1, left - 1))
                yield token
                left -= 1
                if left == 0 or self.room == 0:
                    return
                if self._stream.asked:
                    self._ask(min(2, left))
                    self._await()
                else:
                    self.read([token])
                token, chosen = self.likeliest(), True
        finally:
            self._settle()

    def _ask(self, wanted: float) -> None:
        """Requests steps until `wanted` are under way, or the cache has no room. Each reads the
        most likely token of the step before."""
        asked = self._stream.asked
        while self._goes_ahead and len(asked) < wanted and self.room != len(asked):
            if not asked:
                self._stream.give({IDS: np.array([[NO_TOKEN]], self._dtype)})
                self._since = time.perf_counter()
            self._goes_ahead = self._stream.ask()

    def _await(self) -> None:
        """Waits for the oldest requested step."""
        run = self._stream.await_asked()
        now = time.perf_counter()
        self.read_so_far += 1
        self.steps.append(_step(1, run, now - self._since))
        self._since = now

    def _settle(self) -> None:
        """Ends all steps under way. Tokens that were read ahead are forgotten."""
        if ran := self._stream.drop_asked():
            states = {POSITION: np.array(self.read_so_far)}
            if FILLED in self.model.states:
                states[FILLED] = self._stream.state(FILLED) - ran
            self._stream.load_state(states)

    def write(
        self, tokens: Sequence[int], most: int | None = None, sampling: Sampling | None = None,
        ends: Collection[int] = (),
    ) -> Iterator[int]:  # fmt: skip
        """As `reply`, by the loop on the board: the tokens of a run come together. Raises
        DecodeError for a model without the loop."""
        if not self._most:
            raise DecodeError(
                "the model was compiled without the loop that writes on the board",
                mend="--loop board (loop='board' in Python) where it is compiled",
            )
        if len(ends) > MOST_ENDS:
            what = f"{len(ends)} tokens end a text, and the loop on the board knows {MOST_ENDS}"
            raise DecodeError(what, mend="--loop host")
        if most is not None and most < 1:
            self.read(tokens)
            return
        how = sampling or Sampling()
        random = np.random.default_rng(how.seed)
        self._refuse(tokens)
        if first := (len(tokens) - 1) // self._widest * self._widest:
            self.read(tokens[:first])
        part, count = tokens[first:], 0
        while part:
            wanted = self._most if most is None else min(self._most, most - count)
            if self.room is not None:
                wanted = min(wanted, self.room - len(part) + 1)
            made = self._written(part, wanted, how, random, ends)
            ended = made[-1] in ends
            given = made[:-1] if ended else made
            count += len(given)
            yield from given
            if ended or count == most or self.room == 0:
                return
            part = made[-1:]

    def _written(
        self, part: Sequence[int], wanted: int, how: Sampling, random: np.random.Generator,
        ends: Collection[int],
    ) -> list[int]:  # fmt: skip
        """The tokens of one run: `wanted` of them, or fewer if the last one is an end."""
        asked = choice(self.model, wanted, how, random, ends)
        run, seconds = self._run(part, asked, total=False, timeout=self._timeout * wanted)
        self._beside = {WANTED: np.array(0)}
        found = self._stream.results(FIRST, REST, WRITTEN)
        count = int(found[WRITTEN])
        self.read_so_far += count - 1
        before, loop = _parted(run, self._in_loop)
        self.steps.append(_step(len(part), before, seconds))
        if count > 1:
            self.steps.append(_step(count - 1, loop, 0.0))
        return [int(found[FIRST]), *map(int, found[REST][: count - 1])]

    def reset(self) -> None:
        """Forgets all tokens."""
        self._settle()
        self._stream.reset()
        self.read_so_far = 0

    def save_state(self) -> dict[str, Array]:
        """The state after all read tokens, for `load_state` of any text of the model."""
        self._settle()
        return self._stream.save_state()

    def load_state(self, states: Mapping[str, Array]) -> None:
        """Continues from a saved state. Raises Refused, ValueError."""
        self._settle()
        self._stream.load_state(states)
        self.read_so_far = int(states[POSITION])

    def close(self) -> None:
        """Frees the text's memory on the board. Safe to call again."""
        self._stream.close()


def _step(tokens: int, run: Run, host_s: float) -> Step:
    counted = None if run.counts is None else sum(c.total for c in run.counts)
    return Step(tokens, sum(run.nanoseconds) / 1e9, host_s, counted)


def _parted(run: Run, calls: Collection[int]) -> tuple[Run, Run]:
    """A run's costs outside of these calls, and in them."""
    parts = [n for n in range(len(run.nanoseconds)) if n not in calls], sorted(calls)

    def of(numbers: Sequence[int]) -> Run:
        counts = None if run.counts is None else tuple(run.counts[n] for n in numbers)
        return Run(tuple(run.nanoseconds[n] for n in numbers), counts)

    return of(parts[0]), of(parts[1])


def written_at_once(model: Model) -> int:
    """The most tokens that one run of a model writes; 0 without the loop."""
    draws = model.arguments.get(DRAWS)
    return 0 if draws is None else int(draws.shape[0]) + 1


def calls_in_loop(model: Model) -> frozenset[int]:
    """The numbers of the calls in the loop that writes."""

    def calls(procedure: int) -> Iterator[int]:
        for step in model.procedures[procedure]:
            match step:
                case int():
                    yield step
                case Loop(procedure=inner):
                    yield from calls(inner)
                case Branch(procedure=then, otherwise=otherwise):
                    yield from calls(then)
                    yield from calls(otherwise)

    loops = [step for step in model.procedures[0] if isinstance(step, Loop)]
    return frozenset(number for loop in loops for number in calls(loop.procedure))


def choice(
    model: Model, wanted: int, how: Sampling | None = None,
    random: np.random.Generator | None = None, ends: Collection[int] = (),
) -> dict[str, Array]:  # fmt: skip
    """The inputs with which a model's loop writes `wanted` tokens."""
    how = how or Sampling()
    draws = np.zeros(written_at_once(model))
    if random is not None and how.draws:
        draws[:wanted] = random.random(wanted)
    known = np.full(MOST_ENDS, NO_TOKEN)
    known[: len(ends)] = sorted(ends)
    return {
        WANTED: np.array(wanted), ENDS: known, TEMPERATURE: np.array(how.temperature, np.float32),
        TOP_K: np.array(how.top_k), TOP_P: np.array(how.top_p, np.float32),
        DRAW: draws[:1].reshape(()), DRAWS: draws[1:],
    }  # fmt: skip


def _bytes(param: Param) -> int:
    return math.prod(map(int, param.shape)) * np.dtype(param.dtype).itemsize


def length_of(model: Model) -> int:
    """The tokens that a decoder's cache has room for."""
    return int(next(p.shape[2] for p in model.states.values() if len(p.shape) == 4))


def vocabulary_of(model: Model) -> int | None:
    """The number of tokens that a decoder knows; None for one that gives no logits."""
    logits = model.results.get(LOGITS)
    return None if logits is None else int(logits.shape[-1])


def refuse_unknown(tokens: Sequence[int], vocabulary: int) -> None:
    """Raises DecodeError for a token that a vocabulary of this size lacks."""
    for place, token in enumerate(tokens):
        if token.__class__ is int and 0 <= token < vocabulary:  # few steps: each token comes here
            continue
        if not isinstance(token, (int, np.integer)) or not 0 <= token < vocabulary:
            raise DecodeError(
                f"{token!r} is not a token: the model's vocabulary has {vocabulary} tokens",
                where=f"token {place + 1} of {len(tokens)}",
                mend=f"tokens from 0 to {vocabulary - 1}; the tokenizer of this model makes them",
            )


def refuse_other(model: Model) -> None:
    """Raises DecodeError for a model that was not made by decode.model."""
    lacking = [n for n, own in ((IDS, model.arguments), (POSITION, model.states)) if n not in own]
    if lacking:
        raise DecodeError(
            f"this model was not compiled as a decoder: it has no {' and no '.join(lacking)}",
            mend="mlc-deploy generate MODEL.onnx --save FILE.mlc",
        )
