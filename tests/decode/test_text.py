"""Decoders on boards, token by token: against onnxruntime, whose cache grows from step to step."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.model import STEP, read_decoder
from mlc_deploy.decode.sampling import Sampling
from mlc_deploy.decode.text import Text
from mlc_deploy.errors import DecodeError
from mlc_targets import Target, TargetError
from tests.decode.tiny import (
    FUSED,
    HEAD,
    KEPT,
    LAYERS,
    PLAIN,
    PROMPT,
    VOCABULARY,
    by_onnxruntime,
    decoder,
    planned,
    saved,
)
from tests.driver.test_streams import voice_activity
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

LENGTH, COUNT = 64, 40


@dataclass(frozen=True)
class Made:
    """A decoder's file, compiled for this machine, and onnxruntime's tokens and logits."""

    file: Path
    decoder: mlc.Decoder
    tokens: list[int]
    logits: list[np.ndarray]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    file = saved(tmp_path_factory.mktemp("decoders"))
    tokens, logits = by_onnxruntime(file, PROMPT, COUNT)
    assert len(set(tokens)) > COUNT // 3  # no text that any mistake would write
    return Made(file, mlc.load_decoder(file, "host", length=LENGTH), tokens, logits)


def test_the_same_tokens(made: Made, local: Session) -> None:
    reply = mlc.generate(made.decoder, PROMPT, local, tokens=COUNT)
    assert list(reply) == made.tokens == reply.tokens
    summary = reply.summary
    assert (summary.prompt, summary.tokens, summary.ended) == (len(PROMPT), COUNT, "limit")
    assert summary.prefill_s > 0 and summary.decode_s > 0 and summary.first_s > summary.prefill_s
    assert summary.prefill_rate and summary.decode_rate and summary.instructions is None


@pytest.mark.parametrize(("style", "board"), [(PLAIN, "armv7"), (FUSED, "aarch64")])
def test_the_same_tokens_on_arm(
    style: str, board: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    session = board_named(request, board)
    file = saved(tmp_path, style)
    tokens, _ = by_onnxruntime(file, PROMPT, 12)
    reply = mlc.generate(file, PROMPT, session, tokens=12, length=32, target=TARGETS[board])
    assert list(reply) == tokens
    assert reply.summary.instructions


def test_logits_of_every_step(made: Made, local: Session) -> None:
    with mlc.Text(local.load(made.decoder.model)) as text:
        text.read(PROMPT)
        for token, logits in zip(made.tokens, made.logits, strict=True):
            assert text.logits().shape == (VOCABULARY,)
            np.testing.assert_allclose(text.logits(), logits, rtol=1e-3, atol=1e-3)
            if text.room:
                text.read([token])


def test_a_token_is_few_calls_of_python(made: Made, local: Session) -> None:
    """What this machine does for a token: calls of functions, all in the caller's thread, which
    reads by itself; the other would have to wake it up. Neither these nor the bytes that are sent
    grow with the calls of the model."""
    calls: Counter[str] = Counter()

    def note(_: object, event: str, __: object) -> None:
        calls[event] += 1

    take, readers = local.link._take_response, set[str]()

    def noted(source: Any) -> bool:
        readers.add(threading.current_thread().name)
        return take(source)

    with mlc.Text(local.load(made.decoder.model)) as text:
        text.read(PROMPT)
        text.read([text.likeliest()])
        local.link._take_response = noted  # type: ignore[method-assign]
        sent = local.sent_bytes
        sys.setprofile(note)
        for _ in range(20):
            text.read([text.likeliest()])
        sys.setprofile(None)
        del local.link._take_response
        assert 20 < (calls["call"] + calls["c_call"]) / 20 < 120, calls
        assert readers == {threading.current_thread().name}
        assert (local.sent_bytes - sent) / 20 < 150
        assert all(step.board_s > 0 for step in text.steps)


def test_a_prompt_of_several_steps(made: Made, local: Session) -> None:
    prompt = (PROMPT * 3)[: STEP + 5]
    tokens, _ = by_onnxruntime(made.file, prompt, 8)
    with mlc.Text(local.load(made.decoder.model)) as text:
        assert list(text.reply(prompt, 8)) == tokens
        assert [step.tokens for step in text.steps] == [STEP, 5, *[1] * 7]


def test_one_copy_of_weights_and_a_cache_in_place(made: Made) -> None:
    """A step of one token has kernels of its own, and shares all weights with longer ones. Neither
    copies a cache."""
    model = made.decoder.model
    assert isinstance(model, mlc.CompiledModel)
    weights = sum(
        int(np.prod(t.dims)) * 4 for t in onnx.load(made.file).graph.initializer if t.data_type == 1
    )
    assert len(planned(made.file, "aarch64", length=LENGTH).weights) < 1.02 * weights
    if Target("host").lanes("float32") <= 8:  # for longer vectors columns are filled up
        assert len(model.program.weights) < 1.02 * weights
    assert len(model.program.procedures) == 3
    caches = {p.name for p in model.metadata.model.outputs if p.state}  # type: ignore[union-attr]
    assert {"position.next", "past_key_values.0.key.next"} <= caches
    whole = LENGTH * 2 * 16 * 4  # bytes of one cache
    for call in model.program.calls:
        if call.kernel.startswith("copy"):
            assert all(place.size < whole for place in call.args)


def test_attention_reads_the_cache_in_place(made: Made) -> None:
    """Neither scores nor keys in another order: memory grows by what is added to scores alone."""
    model = made.decoder.model
    assert isinstance(model, mlc.CompiledModel)
    kernels = [call.kernel for call in model.program.calls]
    assert sum("attention" in k for k in kernels) == 2 * LAYERS
    assert not any("softmax" in k for k in kernels)
    longer = planned(made.file, "host", length=4 * LENGTH)
    more = STEP * 3 * LENGTH * 8 + 2048  # bytes: a mask, and places of the tokens
    assert longer.arena - model.program.arena < more


def test_weights_of_few_bits_are_there_once(tmp_path: Path) -> None:
    """A row's kernel and that of many rows read the same packed weights."""
    file = saved(tmp_path, FUSED)
    stored = sum(
        int(np.prod(t.dims)) * {1: 4, 2: 1}.get(t.data_type, 0)
        for t in onnx.load(file).graph.initializer
    )
    for target in ("aarch64", "armv7a", "host"):
        program = planned(file, target, length=32)
        assert len(program.procedures) == 3
        assert len(program.weights) < 1.05 * stored, target


