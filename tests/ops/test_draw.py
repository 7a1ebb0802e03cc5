"""The token that a number draws: against decode/sampling.py, and in few passes over the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.decode.sampling import Sampling
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.ops import evaluate
from mlc_deploy.ops.draw import NAME
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

HOW = (
    Sampling(1.0), Sampling(0.7, top_k=50), Sampling(1.0, top_p=0.75), Sampling(1.3, top_k=1),
    Sampling(0.8, top_k=40, top_p=0.875), Sampling(1.0, top_k=3000, top_p=0.5),
    Sampling(1.0, top_p=1e-6), Sampling(2.0, top_k=7),
)  # fmt: skip
MANY = 32_000  # tokens, as Llama's vocabulary has


def drawing(size: int) -> Function:
    bb = BlockBuilder("draw")
    params = [bb.param("logits", (size,)), bb.param("t", ()), bb.param("k", (), "int64"),
              bb.param("p", ()), bb.param("draw", (), "float64")]  # fmt: skip
    return bb.finish([bb.emit(NAME, *params)], ["token"])


def given(
    logits: NDArray[np.float32], how: Sampling, draw: float
) -> dict[str, NDArray[np.generic]]:
    return {
        "logits": logits, "t": np.array(how.temperature, np.float32), "k": np.array(how.top_k),
        "p": np.array(how.top_p, np.float32), "draw": np.array(draw),
    }  # fmt: skip


def logits_of(random: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Narrow and wide ones, and now and then with equal ones among them."""
    made = random.normal(0, random.choice([1, 3, 8]), size)
    return (made.round() if random.random() < 0.3 else made).astype(np.float32)


@pytest.mark.parametrize(("board", "rounds"), [("local", 12), ("armv7", 2), ("aarch64", 2)])
def test_as_the_host_draws(board: str, rounds: int, request: pytest.FixtureRequest) -> None:
    session, random = board_named(request, board), np.random.default_rng(5)
    for size in (1, 5, 64, 100, 1000, 5000):
        module = session.load(mlc.compile(drawing(size), TARGETS[board]))
        for _ in range(rounds):
            logits = logits_of(random, size)
            for how in HOW:
                draw = random.random()
                sums = np.cumsum(how.likelihoods(logits))
                right = int(np.searchsorted(sums, draw, side="right"))
                inputs = given(logits, how, draw)
                assert int(module.run(inputs)["token"]) == right, (size, how)
                assert int(evaluate(NAME, tuple(inputs.values()), {})[0]) == right


def test_what_is_no_number_draws_a_token(local: Session) -> None:
    """Logits that went wrong lead out of no memory."""
    module = local.load(mlc.compile(drawing(300), "host"))
    for value in (np.nan, np.inf, -np.inf):
        logits = np.full(300, value, np.float32)
        for how in (*HOW, Sampling(1.0, top_p=1e-30), Sampling(1e-30)):
            assert 0 <= int(module.run(given(logits, how, 0.5))["token"]) < 300


def test_few_passes_over_the_logits(aarch64: Session) -> None:
    """Of top-k, in units of the pass that finds the largest logit; a search that halves the range
    of likelihoods takes 60."""
    bb = BlockBuilder("largest")
    x = bb.param("logits", (MANY,))
    largest = bb.finish([bb.emit("max", x, axes=(0,), keepdims=False)], ["y"])
    logits = np.random.default_rng(1).normal(0, 3, MANY).astype(np.float32)

    def count(function: Function, inputs: dict[str, NDArray[np.generic]]) -> int:
        module = aarch64.load(mlc.compile(function, TARGETS["aarch64"]))
        counts = module.profile(inputs).run.counts
        assert counts is not None
        return sum(c.total for c in counts)

    one = count(largest, {"logits": logits})
    for how, most in ((Sampling(0.7, top_k=50), 10), (Sampling(0.8, top_k=40, top_p=0.95), 10),
                      (Sampling(1.0), 20)):  # fmt: skip
        assert count(drawing(MANY), given(logits, how, 0.5)) < most * one
