"""`mlc-deploy generate MODEL --prompt TEXT`: a language model writes, on a board."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import click

from mlc_rpc.wire import MAX_THREADS

from ..decode.api import HOST, LOOPS, TOKENS, load_decoder
from ..decode.api import generate as generated
from ..decode.files import beside, model_of
from ..decode.tokens import load_tokenizer
from .help import COMPILING, MODEL, OUTPUTS, SAMPLING, command, grouped
from .json_file import JsonFile
from .options import DB_HELP, TARGET_HELP, Misuse, above_zero, one_level
from .pieces import (
    costs,
    emulated,
    fitting_board,
    print_pieces,
    run_record,
    running,
    save_one,
    saved_one,
    show_facts,
)
from .place import NONE, choose
from .progress import Progress
from .saving import saved
from .tables import Record

NUMBER = r"-?\d{1,18}"  # int64 holds it; the decoder says which ones it knows
ENDED = {
    "end": "the model's end token", "stop": "a stop sequence (--stop)",
    "limit": "the limit of tokens (--tokens)", "full": "the cache was full (--max-length)",
}  # fmt: skip


@command(
    examples=(
        'mlc-deploy generate FOLDER --prompt "Why is the sky blue?"',
        'mlc-deploy generate FOLDER --prompt "A poem:" --temperature 0.8 --top-p 0.9',
    )
)
@click.argument("model")
@grouped(MODEL, "--prompt", metavar="TEXT", help="Continue TEXT, or answer it in a chat")
@grouped(MODEL, "--prompt-ids", metavar="1,2,3", help="Continue these tokens; prints tokens")
@grouped(MODEL, "--system", metavar="TEXT", default="", help="System message of the chat")
@grouped(MODEL, "--no-chat", is_flag=True, help="Use the prompt without the chat template")
@grouped(MODEL, "--tokenizer", metavar="FILE", help="tokenizer.json (default: beside MODEL)")
@grouped(
    SAMPLING, "--tokens", type=int, default=TOKENS, metavar="N",
    help=f"Generate at most N tokens (default: {TOKENS})",
)  # fmt: skip
@grouped(SAMPLING, "--stop", multiple=True, metavar="TEXT", help="Stop sequence; can be repeated")
@grouped(
    SAMPLING, "--temperature", type=float, default=0.0, metavar="X",
    help="Temperature; 0 picks the most likely token (default: 0)",
)  # fmt: skip
@grouped(
    SAMPLING, "--top-k", type=int, default=0, metavar="N",
    help="Sample from the N most likely tokens (default: all)",
)  # fmt: skip
@grouped(
    SAMPLING, "--top-p", type=float, default=1.0, metavar="P",
    help="Nucleus sampling with probability P (default: 1)",
)  # fmt: skip
@grouped(SAMPLING, "--seed", type=int, default=0, metavar="N", help="Random seed (default: 0)")
@grouped(
    SAMPLING, "--loop", type=click.Choice(LOOPS), metavar="WHERE",
    help="Sample on the host (default, streams) or on the board",
)  # fmt: skip
@grouped(COMPILING, "--target", metavar="T", help=TARGET_HELP)
@grouped(
    COMPILING, "--precision", metavar="P", help="Compute in float32 or float16 (default: float32)"
)
@grouped(
    COMPILING, "--max-length", type=int, metavar="N",
    help="Key-value cache of N tokens (default: at most 512)",
)  # fmt: skip
@grouped(
    COMPILING, "--window", type=int, metavar="N",
    help="Sliding-window attention over N tokens (default: model's)",
)  # fmt: skip
@grouped(
    COMPILING, "--cache", metavar="DTYPE",
    help="Key-value cache as float32, float16, int8 (default: model's)",
)  # fmt: skip
@grouped(COMPILING, "--db", metavar="FILE", help=DB_HELP)
@grouped(OUTPUTS, "--save", metavar="FILE", help="Save the compiled model: .mlc, or a folder")
@running
def generate(
    model: str,
    prompt: str | None,
    prompt_ids: str | None,
    system: str,
    no_chat: bool,
    tokenizer: str | None,
    target: str | None,
    board: str | None,
    tokens: int,
    max_length: int | None,
    window: int | None,
    cache: str | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop: tuple[str, ...],
    loop: str | None,
    precision: str | None,
    db: str | None,
    save: str | None,
    json_file: str | None,
    threads: int | None,
    cores: str,
    timeout: float,
) -> int:
    """Generate text with a language model on a board.

    MODEL is a decoder with a key-value cache: an .onnx file or a folder from transformers, optimum
    or onnxruntime-genai, a .pt2 program with a static cache, or an .mlc file written by --save. The
    cache stays on the board. Text goes to stdout, statistics to stderr.

    With a tokenizer.json beside MODEL, --prompt is text (extra 'text'). If the tokenizer has a chat
    template, the prompt is the first message of a chat.
    """
    above_zero({"--tokens": tokens, "--max-length": max_length, "--window": window,
                "--timeout": timeout, "--top-p": top_p, "--threads": threads})  # fmt: skip
    if temperature < 0 or top_k < 0 or top_p > 1 or seed < 0:
        where = f"--temperature {temperature:g} --top-k {top_k} --top-p {top_p:g} --seed {seed}"
        raise Misuse(
            "invalid sampling options", where=where, mend="0 or more; --top-p above 0, at most 1"
        )
    if threads is not None and threads > MAX_THREADS:
        raise Misuse(f"a model runs on 1 to {MAX_THREADS} threads", where=f"--threads {threads}")
    asked = _prompt(prompt, prompt_ids, save)
    if save is not None:
        saved(save)
    to_json = JsonFile(json_file, (model, tokenizer, db))
    file = model_of(_existing(model))
    if isinstance(asked, str):  # before anything is compiled
        load_tokenizer(beside(file, Path(tokenizer) if tokenizer else None), file)
    progress = Progress(False)
    of_compiler = {
        "--target": target, "--max-length": max_length, "--window": window, "--cache": cache,
        "--precision": precision, "--db": db, "--save": save,
    }  # fmt: skip
    ready = saved_one(partial(load_decoder, tokenizer=tokenizer), file, of_compiler, "model")
    compiled = partial(
        load_decoder, file, length=max_length, window=window, cache=cache or "",
        tokenizer=tokenizer, loop=loop or HOST, precision=precision or "float32", db=db,
    )  # fmt: skip
    wanted, url = ready.model.target if ready else None, board
    if ready is None and target is not None:
        wanted = one_level(target, "generate takes")
    wanted, url = choose(wanted, NONE if asked is None and board is None else board)
    if url is None:
        if asked is not None:
            raise Misuse(
                f"generating text needs a board (--board {NONE})", mend="a board, or no prompt"
            )
        assert wanted is not None
        with progress.stage("compile"):
            made = ready or compiled(wanted)
        save_one(made, save, file)
        return 0
    with fitting_board(url, wanted, cores, progress) as (session, wanted):
        with progress.stage("compile"):
            decoder = ready or compiled(wanted)
        save_one(decoder, save, file)
        if asked is None:
            return 0
        fitting = decoder.fitting(session.device.machine, session.device.features)
        reply = generated(
            fitting, asked, session, tokens=tokens, temperature=temperature, top_k=top_k,
            top_p=top_p, seed=seed, stop=stop, chat=not no_chat, system=system, threads=threads,
            cores=cores, timeout=timeout, loop=loop,
        )  # fmt: skip
        print_pieces(reply, to_json)
        record = run_record(file, wanted, session, reply)
    show_facts(_facts(record))
    to_json.write(record)
    return 0


def _prompt(prompt: str | None, ids: str | None, save: str | None) -> str | list[int] | None:
    """The prompt, as text or tokens; None if the model is only saved. Raises Misuse."""
    if prompt is not None and ids is not None:
        raise Misuse(
            "the prompt is given both as text and as tokens",
            where="--prompt --prompt-ids",
            mend="one of them",
        )
    if prompt is None and ids is None and save is None:
        raise Misuse(
            "there is no prompt", mend='--prompt "Once upon a time", or --prompt-ids 1,2,3'
        )
    if ids is None:
        return prompt
    if not re.fullmatch(rf"\s*{NUMBER}(\s*,\s*{NUMBER})*\s*", ids, re.ASCII):
        raise Misuse("these are not token ids", where=f"--prompt-ids {ids}", mend="1,2,3")
    return [int(number) for number in ids.split(",")]


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        mend = "the path of an .onnx, .pt2 or .mlc file, or of a folder"
        raise Misuse("there is no such file", where=text, mend=mend)
    return path


def _facts(record: Record) -> list[tuple[str, str]]:
    clock = emulated(record)

    def rate(tokens: int, seconds: float, per_second: float | None) -> str:
        of = f"{tokens} token{'s' if tokens != 1 else ''} in {seconds:.3g} s{clock}"
        return of if per_second is None else f"{of}: {per_second:.3g} tokens per second"

    found = [
        ("prompt", rate(record["prompt"], record["prefill_s"], record["prefill_tokens_per_s"])),
        ("reply", rate(record["tokens"], record["decode_s"], record["decode_tokens_per_s"])),
        ("first", f"{record['first_s']:.3g} s to the first token"),
    ]  # fmt: skip
    return [*found, *costs(record), ("ended", ENDED[record["ended"]])]
