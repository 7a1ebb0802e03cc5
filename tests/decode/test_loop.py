"""The loop around a decoder: on the board as a program, in a C program, and over long texts."""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

import mlc_deploy as mlc
from mlc_deploy.decode.model import STEP
from mlc_deploy.decode.sampling import Sampling
from mlc_deploy.errors import DecodeError
from mlc_deploy.files import mapped
from mlc_deploy.graph.decoder_loop import MOST_ENDS, OWN
from mlc_deploy.graph.layouts import LARGE
from mlc_deploy.graph.nodes import Constant, Deferred
from scripts.bench.decoder_model import Sizes, write_decoder
from tests.decode.tiny import PROMPT, by_onnxruntime, planned, saved
from tests.sessions import TARGETS, aarch64, local
from tests.zig import static_cc

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "local"]  # fixtures

LENGTH, COUNT = 64, 40
EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "c_decoder"
HOW = (
    Sampling(1.5, seed=1), Sampling(0.7, top_k=5, seed=2), Sampling(1.5, top_p=0.6, seed=3),
    Sampling(2.0, top_k=10, top_p=0.7, seed=4), Sampling(1.0, top_k=1, seed=5),
    Sampling(1.0, top_k=1000, top_p=1e-6, seed=6),
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A decoder's file, compiled for this machine with its loop, and onnxruntime's tokens."""

    file: Path
    decoder: mlc.Decoder
    tokens: list[int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    file = saved(tmp_path_factory.mktemp("decoders"))
    decoder = mlc.load_decoder(file, "host", length=LENGTH, loop="board")
    return Made(file, decoder, by_onnxruntime(file, PROMPT, COUNT)[0])


def test_one_run_writes_the_same_tokens(
    made: Made, local: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods: list[str] = []
    post = local.link._post

    def counted(method: str, *rest: Any, **how: Any) -> Any:
        methods.append(method)
        return post(method, *rest, **how)

    monkeypatch.setattr(local.link, "_post", counted)
    reply = mlc.generate(made.decoder, PROMPT, local, tokens=COUNT)
    assert list(reply) == made.tokens and methods.count("run") == 1
    summary = reply.summary
    assert (summary.prompt, summary.tokens, summary.ended) == (len(PROMPT), COUNT, "limit")
    assert summary.prefill_s > 0 and summary.decode_s > 0 and summary.decode_rate
    by_host = mlc.generate(made.decoder, PROMPT, local, tokens=COUNT, loop="host")
    methods.clear()
    assert list(by_host) == made.tokens and methods.count("run") == COUNT


@pytest.mark.parametrize("how", HOW, ids=str)
def test_drawn_tokens_are_the_hosts(made: Made, local: Session, how: Sampling) -> None:
    """The same numbers draw them. Likelihoods are float32 here: of many tokens one may differ."""
    with mlc.Text(local.load(made.decoder.model)) as text:
        right = list(text.reply(PROMPT, COUNT, how))
        text.reset()
        assert list(text.write(PROMPT, COUNT, how)) == right
        if how.top_k == 1 or how.top_p < 1e-3:
            assert right == made.tokens


def test_ends_limits_and_a_full_cache(made: Made, local: Session) -> None:
    end = made.tokens[5]
    stop = made.tokens.index(end)
    with mlc.Text(local.load(made.decoder.model)) as text:

        def written(tokens: Sequence[int], most: int | None, *ends: int) -> list[int]:
            text.reset()
            return list(text.write(tokens, most, ends=ends))

        assert written(PROMPT, COUNT, end, 999) == made.tokens[:stop]
        assert written(PROMPT, COUNT, made.tokens[0]) == []
        assert written(PROMPT, 1) == made.tokens[:1]
        assert written(PROMPT, 0) == [] and text.read_so_far == len(PROMPT)
        assert len(written(PROMPT, None)) == LENGTH - len(PROMPT) + 1 and text.room == 0
        prompt = (PROMPT * 3)[: STEP + 5]
        assert written(prompt, 8) == by_onnxruntime(made.file, prompt, 8)[0]
        assert written(PROMPT, 10) == made.tokens[:10]  # and on from there, either way
        assert list(text.write(made.tokens[9:10], 5)) == made.tokens[10:15]
        assert list(text.reply(made.tokens[14:15], 5)) == made.tokens[15:20]


def test_on_arm_in_few_instructions(made: Made, aarch64: Session) -> None:
    """What is not the model's step: the choice, and whether to go on. 5 µs are at least 5,000
    instructions on the slowest board's core."""
    decoder = mlc.load_decoder(made.file, TARGETS["aarch64"], length=LENGTH, loop="board")
    with mlc.Text(aarch64.load(decoder.model)) as text:
        assert list(text.write(PROMPT, 12)) == made.tokens[:12]
        given = {"input_ids": np.array([PROMPT])}
        text.reset()
        run = text._stream.profile({**given, "wanted": np.array(12)})
    assert run.counts is not None
    own = [
        count.total for n, count in enumerate(run.counts)
        if n in text._in_loop and text.model.calls[n].layer.startswith(OWN)
    ]  # fmt: skip
    assert 0 < sum(own) / 11 < 1000


def test_a_cache_in_place(made: Made) -> None:
    """The loop copies no cache, and takes no memory and no weights besides the model's."""
    model, plain = (planned(made.file, "host", length=LENGTH, loop=loop) for loop in (True, False))
    copied = [c.args[0].size for c in model.calls if c.kernel.startswith("copy")]
    assert max(copied) <= 8
    assert bytes(model.weights) == bytes(plain.weights)
    assert model.arena == plain.arena


def test_refused(made: Made, local: Session) -> None:
    plain = mlc.load_decoder(made.file, "host", length=LENGTH)
    with pytest.raises(DecodeError) as caught:
        list(mlc.generate(plain, PROMPT, local, loop="board"))
    assert str(caught.value) == (
        "the model was compiled without the loop that writes on the board\n"
        "  try: --loop board (loop='board' in Python) where it is compiled"
    )
    with pytest.raises(DecodeError) as caught:
        mlc.generate(made.decoder, PROMPT, local, temperature=1.0, top_p=2.0)
    assert str(caught.value) == (
        "invalid sampling options\n  in:  temperature=1, top_k=0, top_p=2, seed=0\n"
        "  try: top_p above 0 and up to 1; the others 0 or more"
    )
    with pytest.raises(DecodeError) as caught:
        mlc.load_decoder(made.file, "host", loop="moon")
    assert str(caught.value) == (
        "there is no such place for the loop\n  in:  loop='moon'\n  try: 'host' or 'board'"
    )
    with mlc.Text(local.load(made.decoder.model)) as text, pytest.raises(DecodeError) as caught:
        list(text.write(PROMPT, 3, ends=range(MOST_ENDS + 1)))
    assert str(caught.value) == (
        "17 tokens end a text, and the loop on the board knows 16\n  try: --loop host"
    )


# ------------------------------------------------------------------------------------- long texts


def memory_of(session: Session) -> int:
    """Kilobytes that the processes of a board on this machine can touch."""
    top = session.link.transport.process
    assert top is not None
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = 0
    for process in parents:
        above = process
        while above in parents and above != top:
            above = parents[above]
        if above == top:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            sizes = dict(line.split(":", 1) for line in lines if ":" in line)
            found += int(sizes["VmSize"].split()[0])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_long_texts_in_constant_memory(tmp_path: Path, local: Session) -> None:
    """2,000 tokens with a window of 512: after the first tokens nothing is allocated, and a saved
    state goes on with the same tokens."""
    window, count = 512, 2000
    file = saved(tmp_path, window=window, longest=count + 100)
    tokens, _ = by_onnxruntime(file, PROMPT, count)
    decoder = mlc.load_decoder(file, "host", length=window - 1 + STEP, window=window, loop="board")
    module = local.load(decoder.model)
    with mlc.Text(module) as text, mlc.Text(module) as other:
        found = list(text.reply(PROMPT, 20))
        before = memory_of(local)
        found += text.reply(found[-1:], 480)
        found += text.write(found[-1:], 500)
        state = text.save_state()
        found += text.write(found[-1:], 1000)
        assert memory_of(local) == before and before > 0
        assert text.room is None and text.read_so_far == len(PROMPT) + count - 1
        other.load_state(state)
        assert list(other.write(found[999:1000], 300)) == found[1000:1300]
    assert found == tokens


# ---------------------------------------------------------------------------------- a C program


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_loop_in_c(machine: str, made: Made, tmp_path: Path) -> None:
    target = "host" if machine == "x86_64" else machine
    if machine == "x86_64" and mlc.Target("host").arch != machine:
        pytest.skip("the host is another machine")
    emulator = shutil.which(f"qemu-{machine}")
    if machine != "x86_64" and emulator is None:
        pytest.skip("no QEMU here: apt install qemu-user")
    decoder = mlc.load_decoder(made.file, target, length=LENGTH).model
    assert isinstance(decoder, mlc.CompiledModel)
    decoder.export(tmp_path, "decoder")
    command = [
        *static_cc(machine), "-I", ".", str(EXAMPLE / "main.c"), "mlc_runtime.c", "decoder.o",
        "-o", "write",
    ]  # fmt: skip
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    run = [*([str(emulator)] if machine != "x86_64" else []), "./write", "decoder.weights"]

    def written(count: int, prompt: list[int]) -> list[int]:
        arguments = [*run, str(count), *map(str, prompt)]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]

    assert written(COUNT, PROMPT) == made.tokens
    if machine == "x86_64":
        prompt = (PROMPT * 3)[: STEP + 5]
        assert written(8, prompt) == by_onnxruntime(made.file, prompt, 8)[0]
        assert len(written(1000, PROMPT)) == LENGTH - len(PROMPT) + 1


