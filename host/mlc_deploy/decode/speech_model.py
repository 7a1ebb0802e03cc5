"""Speech models of an encoder and a decoder as one function of sound and tokens (graph/speech.py).

optimum writes an encoder and decoders; a merged decoder is both of these in one file:

    encoder_model            input_features[1, channels, frames], or input_values[1, samples]
                             -> last_hidden_state[1, S, D]
    decoder_model            input_ids, encoder_hidden_states -> logits, present.N.{decoder,encoder}
    decoder_with_past_model  input_ids, past_key_values.N.{decoder,encoder} -> logits, present.N
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto

from ..errors import DecodeError, GraphError
from ..frontend import from_onnx
from ..frontend.onnx_file import read_model
from ..graph import Function
from ..graph.decoder import Parts, with_cache
from ..graph.dims import symbol
from ..graph.extents import largest
from ..graph.nodes import Value
from ..graph.speech import followed_by, giving, with_encoder
from ..ir import Dim
from .audio import Ear
from .model import BRANCH, IDS, LOGITS, STEP, dimension_of, inputs_of, past_of

HIDDEN, STATES = "encoder_hidden_states", "last_hidden_state"
PLACES = "cache_position"
SAMPLES = "samples"  # the name of the audio's dynamic length
OF_ENCODER = ".encoder."  # in the names of caches of the encoder's output
FIRST = ("decoder_model.onnx", "decoder_model_merged.onnx")  # makes these caches
LATER = ("decoder_with_past_model.onnx", "decoder_model_merged.onnx")  # reads them
ENCODER = "encoder_model.onnx"
EXPORT = "optimum-cli export onnx --task automatic-speech-recognition-with-past"


def read_speech(folder: Path, ear: Ear, length: int, silent: Sequence[int] = ()) -> Function:
    """The function of a folder that optimum wrote, for sound of `ear` and texts of up to `length`
    tokens. silent: tokens that are never written. Raises DecodeError, ImporterError."""
    file = folder / ENCODER
    first, later = _file(folder, FIRST), _file(folder, LATER)
    if not file.is_file() or first is None or later is None:
        lacking = ENCODER if not file.is_file() else " and no ".join(LATER if first else FIRST)
        raise DecodeError(f"the folder holds no {lacking}", where=str(folder), mend=EXPORT)
    sound = inputs_of(_refuse_other(file, (ear.input,), STATES))[ear.input]
    shape: list[Dim] = list(ear.shape)
    if ear.least < ear.samples:
        shape[-1] = symbol(SAMPLES)
    states = giving(from_onnx(file, *_sizes([sound], {ear.input: shape}, ear.samples)), [STATES])
    (hidden,) = states.outputs
    rows = rows_at_most(states, hidden)
    encoder = followed_by(states, _keys(first, hidden.type.shape, rows), {HIDDEN: STATES})
    decoder = _decoder(later, encoder, rows, length)
    caches = {p.name: p.name for p in decoder.params if OF_ENCODER in p.name}
    return together(
        encoder, replace(decoder, name=folder.name or "speech"), caches, silent, str(folder)
    )


def together(
    encoder: Function, decoder: Function, caches: Mapping[str, str], silent: Sequence[int],
    where: str,
) -> Function:  # fmt: skip
    try:
        return with_encoder(encoder, decoder, caches, silent)
    except GraphError as error:
        raise DecodeError(error.what, where=where, mend=error.mend) from error


def _file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _refuse_other(file: Path, inputs: Sequence[str], output: str) -> ModelProto:
    """The model. Raises DecodeError if it lacks an input, or the output."""
    proto = read_model(file)
    known, made = inputs_of(proto), [o.name for o in proto.graph.output]
    lacking = [f"no input {name}" for name in inputs if name not in known]
    lacking += [] if output in made else [f"no output {output}"]
    if lacking:
        raise DecodeError(
            f"this is not part of a speech model: it has {' and '.join(lacking)}",
            where=str(file),
            mend=EXPORT,
        )
    return proto


def _keys(file: Path, hidden: Sequence[Dim], rows: int) -> Function:
    """The keys and values that a decoder's layers compute from the encoder's output, by the names
    of the later decoder's inputs. rows: the most rows of that output."""
    inputs = inputs_of(_refuse_other(file, (IDS, HIDDEN), LOGITS))
    values = {BRANCH: np.array([False])} if BRANCH in inputs else {}
    taken = [info for name, info in inputs.items() if name not in values]
    made = from_onnx(file, *_sizes(taken, {IDS: (1, 1), HIDDEN: hidden}, rows), values=values)
    caches = [name for name in made.output_names if OF_ENCODER in name]
    if not caches:
        what = f"the decoder gives no caches present.N{OF_ENCODER}key"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    found = giving(made, caches)
    if others := [p.name for p in found.params if p.name not in (HIDDEN, *dict(found.extents))]:
        what = f"what was heard is computed from '{others[0]}', too"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    return replace(found, output_names=tuple(_past_name(n) for n in found.output_names))