@pytest.mark.parametrize(("style", "board"), [(PLAIN, "local"), (FUSED, "aarch64")])
def test_a_cache_of_float16(
    style: str, board: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Half the memory, and the same tokens: logits are off by less than what float16 rounds."""
    session = board_named(request, board)
    file = saved(tmp_path, style)
    tokens, logits = by_onnxruntime(file, PROMPT, 12)
    decoder = mlc.load_decoder(file, TARGETS[board], length=LENGTH, cache="float16")
    with mlc.Text(session.load(decoder.model)) as text:
        assert list(text.reply(PROMPT, 12)) == tokens
        assert text.memory.cache - 16 == 2 * LAYERS * KEPT * LENGTH * HEAD * 2
        assert isinstance(decoder.model, mlc.CompiledModel)
        assert not any("softmax" in call.kernel for call in decoder.model.program.calls)
        caches = {str(array.dtype) for array in text.save_state().values() if array.ndim == 4}
        assert caches == {"float16"}
        off = np.abs(text.logits() - logits[-1]).max() / np.abs(logits[-1]).max()
        assert 0 < off < 2e-3


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
def test_a_cache_of_int8(board: str, made: Made, request: pytest.FixtureRequest) -> None:
    """A quarter of the memory, and a scale for each head and row; attention reads it as it is. The
    tiny model's logits are off by a few parts in 100, which onnxruntime's text shows."""
    session = board_named(request, board)
    decoder = mlc.load_decoder(made.file, TARGETS[board], length=LENGTH, cache="int8")
    assert isinstance(decoder.model, mlc.CompiledModel)
    assert not any("softmax" in call.kernel for call in decoder.model.program.calls)
    count = COUNT if board == "local" else 8
    off: list[float] = []
    with mlc.Text(session.load(decoder.model)) as text:
        text.read(PROMPT)
        for token, right in zip(made.tokens[:count], made.logits, strict=False):
            off.append(float(np.abs(text.logits() - right).max() / np.abs(right).max()))
            text.read([token])
        rows = 2 * LAYERS * KEPT * LENGTH
        assert text.memory.cache - 16 == rows * HEAD + rows * 4
        state = text.save_state()
    assert {str(a.dtype) for n, a in state.items() if n.endswith(("key", "value"))} == {"int8"}
    assert 1e-4 < max(off) < 0.15 and float(np.median(off)) < 0.05


def test_a_saved_state_goes_on(made: Made, local: Session) -> None:
    module = local.load(made.decoder.model)
    with mlc.Text(module) as first, mlc.Text(module) as second:
        assert list(first.reply(PROMPT, 10)) == made.tokens[:10]
        state = first.save_state()
        assert int(state["position"]) == len(PROMPT) + 9
        second.load_state(state)
        rest = list(second.reply(made.tokens[9:10], 8))
        assert rest == made.tokens[10:18] == list(first.reply(made.tokens[9:10], 8))


def test_a_full_cache_ends_the_text(made: Made, local: Session) -> None:
    reply = mlc.generate(made.decoder, PROMPT, local, tokens=1000)
    assert len(list(reply)) == LENGTH - len(PROMPT) + 1
    assert reply.summary.ended == "full"
    ended = mlc.generate(made.decoder, PROMPT, local, tokens=COUNT)
    ended._ends = frozenset({made.tokens[5]})
    stop = made.tokens.index(made.tokens[5])
    assert list(ended) == made.tokens[:stop] and ended.summary.ended == "end"


def test_drawn_tokens_are_the_seeds(made: Made, local: Session) -> None:
    def drawn(**how: float) -> list[int]:
        return list(mlc.generate(made.decoder, PROMPT, local, tokens=12, **how))

    warm = drawn(temperature=1.5, seed=1)
    assert warm == drawn(temperature=1.5, seed=1) != drawn(temperature=1.5, seed=2)
    assert drawn(temperature=1.5, top_k=1, seed=3) == made.tokens[:12]
    assert drawn(temperature=1.5, top_p=1e-6, seed=3) == made.tokens[:12]


def test_likelihoods() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    every = Sampling(temperature=1.0)
    np.testing.assert_allclose(every.likelihoods(logits), [0.1, 0.4, 0.2, 0.3])
    two = Sampling(temperature=1.0, top_k=2).likelihoods(logits)
    np.testing.assert_allclose(two, [0, 4 / 7, 0, 3 / 7])
    most = Sampling(temperature=1.0, top_p=0.6).likelihoods(logits)
    np.testing.assert_allclose(most, [0, 4 / 7, 0, 3 / 7])
    cold = Sampling(temperature=0.5).likelihoods(logits)
    np.testing.assert_allclose(cold, np.array([1, 16, 4, 9]) / 30)


def test_steps_that_are_asked_for_ahead(made: Made, local: Session) -> None:
    """What was read beyond the end of a text, or beyond where somebody stopped, is forgotten."""
    end = made.tokens.index(made.tokens[9])
    with mlc.Text(local.load(made.decoder.model)) as text:
        assert list(text.reply(PROMPT, ends=[made.tokens[end]])) == made.tokens[:end]
        assert text.read_so_far == len(PROMPT) + end == int(text.save_state()["position"])
        assert list(text.reply([made.tokens[end]], 3)) == made.tokens[end + 1 : end + 4]

        text.reset()
        reply = text.reply(PROMPT, COUNT)
        for number in range(6):
            assert next(reply) == made.tokens[number]
            np.testing.assert_allclose(text.logits(), made.logits[number], rtol=1e-3, atol=1e-3)
        assert text.read_so_far == len(PROMPT) + 5
        state = text.save_state()  # in the midst of a reply, which then goes on
        assert list(reply) == made.tokens[6:]
        text.load_state(state)
        assert list(text.reply([made.tokens[5]], 9)) == made.tokens[6:15]

        text.reset()
        reply = text.reply(PROMPT)
        assert [next(reply) for _ in range(4)] == made.tokens[:4]
        text.reset()
        text.read(PROMPT)
        assert text.likeliest() == made.tokens[0]


def test_a_window_that_ends_ahead(tmp_path: Path, local: Session) -> None:
    """The rows of tokens that are forgotten are forgotten wherever the cache was moved."""
    window, count = 8, 90
    file = saved(tmp_path, window=window)
    tokens, _ = by_onnxruntime(file, PROMPT, count)
    decoder = mlc.load_decoder(file, "host", length=window - 1 + STEP, window=window)
    with mlc.Text(local.load(decoder.model)) as text:
        text.read(PROMPT)
        found = [text.likeliest()]
        while len(found) < count:
            pieces = text.follow(found.pop(), STEP)
            found += [next(pieces) for _ in range(3 + len(found) % 5)]
            del pieces
            text.read([found[-1]])
            found.append(text.likeliest())
        assert found[:count] == tokens


def test_a_window_in_constant_memory(tmp_path: Path, local: Session) -> None:
    """Many more tokens than the cache has rows."""
    window, count = 8, 120
    file = saved(tmp_path, window=window)
    tokens, _ = by_onnxruntime(file, PROMPT, count)
    length = window - 1 + STEP
    reply = mlc.generate(file, PROMPT, local, tokens=count, length=length, window=window)
    assert list(reply) == tokens
    assert reply.summary.ended == "limit" and count > 3 * length


def test_saved_and_loaded(made: Made, local: Session, tmp_path: Path) -> None:
    assert isinstance(made.decoder.model, mlc.CompiledModel)
    file = made.decoder.model.save(tmp_path / "decoder.mlc")
    assert list(mlc.generate(file, PROMPT, local, tokens=5)) == made.tokens[:5]


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**32 + 1, 1.0, "1"])
def test_a_token_beyond_the_vocabulary(token: Any, made: Made, local: Session) -> None:
    """By each way into a text; the text goes on after it."""
    text = Text(local.load(made.decoder.model))
    text.read(PROMPT)
    said = f"{token!r} is not a token: the model's vocabulary has {VOCABULARY} tokens"
    calls: list[Callable[[], object]] = [
        lambda: text.read([token]),
        lambda: next(text.reply([token])),
        lambda: next(mlc.generate(made.decoder, [token], local)),
    ]
    for call in calls:
        with pytest.raises(DecodeError) as told:
            call()
        assert told.value.what == said
        assert text.read_so_far == len(PROMPT)
    assert [*text.follow(text.likeliest(), COUNT)] == made.tokens


def test_refused_on_the_board(made: Made, local: Session) -> None:
    with mlc.Text(local.load(made.decoder.model)) as text:
        text.read(PROMPT)
        with pytest.raises(DecodeError) as caught:
            text.read([1] * (LENGTH - 12))
        assert str(caught.value) == (
            "52 tokens do not fit into the cache, which has room for 51 of 64\n"
            "  try: --max-length 65 or more (length= in Python)"
        )
        with pytest.raises(DecodeError) as caught:
            text.read([])
        assert str(caught.value) == (
            "there is no token to read\n  try: one at least, such as a beginning"
        )
        assert list(text.reply(made.tokens[:1], 3)) == made.tokens[1:4]  # nothing was lost


FIXED = {
    ("past", 16): "the decoder's caches have a fixed number of rows\n  in:  /NAME.onnx\n"
    "  try: a model exported with a dynamic length of its past",
    ("sequence", 3): "'NAME' reads 3 tokens at once, no more and no fewer\n  in:  /NAME.onnx\n"
    "  try: a model exported with a dynamic length of its input, or of one token",
}


def with_sizes(model: onnx.ModelProto, name: str, size: int) -> onnx.ModelProto:
    """The model with a named dimension of its inputs fixed; what it adds up to is left open."""
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == name:
                dim.dim_value = size
    return model


def test_refused_as_decoders(tmp_path: Path, local: Session) -> None:
    def refused(file: Path, **options: Any) -> str:
        with pytest.raises(DecodeError) as caught:
            read_decoder(file, **options)
        return str(caught.value).replace(str(tmp_path), "")

    other = tmp_path / "vad.onnx"
    onnx.save(voice_activity(), other)
    assert refused(other) == (
        "this model is not a text decoder: it has no input input_ids and none "
        "past_key_values.0.key (and present.0.key among its outputs); it has no output logits\n"
        "  in:  /vad.onnx, of inputs input, state, sr\n"
        "  try: a model with its cache: optimum-cli export onnx --task text-generation-with-past"
    )
    file = saved(tmp_path)
    assert refused(file, cache="float61") == "a cache cannot be stored as 'float61'\n  try: float16"
    with pytest.raises(TargetError, match="the target has no instructions for float16") as told:
        mlc.load_decoder(file, "armv7a", cache="float16")
    assert "try: -mattr=+fp16, where the CPU has it" in str(told.value)
    assert refused(file, length=32, window=8) == (
        "a window of 8 tokens and a step of 32 do not fit into a cache of 32 rows\n"
        "  in:  /plain.onnx\n  try: a length of 39 or more"
    )
    more = decoder()
    extra = onnx.helper.make_tensor_value_info("speaker", 1, [4])
    more.graph.input.append(extra)
    onnx.save(more, tmp_path / "more.onnx")
    assert refused(tmp_path / "more.onnx") == (
        "nothing says what the decoder's input speaker is\n  in:  /more.onnx\n"
        "  try: a model of input_ids, attention_mask, position_ids and a cache alone"
    )
    for number, (fixed, message) in enumerate(FIXED.items()):
        onnx.save(with_sizes(decoder(), *fixed), tmp_path / f"{number}.onnx")
        assert refused(tmp_path / f"{number}.onnx") == message.replace("NAME", f"{number}")
    with pytest.raises(DecodeError) as caught:
        mlc.Text(local.load(mlc.compile(other, "host")))
    assert str(caught.value) == (
        "this model was not compiled as a decoder: it has no input_ids and no position\n"
        "  try: mlc-deploy generate MODEL.onnx --save FILE.mlc"
    )
