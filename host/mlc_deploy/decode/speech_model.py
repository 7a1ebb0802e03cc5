"""Speech models of Whisper's structure as one function of sound and tokens (graph/speech.py).

optimum writes an encoder and decoders; a merged decoder is both of these in one file:

    encoder_model            input_features[1, channels, frames] -> last_hidden_state[1, S, D]
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
from ..graph.speech import followed_by, giving, hearing
from .audio import Ear
from .model import BRANCH, IDS, LOGITS, STEP, dimension_of, past_of

FEATURES, HIDDEN, STATES = "input_features", "encoder_hidden_states", "last_hidden_state"
PLACES = "cache_position"
OF_ENCODER = ".encoder."  # in the names of caches of what was heard
FIRST = ("decoder_model.onnx", "decoder_model_merged.onnx")  # makes these caches
LATER = ("decoder_with_past_model.onnx", "decoder_model_merged.onnx")  # reads them
ENCODER = "encoder_model.onnx"
EXPORT = "optimum-cli export onnx --task automatic-speech-recognition-with-past"


def read_speech(folder: Path, ear: Ear, length: int, silent: Sequence[int] = ()) -> Function:
    """The function of a folder that optimum wrote: what `ear` hears, and texts of up to `length`
    tokens. silent: tokens that are never said. Raises DecodeError, ImporterError."""
    encoder = folder / ENCODER
    first, later = _file(folder, FIRST), _file(folder, LATER)
    if not encoder.is_file() or first is None or later is None:
        lacking = ENCODER if not encoder.is_file() else " and no ".join(LATER if first else FIRST)
        raise DecodeError(f"the folder holds no {lacking}", where=str(folder), mend=EXPORT)
    _refuse_other(encoder, (FEATURES,), STATES)
    heard = from_onnx(encoder, {FEATURES: (1, ear.channels, ear.frames)})
    (hidden,) = (v for v, n in zip(heard.outputs, heard.output_names, strict=True) if n == STATES)
    hear = followed_by(giving(heard, [STATES]), _keys(first, hidden.type.shape), {HIDDEN: STATES})
    tell = _teller(later, hear, length)
    caches = {p.name: p.name for p in tell.params if OF_ENCODER in p.name}
    return together(hear, replace(tell, name=folder.name or "speech"), caches, silent, str(folder))


def together(
    hear: Function, tell: Function, caches: Mapping[str, str], silent: Sequence[int], where: str
) -> Function:
    try:
        return hearing(hear, tell, caches, silent)
    except GraphError as error:
        raise DecodeError(error.what, where=where, mend=error.mend) from error


def _file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _inputs(proto: ModelProto) -> dict[str, ValueInfoProto]:
    weights = {t.name for t in proto.graph.initializer}
    return {i.name: i for i in proto.graph.input if i.name not in weights}


def _refuse_other(file: Path, inputs: Sequence[str], output: str) -> ModelProto:
    """The model. Raises DecodeError where it lacks an input, or the output."""
    proto = read_model(file)
    known, made = _inputs(proto), [o.name for o in proto.graph.output]
    lacking = [f"no input {name}" for name in inputs if name not in known]
    lacking += [] if output in made else [f"no output {output}"]
    if lacking:
        raise DecodeError(
            f"this is no part of a speech model: it has {' and '.join(lacking)}",
            where=str(file),
            mend=EXPORT,
        )
    return proto


def _keys(file: Path, hidden: Sequence[Any]) -> Function:
    """What a decoder's layers read of the encoder's output, by the names of the later decoder's
    inputs."""
    proto = _refuse_other(file, (IDS, HIDDEN), LOGITS)
    inputs = _inputs(proto)
    shapes = {name: _shape(info, {0: 1}) for name, info in inputs.items()}
    shapes[IDS], shapes[HIDDEN] = (1, 1), _whole(hidden)
    values = {BRANCH: np.array([False])} if BRANCH in inputs else {}
    shapes = {name: shape for name, shape in shapes.items() if name not in values}
    made = from_onnx(file, shapes, values=values)
    caches = [name for name in made.output_names if OF_ENCODER in name]
    if not caches:
        what = f"the decoder gives no caches present.N{OF_ENCODER}key"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    found = giving(made, caches)
    if others := [p.name for p in found.params if p.name != HIDDEN]:
        what = f"what was heard is computed from '{others[0]}', too"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    return replace(found, output_names=tuple(_past_name(n) for n in found.output_names))


def _past_name(present: str) -> str:
    return present.replace("present", "past_key_values", 1)


def _whole(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape)


def _shape(info: ValueInfoProto, known: Mapping[int, int]) -> tuple[int, ...]:
    """The shape of an input that decides nothing: what is open is 1."""
    dims = info.type.tensor_type.shape.dim
    return tuple(known.get(a) or d.dim_value or 1 for a, d in enumerate(dims))


def _teller(file: Path, hear: Function, length: int) -> Function:
    """The decoder of later steps as a function of tokens and of what was heard, with its cache."""
    proto = _refuse_other(file, (IDS,), LOGITS)
    inputs = _inputs(proto)
    outputs = {o.name: o for o in proto.graph.output}
    every = past_of(inputs, outputs)
    past = {name: after for name, after in every.items() if OF_ENCODER not in name}
    heard = {n: v.type.shape for n, v in zip(hear.output_names, hear.outputs, strict=True)}
    rows = dimension_of(inputs, next(iter(past)), 2) if past else ""
    if not rows or set(heard) - set(inputs):
        raise DecodeError(
            "the decoder takes no caches past_key_values.N of what was heard and said",
            where=str(file), mend=EXPORT,
        )  # fmt: skip
    dims: dict[str, Any] = {rows: f"<={length}"}
    if steps := dimension_of(inputs, IDS, 1):
        dims[steps] = f"<={min(STEP, length)}"
    if (places := dimension_of(inputs, PLACES, 0)) not in ("", steps):
        dims[places] = symbol(steps) if steps else 1
    shapes = {name: _whole(shape) for name, shape in heard.items()}
    if HIDDEN in inputs:
        shapes[HIDDEN] = _shape(inputs[HIDDEN], {1: next(iter(shapes.values()))[2]})
    for name in (IDS, *past):
        if batch := dimension_of(inputs, name, 0):
            dims[batch] = 1
    values = {BRANCH: np.array([True])} if BRANCH in inputs else {}
    made = from_onnx(file, shapes, dims, values=values)
    read = {a for b in made.bindings for a in b.call.args}
    unread = [p for p in made.params if p.name == HIDDEN and p not in read]
    made = replace(made, params=tuple(p for p in made.params if p not in unread))
    unknown = [p.name for p in made.params
               if p.name not in {IDS, PLACES, *past, *heard, *dict(made.extents)}]  # fmt: skip
    if unknown:
        what = f"nothing says what the decoder's input {', '.join(unknown[:3])} is"
        raise DecodeError(what, where=str(file), mend=EXPORT)
    parts = Parts(IDS, LOGITS, past, None, PLACES if PLACES in inputs else None)
    try:
        return with_cache(made, parts, length)
    except GraphError as error:
        raise DecodeError(error.what, where=str(file), mend=error.mend) from error