def _past_name(present: str) -> str:
    return present.replace("present", "past_key_values", 1)


def rows_at_most(function: Function, value: Value) -> int:
    """The most rows that a value [..., rows, width] of a function can have in a run."""
    rows = largest(value.type, dict(function.extents)).shape[-2]
    assert isinstance(rows, int), f"{value} has {rows} rows"
    return rows


def _sizes(
    inputs: Sequence[ValueInfoProto], given: Mapping[str, Sequence[Dim]], most: int
) -> tuple[dict[str, Sequence[int]], dict[str, Dim | str]]:
    """Shapes of inputs, and named dimensions, for from_onnx, by the shapes `given`. A symbol in
    these is dynamic, up to `most`. Other dynamic dimensions have no effect, and become 1."""
    shapes: dict[str, Sequence[int]] = {}
    dims: dict[str, Dim | str] = {}
    known: dict[Dim, str] = {}  # symbol of `given` -> its name in the file
    for info in sorted(inputs, key=lambda info: info.name not in given):
        own = info.type.tensor_type.shape.dim
        wanted = given.get(info.name, [d.dim_value or 1 for d in own])
        if all(isinstance(n, int) for n in wanted) and not any(d.dim_param in dims for d in own):
            shapes[info.name] = [int(n) for n in wanted]
            continue
        for d, size in zip(own, wanted, strict=False):
            if not d.dim_param or d.dim_param in dims:
                continue
            if size in known:
                dims[d.dim_param] = symbol(known[size])
            elif isinstance(size, int):
                dims[d.dim_param] = size
            else:
                dims[d.dim_param], known[size] = f"<={most}", d.dim_param
    return shapes, dims


def _decoder(file: Path, encoder: Function, most: int, length: int) -> Function:
    """The decoder of later steps with its cache, as a function of tokens and of at most `most` rows
    of the encoder's keys and values."""
    proto = _refuse_other(file, (IDS,), LOGITS)
    inputs = inputs_of(proto)
    outputs = {o.name: o for o in proto.graph.output}
    every = past_of(inputs, outputs)
    past = {name: after for name, after in every.items() if OF_ENCODER not in name}
    encoded = {n: v.type.shape for n, v in zip(encoder.output_names, encoder.outputs, strict=True)}
    rows = dimension_of(inputs, next(iter(past)), 2) if past else ""
    if not rows or set(encoded) - set(inputs):
        raise DecodeError(
            "the decoder takes no caches past_key_values.N of what was heard and said",
            where=str(file), mend=EXPORT,
        )  # fmt: skip
    dims: dict[str, Any] = {rows: f"<={length}"}
    if steps := dimension_of(inputs, IDS, 1):
        dims[steps] = f"<={min(STEP, length)}"
    if (places := dimension_of(inputs, PLACES, 0)) not in ("", steps):
        dims[places] = symbol(steps) if steps else 1
    given: dict[str, Sequence[Dim]] = {**encoded}
    if HIDDEN in inputs:
        hidden = [d.dim_value or 1 for d in inputs[HIDDEN].type.tensor_type.shape.dim]
        given[HIDDEN] = (1, next(iter(encoded.values()))[2], *hidden[2:])
    shapes, sizes = _sizes([inputs[name] for name in given], given, most)
    dims |= sizes
    for name in (IDS, *past):
        if batch := dimension_of(inputs, name, 0):
            dims[batch] = 1
    values = {BRANCH: np.array([True])} if BRANCH in inputs else {}
    made = from_onnx(file, shapes, dims, values=values)
    read = {a for b in made.bindings for a in b.call.args}
    unread = [p for p in made.params if p.name == HIDDEN and p not in read]
    made = replace(made, params=tuple(p for p in made.params if p not in unread))
    unknown = [p.name for p in made.params
               if p.name not in {IDS, PLACES, *past, *encoded, *dict(made.extents)}]  # fmt: skip
    if unknown:
        what = f"nothing says what the decoder's input {', '.join(unknown[:3])} is"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    parts = Parts(IDS, LOGITS, past, None, PLACES if PLACES in inputs else None)
    try:
        return with_cache(made, parts, length)
    except GraphError as error:
        raise DecodeError(error.what, where=str(file), mend=error.mend) from error
