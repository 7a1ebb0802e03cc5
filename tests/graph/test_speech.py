"""A decoder that reads what an encoder made of a sound, of any length up to a bound."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mlc_deploy.errors import GraphError
from mlc_deploy.graph import Function
from mlc_deploy.graph.builder import BlockBuilder
from mlc_deploy.graph.decoder import LOGITS, POSITION, TOKEN
from mlc_deploy.graph.dims import symbol
from mlc_deploy.graph.evaluate import evaluate
from mlc_deploy.graph.nodes import Constant
from mlc_deploy.graph.speech import HEARD_ROWS, apart, followed_by, giving, with_encoder
from mlc_deploy.graph.states import with_states
from mlc_deploy.graph.verify import verify

MOST = 6


@cache
def hear(factor: int = 2) -> Function:
    """keys[1, 1, n, 2] of sound[n, 2], and numbers that nobody reads"""
    builder = BlockBuilder("hear")
    sound = builder.param("sound", (symbol("n"), 2))
    builder.param("n", (), "int64")
    by = Constant(np.array(factor, np.float32))
    times = builder.emit("multiply", sound, by, name="times")
    keys = builder.emit("reshape", times, name="keys", shape=(1, 1, symbol("n"), 2))
    made = builder.finish([keys, times], ["keys", "times"])
    return replace(made, extents=(("n", MOST),))


@cache
def tell(rows: str | int = "n") -> Function:
    """The logits are the sums of what was heard, and what was said; there are as many positions as
    tokens."""
    builder = BlockBuilder("tell")
    ids = builder.param("input_ids", (1, 1), "int64")
    extent = symbol(rows) if isinstance(rows, str) else rows
    heard = builder.param("heard", (1, 1, extent, 2))
    if isinstance(rows, str):
        builder.param(rows, (), "int64")
    position = builder.param(POSITION, (), "int64")
    sums = builder.emit("sum", heard, name="sums", axes=(0, 1, 2), keepdims=False)
    said = builder.emit("cast", ids, name="said", dtype="float32")
    said = builder.emit("reshape", said, name="said", shape=(1,))
    logits = builder.emit("add", sums, said, name="logits")
    token = builder.emit("argmax", logits, name="token", axis=0, keepdims=False, last=False)
    one = Constant(np.array(1, np.int64))
    after = builder.emit("add", position, one, name="after")
    made = builder.finish([logits, token, after], [LOGITS, TOKEN, f"{POSITION}.next"])
    made = replace(made, extents=((rows, MOST),) if isinstance(rows, str) else ())
    return with_states(made, {POSITION: f"{POSITION}.next"})


def test_sounds_of_any_length() -> None:
    """The first step hears, and later ones read what was heard: not the sound that is given."""
    both = with_encoder(giving(hear(), ["keys"]), tell(), {"heard": "keys"})
    verify(both)
    for length in (1, 4, MOST):
        sound = np.random.default_rng(length).normal(size=(length, 2)).astype(np.float32)
        states = {p.name: np.zeros([n for n in p.type.shape if isinstance(n, int)], p.type.dtype)
                  for p in both.params if p.name in dict(both.states)}  # fmt: skip
        assert states["heard"].shape == (1, 1, MOST, 2)
        for step in range(3):
            given = sound if step == 0 else np.ones((2, 2), np.float32)
            found = evaluate(both, {"sound": given, "input_ids": np.array([[step]]), **states})
            states = {name: found[after] for name, after in both.states}
            np.testing.assert_allclose(found[LOGITS], 2 * sound.sum(0) + step, rtol=1e-5)
            assert (int(states[POSITION]), int(states[HEARD_ROWS])) == (step + 1, length)


def test_a_loaded_number_of_rows_stays_in_bounds() -> None:
    both = with_encoder(giving(hear(), ["keys"]), tell("m"), {"heard": "keys"})
    given = {"sound": np.ones((2, 2), np.float32), "input_ids": np.array([[0]])}
    states = {"heard": np.ones((1, 1, MOST, 2), np.float32), POSITION: np.array(1)}
    for rows, sums in ((-3, 0), (1000, MOST)):
        found = evaluate(both, {**given, **states, HEARD_ROWS: np.array(rows)})
        np.testing.assert_array_equal(found[LOGITS], [sums, sums])


def test_extents_of_one_name_are_told_apart() -> None:
    """And a function that follows another takes its extent."""
    other = apart(hear(3), ["n"])
    assert other.extents == (("n_1", MOST),) and other.params[1].name == "n_1"
    keys = giving(hear(), ["times"])
    twice = followed_by(keys, giving(hear(3), ["keys"]), {"sound": "times"})
    verify(twice)
    assert twice.extents == (("n", MOST),)
    sound = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(
        evaluate(twice, {"sound": sound})["keys"], np.full((1, 1, 4, 2), 6)
    )


def test_what_does_not_fit() -> None:
    with pytest.raises(GraphError) as caught:
        with_encoder(giving(hear(), ["keys"]), tell(5), {"heard": "keys"})
    assert str(caught.value) == (
        "'tell' reads float32[1, 1, 5, 2] as 'heard', and 'hear' gives float32[1, 1, n, 2]"
    )
    with pytest.raises(GraphError) as caught:
        with_encoder(hear(), tell(), {"heard": "values"})
    assert str(caught.value).endswith("as 'heard', and 'hear' gives nothing")
