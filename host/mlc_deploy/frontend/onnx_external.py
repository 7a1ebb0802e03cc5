"""Weights of an ONNX model in other files: where they may be, and their arrays.

A model names such files. One that leads out of its folder would bring any file of this user onto
boards and into saved models, so it is refused.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from ..errors import ImporterError
from ..files.mapped import mapped
from ..files.outside import refuse_special
from .narrow import Narrow, from_bytes, size_of

MOST_EXTERNAL = 1 << 62  # bytes; no file is so large, and sums of two stay in 64 bits
UNNAMED = Path("model")  # the place of a model that is not a file: the current folder


def is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def check_external_data(model: ModelProto, path: Path | None, where: str) -> None:
    """Raises ImporterError that names missing files of weights, or for an impossible place."""
    file = path or UNNAMED
    missing: dict[str, None] = {}
    for tensor in model.graph.initializer:
        if is_external(tensor):
            location, offset, length = placed(tensor, where)
            try:
                there = (file.parent / location).is_file()
            except (OSError, ValueError):  # no valid file name, for example with a zero byte
                there = False
            if not there:
                missing[location] = None
            elif not _is_beside(location, file):
                raise ImporterError(
                    f"the weights in {location!a:.60} are outside of the model's folder",
                    where=where,
                    mend=f"copy the file into {file.parent}, under a name without '..'",
                )
            if offset < 0 or length < 0 or max(offset, length) > MOST_EXTERNAL:
                raise ImporterError(
                    f"tensor {tensor.name!a:.60} is said to be at {offset:,}, of {length:,} bytes, "
                    f"of {location!a:.60}",
                    where=where,
                    mend="export the model again",
                )
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        raise ImporterError(
            f"the weights in {names} are missing",
            where=where,
            mend=f"put {'it' if len(missing) == 1 else 'them'} into {file.parent}",
        )


def placed(tensor: TensorProto, where: str) -> tuple[str, int, int]:
    """File, offset and length of external data; no length is 0. Raises ImporterError."""
    found = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset, length = (int(found.get(key) or 0) for key in ("offset", "length"))
        return str(found.get("location", "")), offset, length
    except ValueError:  # also for numbers of thousands of digits
        raise ImporterError(
            f"the place of tensor {tensor.name!a:.60} in another file is not a number",
            where=where,
            mend="export the model again",
        ) from None


def _is_beside(location: str, model: Path) -> bool:
    """Whether a file of weights is the model's: in its folder, or, after a link, where the model's
    own link leads. Hugging Face's cache has models in snapshots/REVISION/ as links to blobs/."""
    paths = PurePosixPath(location), PureWindowsPath(location)
    if any(p.is_absolute() or p.drive or ".." in p.parts for p in paths):
        return False
    real = (model.parent / location).resolve()
    folder = model.parent.resolve()
    homes = {folder, model.resolve().parent}
    homes |= {p.parent / "blobs" for p in folder.parents if p.name == "snapshots"}
    return any(real.is_relative_to(home) for home in homes)


def external_array(
    tensor: TensorProto, dtype: str, kind: Narrow | None, file: Path | None
) -> NDArray[Any]:
    """External data, as a view of its file. Raises ValueError, OSError."""
    model = file or UNNAMED
    location, offset, length = placed(tensor, tensor.name)
    if not _is_beside(location, model):
        raise ValueError(f"the weights in {location!a:.60} are outside of the model's folder")
    beside = model.parent / location
    refuse_special(beside)
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize if kind is None else size_of(kind, count)
    there = beside.stat().st_size - offset
    if not (0 <= size <= there and 0 <= offset) or (length or size) != size:
        raise ValueError(
            f"{size} bytes from {offset} on of '{location}', which has "
            f"{max(there, 0)} there and says {length or 'nothing of it'}"
        )
    if not size:
        return np.zeros(shape, dtype)
    whole = mapped(beside)
    if kind is not None:
        return from_bytes(np.frombuffer(whole, np.uint8, size, offset), kind, shape)
    little = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(whole, little, count, offset).reshape(shape).astype(dtype, copy=False)
