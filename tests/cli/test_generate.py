"""`mlc-deploy generate`: what it prints, and what it says of mistakes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mlc_deploy as mlc
from tests.cli.command import MODELS, Command
from tests.decode.tiny import PROMPT, by_onnxruntime, saved

IDS = ",".join(map(str, PROMPT))


def test_the_loop_on_the_board(mlc_deploy: Command, tmp_path: Path) -> None:
    file, to = saved(tmp_path), tmp_path / "saved.mlc"
    tokens, _ = by_onnxruntime(file, PROMPT, 8)
    ended = mlc_deploy(
        "generate", file, "--prompt-ids", IDS, "--tokens", "8", "--max-length", "64", "--loop",
        "board", "--board", "local://", "--save", to,
    )  # fmt: skip
    assert ended.stdout == f"{', '.join(map(str, tokens))}\n" and ended.status == 0
    again = mlc_deploy("generate", to, "--prompt-ids", IDS, "--tokens", "8", "--loop", "host")
    assert again.status == 0 and again.stdout == ended.stdout


def test_tokens_and_what_they_cost(mlc_deploy: Command, tmp_path: Path) -> None:
    """The reply alone is on stdout. What --save wrote goes on without the compiler."""
    file, to = saved(tmp_path), tmp_path / "saved.mlc"
    tokens, _ = by_onnxruntime(file, PROMPT, 8)
    ended = mlc_deploy(
        "generate", file, "--prompt-ids", IDS, "--tokens", "8", "--max-length", "48", "--board",
        "local://", "--save", to,
    )  # fmt: skip
    assert ended.status == 0
    assert ended.stdout == f"{', '.join(map(str, tokens))}\n"
    said = re.sub(r"\d[\d.e+-]*( s\b)?", "N", ended.stderr)
    assert " prompt    N tokens in N: N tokens per second\n" in said
    assert " reply     N tokens in N: N tokens per second\n" in said
    assert " first     N to the first token\n" in said
    assert " memory    weights N kB, cache N kB, arena N kB\n" in said
    assert said.endswith(" ended     the limit of tokens (--tokens)\n")
    again = mlc_deploy(
        "generate", to, "--prompt-ids", IDS, "--tokens", "8", "--board", "local://", "--json", "-"
    )
    record = again.record
    assert record["reply"] == tokens and record["ended"] == "limit"
    assert (record["prompt"], record["tokens"], record["text"]) == (len(PROMPT), 8, None)
    assert record["memory"]["cache"] == 2 * 2 * 48 * 2 * 16 * 4 + 2 * 8  # layers, both; numbers
    assert record["decode_tokens_per_s"] > 0 and record["instructions"] is None
    refused = mlc_deploy("generate", to, "--prompt-ids", "1", "--max-length", "9")
    assert refused.complaint == (
        f"error: the model is compiled already, for {mlc.Target('host').short_name}\n"
        f"  in:  {to} --max-length\n"
        "  try: without --max-length, or the model that it was compiled from\n-> 2"
    )
    long = mlc_deploy("generate", to, "--prompt-ids", ",".join(["1"] * 49), "--board", "local://")
    assert long.complaint == (
        "error: 49 tokens do not fit into the cache, which has room for 48 of 48\n"
        "  try: --max-length 49 or more (length= in Python)\n-> 1"
    )


@pytest.mark.parametrize("ids", ["3,1000000", "3,64", "3,-1", f"3,{2**32 + 1}"])
@pytest.mark.parametrize("loop", ["host", "board"])
def test_a_token_beyond_the_vocabulary(
    ids: str, loop: str, mlc_deploy: Command, tmp_path: Path
) -> None:
    words = (saved(tmp_path), f"--prompt-ids={ids}", "--max-length", 48, "--loop", loop)
    ended = mlc_deploy("generate", *map(str, words), "--board", "local://")
    assert ended.complaint == (
        f"error: {ids[2:]} is not a token: the model's vocabulary has 64 tokens\n"
        "  in:  token 2 of 2\n"
        "  try: tokens from 0 to 63; the tokenizer of this model makes them\n-> 1"
    )


def test_refusals(
    mlc_deploy: Command, tmp_path: Path, golden: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    file, other = saved(tmp_path), MODELS / "digits_cnn.onnx"
    calls: list[tuple[object, ...]] = [
        (file,),
        (file, "--prompt", "hi"),
        (file, "--prompt", "hi", "--prompt-ids", "1"),
        (file, "--prompt-ids", "1,x"),
        (file, "--prompt-ids", "1", "--board", "none"),
        (file, "--prompt-ids", "1", "--temperature", "-1"),
        (file, "--prompt-ids", "1", "--top-p", "1.5"),
        (file, "--prompt-ids", "1", "--tokens", "0"),
        (file, "--prompt-ids", "1", "--window", "64", "--max-length", "64"),
        (file, "--prompt-ids", "1", "--cache", "int4"),
        (file, "--target", "armv7a", "--save", tmp_path / "x.mlc", "--cache", "float16"),
        ("nowhere.onnx", "--prompt-ids", "1"),
        (other, "--prompt-ids", "1"),
    ]
    said = []
    for call in calls:
        words = [str(word) for word in call]
        ended = mlc_deploy("generate", *words)
        place = str(tmp_path), str(MODELS)
        text = f"$ mlc-deploy generate {' '.join(words)}\n{ended.complaint}\n"
        said.append(text.replace(place[0], "TMP").replace(place[1], "MODELS"))
    golden("\n".join(said), "cli_generate_refusals")
