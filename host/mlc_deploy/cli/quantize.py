"""`mlc-deploy quantize MODEL --data D -o FILE`: quantizes a float model."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click
import numpy as np

from ..files import npy
from ..files.outside import name_of
from ..frontend.onnx_file import bytes_of
from ..quantize.agreement import KINDS
from ..quantize.api import MAX_DROP, SAMPLES, SCHEMES, STATIC
from ..quantize.api import quantize as quantized
from ..quantize.data import LABEL
from ..quantize.net import Array
from ..quantize.prepare import OTHERS
from .help import COMPILING, MODEL, OUTPUTS, QUANTIZATION, command, grouped
from .json_file import JsonFile
from .options import (
    DATA_HELP,
    DEBUG,
    JSON_HELP,
    PREPROCESS_HELP,
    SHIPPED_DATA,
    Misuse,
    above_zero,
    known_dims,
    one_level,
    shapes,
    source_file,
    writable,
)
from .progress import Progress
from .tables import (
    Record,
    add_row,
    bytes_text,
    console_for,
    line,
    plain_table,
    print_facts,
)


@command(
    examples=(
        "mlc-deploy quantize model.onnx --data photos/ -o model.int8.onnx",
        "mlc-deploy quantize model.onnx --scheme dynamic -o model.int8.onnx",
    )
)
@click.argument("model", required=False)
@grouped(MODEL, "--data", metavar="D", help=DATA_HELP)
@grouped(MODEL, "--preprocess", metavar="TEXT", help=PREPROCESS_HELP)
@grouped(MODEL, "--labels", metavar="FILE", help="Correct classes (.npy), to measure accuracy")
@grouped(MODEL, "--shape", multiple=True, metavar="NAME=1,3,…", help="Set the shape of an input")
@grouped(MODEL, "--bind", multiple=True, metavar="NAME=N", help="Set a dimension by name")
@grouped(
    QUANTIZATION, "--scheme", type=click.Choice(SCHEMES), default=STATIC, metavar="S",
    help=f"Quantization scheme: {', '.join(SCHEMES)} (default: {STATIC})",
)  # fmt: skip
@grouped(
    QUANTIZATION, "--max-drop", type=float, default=MAX_DROP, metavar="PERCENT",
    help=f"Lose at most PERCENT of accuracy or agreement (default: {MAX_DROP:g})",
)  # fmt: skip
@grouped(
    QUANTIZATION, "--metric", type=click.Choice(KINDS), metavar="M",
    help=f"How outputs are compared: {', '.join(KINDS)} (default: by their form)",
)  # fmt: skip
@grouped(
    QUANTIZATION, "--samples", type=int, default=SAMPLES, metavar="N",
    help=f"Calibrate with at most N samples (default: {SAMPLES})",
)  # fmt: skip
@grouped(
    QUANTIZATION, "--matmul-nbits", is_flag=True,
    help="Store low-bit weights as MatMulNBits, for onnxruntime",
)  # fmt: skip
@grouped(
    COMPILING, "--target", metavar="T",
    help="Keep layers in float that cost more in int8 on this target",
)  # fmt: skip
@grouped(OUTPUTS, "-o", "--output", metavar="FILE", required=True, help="Write the model to FILE")
@grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP)
@DEBUG
def quantize(
    model: str | None,
    data: str | None,
    output: str,
    target: str | None,
    max_drop: float,
    labels: str | None,
    preprocess: str | None,
    scheme: str,
    metric: str | None,
    samples: int,
    matmul_nbits: bool,
    shape: tuple[str, ...],
    bind: tuple[str, ...],
    json_file: str | None,
) -> int:
    """Quantize a model to int8, or its weights to 8 or 4 bits.

    MODEL is a float .onnx file (default: the model that ships with the package, with its images as
    calibration data). The result is an ONNX file that other engines run as well. Layers compute in
    int8 where accuracy stays within --max-drop and, with --target, where int8 executes no more
    instructions.

    Scheme 'static' needs calibration data. 'dynamic' finds ranges at run time; 'int8-weights' and
    'int4-weights' quantize weights only.
    """
    above_zero({"--samples": samples})
    if not 0 <= max_drop <= 100:
        where = f"--max-drop {max_drop:g}"
        raise Misuse("--max-drop is a percentage from 0 to 100", where=where)
    path = source_file(model, ("quantize",))
    if data is None and model is None:
        data = str(SHIPPED_DATA)
    to_json = JsonFile(json_file, (model, data, output, labels))
    to = _output(output, (path, *(Path(f) for f in (data, labels) if f)))
    wanted = one_level(target, "quantize takes") if target else None
    progress = Progress(False)
    made = quantized(
        path, data, target=wanted, max_drop=max_drop,
        labels=None if labels is None else read_labels(labels), preprocess=preprocess,
        scheme=scheme, samples=samples, shapes=shapes(shape), dims=known_dims(bind), metric=metric,
        matmul_nbits=matmul_nbits, stage=progress.stage,
    )  # fmt: skip
    made.save(to)
    for note in made.notes:
        progress.warn(note)
    record = {
        "model": name_of(path), "output": str(to), "bytes_before": bytes_of(path),
        "bytes_after": to.stat().st_size, **made.record(),
    }  # fmt: skip
    show(record, to_json.beside)
    to_json.write(record)
    return 0


def _output(text: str, others: tuple[Path, ...]) -> Path:
    """The file to write. Raises Misuse for one that cannot be written, or is one of the others."""
    path = writable("--output", text)
    if path.suffix in OTHERS:
        mend = f"-o {path.with_suffix('.onnx')}"
        raise Misuse("the result is an ONNX file", where=f"--output {text}", mend=mend)
    if any(path.resolve() == other.resolve() for other in others):
        raise Misuse(
            "it would overwrite another file of this command",
            where=f"--output {text}",
            mend="another name",
        )
    return path


def read_labels(text: str) -> Array:
    """The right classes: an .npy, or the array `label` of an .npz. Raises Misuse."""
    where = f"--labels {text}"
    try:
        with npy.opened(Path(text)) as loaded:
            found = loaded.get(LABEL) if isinstance(loaded, npy.Arrays) else np.asarray(loaded)
    except (npy.Unreadable, OSError) as error:
        reason = str(error) if isinstance(error, npy.Unreadable) else error.strerror or str(error)
        mend = "an .npy file of integers, or an .npz that holds them as 'label'"
        raise Misuse(f"cannot be read: {reason}", where=where, mend=mend) from None
    if found is None or found.dtype.kind not in "iu":
        what = f"no array '{LABEL}'" if found is None else f"numbers of {found.dtype.name}"
        raise Misuse(f"labels are integers, and the file holds {what}", where=where)
    return found


def show(record: Record, stream: TextIO) -> None:
    """Prints the record as a table and lines."""
    console = console_for(stream)
    console.print(line(f"{record['model']} quantized: {record['scheme']}", "bold"))
    console.print()
    counted = record["instructions_before"] is not None
    ranged = any(layer["range"] for layer in record["layers"])
    columns = [("layer", False), ("operator", False), ("bits", True)]
    columns += [("error", True), ("range by", False)] if ranged else []
    costs = [("instructions before", True), ("after", True)] if counted else []
    table = plain_table(*columns, *costs, ("", False))
    for layer in record["layers"]:
        error = [f"{layer['error']:.2%}", layer["range"]] if ranged else []
        numbers = [layer["instructions_before"], layer["instructions_after"]] if counted else []
        add_row(
            table, layer["name"], layer["operator"], str(layer["bits"]), *error,
            *(f"{n:,}" if n else "" for n in numbers), layer["reason"],
        )  # fmt: skip
    if counted:
        whole = [record["instructions_before"], record["instructions_after"]]
        add_row(
            table,
            "whole model",
            "",
            "",
            *[""] * (2 * ranged),
            *(f"{n:,}" for n in whole),
            "",
            style="bold",
        )
    console.print(table)
    console.print()
    print_facts(console, _facts(record))


def _facts(record: Record) -> list[tuple[str, str]]:
    integers = sum(layer["bits"] < 32 for layer in record["layers"])
    found = [("layers", f"{integers} of {len(record['layers'])} quantized")]
    if record["mended"]:
        found.append(("mended", ", ".join(record["mended"])))
    if record["measure"]:
        was, now = record["before"], record["after"]
        drop = max(was - now, 0)
        runs = f"{record['runs']} run{'s' if record['runs'] != 1 else ''}"
        found.append(
            (record["measure"].split()[0],
             f"{was:.2f} % before, {now:.2f} % after, of {runs}: {drop:.2f} % lost, of "
             f"{record['max_drop']:g} %")
        )  # fmt: skip
    sizes = bytes_text(record["bytes_before"]), bytes_text(record["bytes_after"])
    found.append(("written", f"{record['output']}: {sizes[0]} before, {sizes[1]} after"))
    return found
