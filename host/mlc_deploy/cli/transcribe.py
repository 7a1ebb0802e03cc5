"""`mlc-deploy transcribe MODEL --audio FILE`: a speech model writes text, on a board."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ..decode.audio import read_wav
from ..decode.speech import load_transcriber
from ..decode.speech import transcribe as transcribed
from ..decode.speech_files import TASKS, speech_of
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
from .place import choose
from .progress import Progress
from .saving import saved
from .tables import Record


@click.command()
@click.argument("model")
@click.option("--audio", metavar="FILE", required=True, help="read this .wav file (16-bit PCM)")
@click.option("--language", metavar="L", help="expect L, such as en (default: the likeliest)")
@click.option(
    "--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True,
    help="write in the language that is spoken, or in English",
)  # fmt: skip
@click.option(
    "--tokenizer", metavar="FILE", help="read this tokenizer.json (default: beside MODEL)"
)
@click.option("--target", metavar="T", help=TARGET_HELP)
@click.option("--board", metavar="B", help="run on B, as mlc-deploy does")
@click.option("--tokens", type=int, metavar="N", help="write at most N tokens per part of sound")
@click.option(
    "--seconds", type=float, metavar="N",
    help="hear at most N seconds at once, with Moonshine (default: its longest text's)",
)  # fmt: skip
@click.option("--precision", metavar="P", help="compute in float32 or float16 (default: float32)")
@click.option("--db", metavar="FILE", help=DB_HELP)
@click.option(
    "--save", metavar="FILE", help="write the compiled model: .mlc, into the folder MODEL"
)
@running
def transcribe(
    model: str,
    audio: str,
    language: str | None,
    task: str,
    tokenizer: str | None,
    target: str | None,
    board: str | None,
    tokens: int | None,
    seconds: float | None,
    precision: str | None,
    db: str | None,
    save: str | None,
    json_file: str | None,
    threads: int | None,
    cores: str,
    timeout: float,
) -> int:
    """Writes what is said in a sound, token by token on a board.

    MODEL is a folder with a Whisper or Moonshine model: of optimum-cli (encoder_model.onnx,
    decoder_model and decoder_with_past_model, or both merged) or of transformers
    (model.safetensors), with its config.json. Or it is an .mlc file in such a folder, which --save
    wrote. The text goes to stdout, and what it cost to stderr. With a tokenizer.json in the
    folder it is text (extra 'text'), and tokens without.
    """
    above_zero(
        {"--tokens": tokens, "--seconds": seconds, "--timeout": timeout, "--threads": threads}
    )
    if save is not None:
        saved(save)
    to_json = JsonFile(json_file, (model, tokenizer, audio, db))
    file = Path(model)
    if not file.exists():
        raise Misuse("there is no such file", where=model, mend="the path of a folder")
    speech = speech_of(file if file.is_dir() else file.parent, seconds)
    speech.start(language, task)  # refused before anything is compiled
    sound = read_wav(audio, speech.ear.rate)
    of_compiler = {"--target": target, "--seconds": seconds, "--precision": precision, "--db": db,
                   "--save": save}  # fmt: skip
    ready = saved_one(partial(load_transcriber, tokenizer=tokenizer), file, of_compiler, "folder")
    wanted = ready.model.target if ready else None
    if ready is None and target is not None:
        wanted = one_level(target, "transcribe takes")
    wanted, url = choose(wanted, board)
    if url is None:
        raise Misuse("no board is asked to hear (--board none)", mend="a board")
    progress = Progress(False)
    with fitting_board(url, wanted, cores, progress) as (session, wanted):
        with progress.stage("compile"):
            made = ready or load_transcriber(
                file, wanted, seconds=seconds, tokenizer=tokenizer,
                precision=precision or "float32", db=db,
            )  # fmt: skip
        save_one(made, save, file)
        fitting = made.fitting(session.device.machine, session.device.features)
        transcript = transcribed(
            fitting, sound, session, language=language, task=task, tokens=tokens, threads=threads,
            cores=cores, timeout=timeout,
        )  # fmt: skip
        print_pieces(transcript, to_json)
        record = run_record(file, wanted, session, transcript)
        record["language"] = transcript.language or language
    show_facts(_facts(record))
    to_json.write(record)
    return 0


def _facts(record: Record) -> list[tuple[str, str]]:
    clock = emulated(record)
    found = [
        ("sound", f"{record['sound_s']:.3g} s, heard in {record['hear_s']:.3g} s{clock}"),
        ("text", f"{record['tokens']} tokens in {record['decode_s']:.3g} s{clock}"),
    ]
    if record["language"]:
        found.append(("language", record["language"]))
    return [*found, *costs(record)]
