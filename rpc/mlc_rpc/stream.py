"""A model with states, step by step. The states stay on the board.

    with board.load(model).stream() as stream:
        for frame in frames:
            probability = stream.step({"input": frame})["output"]

Streams of one module share its weights; each has its own states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.closing import Closing
from mlc_rpc.errors import Refused, RpcError
from mlc_rpc.extents import results_of, stored
from mlc_rpc.tensor import RemoteTensor
from mlc_targets.object_format import Param

if TYPE_CHECKING:
    from mlc_rpc.module import RemoteModule, Run

Array = NDArray[Any]


class Stream(Closing):
    """The inputs, outputs and states of one use of a module's model. States are zero at first.

    threads, cores and timeout (in seconds, of each step) are as RemoteModule.run takes them.
    """

    def __init__(
        self, module: RemoteModule, *, threads: int = 1, cores: str = "", timeout: float
    ) -> None:
        self.module = module
        self._how: dict[str, Any] = {"threads": threads, "cores": cores, "timeout": timeout}
        model = module.model
        self._arguments, self._extents = model.arguments, model.extents
        self._inputs = {p.name: self._allocated(p) for p in model.inputs}
        every = [(p, self._allocated(p)) for p in model.outputs]
        self._states = {p.state: tensor for p, tensor in every if p.state}
        self._own = {p.name: tensor for p, tensor in every if not p.state}
        self._outputs = self._own  # of the last step
        self.asked: deque[Callable[[], Run]] = deque()  # wait for the steps that `ask` asked for
        self._args = (*self._inputs.values(), *(tensor for _, tensor in every))
        self._run = module.entry.repeated(*self._args, **self._how)
        self._timed = module.entry.repeated_total(*self._args, **self._how)
        self._fixed = {p.name for p in model.outputs if not p.open and p.name not in model.extents}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the inputs given so far
        self._places: dict[str, Array] = {}  # of those inputs, in this machine's memory

    def step(self, inputs: Mapping[str, Array] | Array) -> dict[str, Array]:
        """Runs the model once, from the states that the last step left. Returns the outputs by
        name, without the states.

        inputs: arrays by name, or the array of a model with one input. Inputs that are left out
        keep their last value. Raises Refused for an unknown input and for one that was never given,
        ValueError for an array of another shape or dtype.
        """
        self.give(inputs)
        self._outputs = self._own
        self._run()
        return self.results()

    def profile(
        self, inputs: Mapping[str, Array] | Array, *, total: bool = False,
        timeout: float | None = None,
    ) -> Run:  # fmt: skip
        """As `step`, but returns the step's cost, as RemoteFunction.profile does; `results` has the
        outputs. timeout: of this step (default: the stream's)."""
        self.give(inputs)
        self._outputs = self._own
        if total and timeout is None:
            return self._timed()
        how = self._how if timeout is None else {**self._how, "timeout": timeout}
        return self.module.entry.profile(*self._args, total=total, **how)

    def results(self, *names: str) -> dict[str, Array]:
        """The outputs of the last step; only those named are read (default: all)."""
        if not self._extents or (names and self._fixed.issuperset(names)):
            return {name: self._outputs[name].take() for name in names or self._outputs}
        wanted = {name: t for name, t in self._outputs.items() if not names or name in names}
        wanted |= {n: t for n, t in self._outputs.items() if n in self._extents}
        found = results_of(self.module.model, self._inputs | wanted, RemoteTensor.take)
        return {name: found[name] for name in names} if names else found

    def number(self, name: str) -> int | float | bool:
        """An output of the last step that is one number and has a fixed size."""
        return self._outputs[name].number()

    def ask(self) -> bool:
        """Asks for a step with the current inputs; the board begins it when the step before has
        ended. Two can be asked for. False if this machine takes part in each step."""
        if self._asks is None:
            return False
        own, spare = self._asks
        elsewhere = not self.asked  # keeps the last step's outputs, which may still be read
        self.asked.append((own if elsewhere is (self._outputs is self._spare) else spare)())
        return True

    def await_asked(self) -> Run:
        """Waits for the oldest step that was asked for and returns its cost. `results` has its
        outputs until another step is asked for. Raises as `step` does."""
        run = self.asked.popleft()()
        self._outputs = self._own if self._outputs is self._spare else self._spare
        return run

    def drop_asked(self) -> int:
        """Waits for all steps that were asked for and drops their outputs. Returns how many ran."""
        ran = 0
        with suppress(RpcError):
            while self.asked:
                self.asked.popleft()()
                ran += 1
        self.asked.clear()
        return ran

    @cached_property
    def _spare(self) -> dict[str, RemoteTensor]:
        """A second set of outputs: one is read while the next step writes the other."""
        return {p.name: self._allocated(p) for p in self.module.model.outputs if not p.state}

    @cached_property
    def _asks(self) -> tuple[Callable[[], Callable[[], Run]], ...] | None:
        """Functions that ask for a step: the first writes `_own`, the second `_spare`."""
        own = self.module.entry.asked(*self._args, **self._how)
        if own is None:
            return None
        spare = {self._own[name]: tensor for name, tensor in self._spare.items()}
        args = [spare.get(tensor, tensor) for tensor in self._args]
        other = self.module.entry.asked(*args, **self._how)
        assert other
        return own, other

    def give(self, inputs: Mapping[str, Array] | Array) -> None:
        """Sets the inputs of later steps, for `ask`. Takes them as `step` does."""
        if self.asked:
            raise self._refusal("a step that was asked for is neither awaited nor dropped")
        given = inputs if isinstance(inputs, Mapping) else {self._only(): inputs}
        if self._put_in_place(given):
            return
        known = self._shapes
        if known and all(known.get(n) == np.shape(array) for n, array in given.items()):
            for name, array in given.items():  # extents stay as they were
                self._inputs[name].put_first(array)
            return
        unknown = [name for name in given if name not in self._arguments]
        missing = self._arguments.keys() - self._shapes.keys() - given.keys()
        if unknown or missing:
            faults = [f"unknown: {', '.join(unknown)}"] if unknown else []
            faults += [f"missing: {', '.join(sorted(missing))}"] if missing else []
            raise self._refusal(f"the step's inputs are not the model's ({'; '.join(faults)})")
        arrays = stored(self.module.model, given, self._shapes) if self._extents else given
        for name, array in arrays.items():
            self._inputs[name].put(array)
        self._shapes |= {name: np.shape(array) for name, array in given.items()}
        for name in given:
            place = self._inputs[name].place(self._shapes[name])
            if place is not None:
                self._places[name] = place

    def _put_in_place(self, given: Mapping[str, Array]) -> bool:
        """Writes inputs straight to the board's memory. False, with some perhaps written, if that
        is not mapped or a shape or dtype differs from the last step's."""
        for name, array in given.items():
            place = self._places.get(name)
            if place is None or not isinstance(array, np.ndarray):
                return False
            if place.shape != array.shape or place.dtype != array.dtype:
                return False
            place[...] = array
        return bool(self._places)

    def reset(self) -> None:
        """Sets the states to zero, as before the first step."""
        for tensor in self._states.values():
            tensor.fill("zero")

    def state(self, name: str) -> Array:
        """One of the states."""
        return self._states[name].numpy()

    def save_state(self) -> dict[str, Array]:
        """The states by input name, for `load_state` of any stream of the model."""
        return {name: tensor.numpy() for name, tensor in self._states.items()}

    def load_state(self, states: Mapping[str, Array]) -> None:
        """The next step begins with these states; states that are not named stay.
        Raises Refused for a name that is not a state; ValueError for another shape or dtype."""
        for name in states:
            if name not in self._states:
                known = ", ".join(self._states) or "none: the model has no states"
                raise Refused(f"the model has no state '{name}'", board=self._board, attempt=known)
        for name, array in states.items():
            self._states[name].write(np.asarray(array))

    def close(self) -> None:
        """Frees what the stream has on the board. Safe to call again."""
        for tensor in (*self._args, *vars(self).get("_spare", {}).values()):
            tensor.close()

    @property
    def _board(self) -> str:
        return self.module.session.board

    def _allocated(self, param: Param) -> RemoteTensor:
        return self.module.session.empty([int(n) for n in param.shape], param.dtype)

    def _only(self) -> str:
        """The name of the only input. Raises Refused if there are several."""
        names = list(self._arguments)
        if len(names) != 1:
            raise self._refusal("an array without a name is for a model of one input")
        return names[0]

    def _refusal(self, what: str) -> Refused:
        every = ", ".join(f"{name}: {p}" for name, p in self._arguments.items())
        return Refused(what, board=self._board, attempt=f"inputs {every}")
