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

ENDED = {
    "end": "the model ended the text", "stop": "a text of --stop stood there",
    "limit": "as many tokens as --tokens says", "full": "the cache was full (--max-length)",
}  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--prompt", metavar="TEXT", help="write what follows TEXT")
@click.option("--prompt-ids", metavar="1,2,3", help="write what follows these tokens, as tokens")
@click.option("--system", metavar="TEXT", default="", help="begin the chat with this message")
@click.option("--no-chat", is_flag=True, help="take the prompt as it is, without a chat template")
@click.option(
    "--tokenizer", metavar="FILE", help="read this tokenizer.json (default: beside MODEL)"
)
@click.option("--target", metavar="T", help=TARGET_HELP)
@click.option("--board", metavar="B", help="run on B, as mlc-deploy does")
@click.option(
    "--tokens", type=int, default=TOKENS, metavar="N",
    help=f"write at most N tokens (default: {TOKENS})",
)  # fmt: skip
@click.option(
    "--max-length", type=int, metavar="N",
    help="keep a cache of N tokens (default: 512, or the model's own length where that is less)",
)  # fmt: skip
@click.option(
    "--window", type=int, metavar="N",
    help="look back at N tokens, so that a text has no end (default: what the model's files say)",
)  # fmt: skip
@click.option(
    "--cache", metavar="DTYPE",
    help="store keys and values in float32, float16 or int8 (default: as the model has them)",
)  # fmt: skip
@click.option(
    "--temperature", type=float, default=0.0, metavar="X",
    help="draw tokens, the likelier the colder (default: 0, which takes the likeliest)",
)  # fmt: skip
@click.option("--top-k", type=int, default=0, metavar="N", help="draw from the N likeliest")
@click.option("--top-p", type=float, default=1.0, metavar="P", help="draw from a share of P")
@click.option("--seed", type=int, default=0, metavar="N", help="draw by this seed (default: 0)")
@click.option("--stop", multiple=True, metavar="TEXT", help="end where TEXT would stand")
@click.option(
    "--loop", type=click.Choice(LOOPS), metavar="WHERE",
    help="choose tokens on the 'host' (default), which shows each as it comes, or on the 'board', "
    "which sends all of them at the end",
)  # fmt: skip
@click.option("--precision", metavar="P", help="compute in float32 or float16 (default: float32)")
@click.option("--db", metavar="FILE", help=DB_HELP)
@click.option("--save", metavar="FILE", help="write the compiled model: .mlc, or a folder")
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
    """Writes what a language model says behind a prompt, token by token on a board.

    MODEL is a decoder with its cache (input_ids, past_key_values, present): an .onnx file or a
    folder of transformers, optimum or onnxruntime-genai, a .pt2 program of torch.export with its
    cache in buffers, or an .mlc file that --save wrote. The cache stays on the board. The text
    goes to stdout, and what it cost to stderr.

    With a tokenizer.json beside MODEL, --prompt is text (extra 'text'). Where the tokenizer has a
    chat template, it is the first message of a chat.
    """
    above_zero({"--tokens": tokens, "--max-length": max_length, "--window": window,
                "--timeout": timeout, "--top-p": top_p, "--threads": threads})  # fmt: skip
    if temperature < 0 or top_k < 0 or top_p > 1 or seed < 0:
        where = f"--temperature {temperature:g} --top-k {top_k} --top-p {top_p:g} --seed {seed}"
        raise Misuse("there are no such numbers to draw by", where=where, mend="0 or more; P <= 1")
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
                f"no board is asked to write (--board {NONE})", mend="a board, or no prompt"
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
            "a prompt is text or tokens", where="--prompt --prompt-ids", mend="one of them"
        )
    if prompt is None and ids is None and save is None:
        raise Misuse(
            "there is no prompt", mend='--prompt "Once upon a time", or --prompt-ids 1,2,3'
        )
    if ids is None:
        return prompt
    if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", ids):
        raise Misuse("these are no numbers of tokens", where=f"--prompt-ids {ids}", mend="1,2,3")
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
