"""`mlc-deploy transcribe MODEL --audio FILE`: a speech model writes text, on a board."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ..decode.speech import load_transcriber
from ..decode.speech import transcribe as transcribed
from ..decode.speech_files import TASKS, speech_of
from ..decode.wav import read_wav
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
from .place import choose
from .progress import Progress
from .saving import saved
from .tables import Record


@command(examples=("mlc-deploy transcribe FOLDER --audio speech.wav --language en",))
@click.argument("model")
@grouped(MODEL, "--audio", metavar="FILE", required=True, help="A .wav file (16-bit PCM)")
@grouped(MODEL, "--language", metavar="L", help="Spoken language, such as en (default: detected)")
@grouped(
    MODEL, "--task", type=click.Choice(TASKS), default=TASKS[0], metavar="TASK",
    help=f"{TASKS[0]}, or {TASKS[1]} into English (default: {TASKS[0]})",
)  # fmt: skip
@grouped(MODEL, "--tokenizer", metavar="FILE", help="tokenizer.json (default: beside MODEL)")
@grouped(
    MODEL, "--seconds", type=float, metavar="N",
    help="Chunk length for Moonshine (default: the longest that it supports)",
)  # fmt: skip
@grouped(SAMPLING, "--tokens", type=int, metavar="N", help="Generate at most N tokens per chunk")
@grouped(COMPILING, "--target", metavar="T", help=TARGET_HELP)
@grouped(
    COMPILING, "--precision", metavar="P", help="Compute in float32 or float16 (default: float32)"
)
@grouped(COMPILING, "--db", metavar="FILE", help=DB_HELP)
@grouped(
    OUTPUTS, "--save", metavar="FILE", help="Save the compiled model: .mlc, into the folder MODEL"
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
    """Transcribe speech on a board.

    MODEL is a folder with a Whisper or Moonshine model and its config.json: as optimum-cli writes
    it (encoder_model.onnx and decoder_model.onnx, merged or with decoder_with_past_model.onnx), or
    as transformers does (model.safetensors). It can also be an .mlc file in such a folder, written
    by --save. Text goes to stdout, statistics to stderr. Without a tokenizer.json in the folder,
    tokens are printed instead of text (extra 'text').
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
        raise Misuse("transcribing needs a board (--board none)", mend="a board")
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
        ("audio", f"{record['sound_s']:.3g} s, encoded in {record['hear_s']:.3g} s{clock}"),
        ("text", f"{record['tokens']} tokens in {record['decode_s']:.3g} s{clock}"),
    ]
    if record["language"]:
        found.append(("language", record["language"]))
    return [*found, *costs(record)]