# ------------------------------------------------------------------------------------- much memory


def test_weights_in_a_file(tmp_path: Path, local: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights are not in memory: they are packed when they are written, to a file that is
    mapped. What is made of them is the same."""
    small = Sizes(layers=1, width=128, inner=256, heads=2, kept=1, vocabulary=4096, longest=64)
    file = write_decoder(tmp_path / "model", small)
    right = mlc.load_decoder(file, "host", length=32).model
    monkeypatch.setattr(mapped.Spool.__init__, "__defaults__", (1 << 10,))
    decoder = mlc.load_decoder(file, "host", length=32)
    made = decoder.model
    assert isinstance(made, mlc.CompiledModel) and isinstance(right, mlc.CompiledModel)
    weights = made.weights_bytes
    assert isinstance(weights, memoryview) and isinstance(weights.obj, mmap.mmap)
    assert weights == right.weights_bytes and made.object_bytes == right.object_bytes
    held = [
        a.held for b in made.program.bindings for a in b.call.args
        if isinstance(a, Constant) and a.type.bytes > LARGE
    ]  # fmt: skip
    assert held and all(isinstance(h, Deferred) or h.base is not None for h in held)
    saved_file = made.save(tmp_path / "model.mlc")
    reply = list(mlc.generate(decoder, [3, 14, 15], local, tokens=8))
    assert reply == list(mlc.generate(saved_file, [3, 14, 15], local, tokens=8))
    assert reply == by_runtime(file, small, [3, 14, 15], 8)


def by_runtime(file: Path, sizes: Sizes, prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens, as onnxruntime has them; logits are those of the last token."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    past = {n: np.zeros((1, sizes.kept, 0, sizes.head), np.float32) for n in names}
    step, read, tokens = list(prompt), 0, list[int]()
    while len(tokens) < count:
        read += len(step)
        given = {"input_ids": np.array([step]), "attention_mask": np.ones((1, read), np.int64)}
        logits, *present = session.run(None, given | past)
        past = dict(zip(names, present, strict=True))
        tokens.append(int(logits[0, -1].argmax()))
        step = tokens[-1:]
    return tokens
