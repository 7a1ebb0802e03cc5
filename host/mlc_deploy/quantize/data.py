"""Calibration data: makes runs of the model from files, folders, images or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import helper

from ..errors import InputError, users_code
from ..files import npy
from ..frontend.onnx_shapes import declared_shape, refuse_unknown_dims
from ..frontend.refusals import refuse_unknown_inputs
from .images import EXAMPLE, SUFFIXES, Preprocess, parse, read_image, settled
from .net import Array, Net
from .run import Sample

Source: TypeAlias = "str | Path | Mapping[str, Array] | Array | Iterable[Any]"

LABEL = "label"  # the array of an .npz that holds the right classes
ARRAYS = (".npy", ".npz")


@dataclass(frozen=True)
class Data:
    """runs: the inputs of each, by name; labels: the right classes of all runs, if known;
    preprocess: that of images, defaults included."""

    runs: tuple[Sample, ...] = ()
    labels: Array | None = None
    preprocess: str | None = None


@dataclass(frozen=True)
class Input:
    """An input of the model; a dynamic extent is None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.dtype}[{sizes}]"


def inputs_of(
    net: Net, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> tuple[Input, ...]:
    """The model's inputs, with the given shapes and dimensions. Raises ShapeError for names that
    the model lacks."""
    refuse_unknown_inputs(shapes, [i.name for i in net.inputs], "model", "the model")
    refuse_unknown_dims(dims, [declared_shape(i, "the model") for i in net.inputs], "the model")
    found = []
    for info in net.inputs:
        kind = info.type.tensor_type
        shape: tuple[int | None, ...] = tuple(
            d.dim_value if d.dim_value > 0 else dims.get(d.dim_param) for d in kind.shape.dim
        )
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
        found.append(Input(info.name, dtype, tuple(shapes.get(info.name, shape))))
    return tuple(found)


def samples_of(
    net: Net,
    source: Source,
    preprocess: str | None,
    most: int,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    labels: Array | None = None,
) -> Data:
    """At most `most` runs, with their labels: the given ones, else the data's own. Labels of all
    runs are cut to those of the runs taken. Raises InputError."""
    inputs = inputs_of(net, shapes, dims)
    if isinstance(source, (str, Path)):
        made = _of_path(inputs, str(source), preprocess)
    elif isinstance(source, Mapping):
        made = _of_arrays(inputs, source, "data")
    elif isinstance(source, np.ndarray):
        made = _of_arrays(inputs, {inputs[0].name: source}, "data")
    else:
        made = _of_many(inputs, source, "data")
    if preprocess is not None and made.preprocess is None:
        raise InputError(
            "--preprocess is about images, and the data are arrays",
            where=made.where,
            mend="arrays as the model takes them, without --preprocess",
        )
    runs = tuple(islice(made.runs, most))
    if not runs:
        raise InputError("there is no calibration data", where=made.where, mend=_forms(inputs))
    labels = made.labels if labels is None else labels
    if labels is not None:
        labels = labels.reshape(-1)
        per_run, rest = divmod(labels.size, made.count or len(runs))
        labels = labels if rest else labels[: per_run * len(runs)]
    return Data(runs, labels, made.preprocess)


@dataclass(frozen=True)
class _Made:
    """where: the source of the runs; count: how many there are, if known."""

    runs: Iterator[Sample]
    where: str
    labels: Array | None = None
    count: int | None = None
    preprocess: str | None = None


def _forms(inputs: Sequence[Input]) -> str:
    wanted = ", ".join(f"'{i.name}' {i}" for i in inputs)
    return f"an .npy or .npz file, a folder of those or of images: runs of {wanted}"


def _of_path(inputs: Sequence[Input], text: str, preprocess: str | None) -> _Made:
    path = Path(text)
    if path.is_dir():
        return _of_folder(inputs, path, preprocess)
    if path.suffix in ARRAYS and path.is_file():
        return _of_arrays(inputs, _loaded(inputs, path), str(path))
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _of_many(inputs, _called(Path(file), name, text), text)
    if not path.exists():
        raise InputError("there is no such file or folder", where=text, mend=_forms(inputs))
    raise InputError("this is not calibration data", where=text, mend=_forms(inputs))


def _of_folder(inputs: Sequence[Input], folder: Path, preprocess: str | None) -> _Made:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in (*ARRAYS, *SUFFIXES))
    if not files:
        raise InputError(
            "the folder itself holds no .npy or .npz file and no image",
            where=str(folder),
            mend=_forms(inputs),
        )
    images = [p for p in files if p.suffix.lower() in SUFFIXES]
    if images and len(images) < len(files):
        raise InputError(
            "the folder holds both images and arrays", where=str(folder), mend="one folder each"
        )
    if images:
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            wanted = ", ".join(f"'{i.name}' {i}" for i in inputs)
            raise InputError(
                "images are for a model with one input of four dimensions, and this one takes "
                + wanted,
                where=str(folder),
                mend="a folder of .npz files with an array per input",
            )
        if preprocess is None:
            raise InputError(
                "how to convert the images is not given", where=str(folder), mend=EXAMPLE
            )
        return _of_images(inputs[0], images, parse(preprocess))
    parts = [_of_arrays(inputs, _loaded(inputs, path), str(path)) for path in files]
    labels = [part.labels for part in parts]
    together = np.concatenate([a.reshape(-1) for a in labels if a is not None] or [np.zeros(0)])
    return _Made(
        (run for part in parts for run in part.runs),
        str(folder),
        together.astype(np.int64) if all(a is not None for a in labels) else None,
        sum(part.count or 0 for part in parts),
    )


def _of_images(of: Input, paths: Sequence[Path], how: Preprocess) -> _Made:
    """A run for each image, or for each batch if the model takes several at once."""
    together = of.shape[0] or 1
    how = settled(how, of.shape)

    def runs() -> Iterator[Sample]:
        for begin in range(0, len(paths) - together + 1, together):  # all may not fit into memory
            read = [_image(of, path, how) for path in paths[begin : begin + together]]
            yield {of.name: np.concatenate(read)}

    folder = str(paths[0].parent)
    if len(paths) < together:
        count = f"{len(paths)} image{'s' if len(paths) > 1 else ''}"
        raise InputError(
            f"the input '{of.name}' is {of}, and the folder holds {count}",
            where=folder,
            mend=f"at least {together} images",
        )
    return _Made(runs(), folder, None, len(paths) // together, str(how))


def _image(of: Input, path: Path, how: Preprocess) -> Array:
    """An image as [1, …]. Raises InputError if it does not fit the model's input."""
    x = read_image(path, how)
    if any(wanted not in (None, n) for wanted, n in zip(of.shape[1:], x.shape[1:], strict=True)):
        raise InputError(
            f"the input '{of.name}' is {of}, and the image becomes {x.dtype.name}{list(x.shape)}",
            where=f"{path}, --preprocess '{how}'",
            mend="other resize, crop, color or layout",
        )
    return _of_dtype(of, x, str(path))


def _loaded(inputs: Sequence[Input], path: Path) -> dict[str, Array]:
    """The arrays of a file; the array of an .npy is for the only input."""
    try:
        with npy.opened(path) as loaded:
            if isinstance(loaded, npy.Arrays):
                return {name: loaded[name] for name in loaded}
            if len(inputs) > 1:
                raise InputError(
                    f"the model has {len(inputs)} inputs, and the file one array",
                    where=str(path),
                    mend=f"an .npz file with {', '.join(i.name for i in inputs)}",
                )
            return {inputs[0].name: np.asarray(loaded)}
    except npy.Unreadable as error:
        raise InputError(str(error), where=str(path), mend="numpy.save(file, array)") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def _of_arrays(inputs: Sequence[Input], arrays: Mapping[str, Array], where: str) -> _Made:
    """The runs in arrays, which hold one run or several."""
    names = [name for name in arrays if name not in (LABEL, "index")]
    if len(inputs) == 1 and inputs[0].name not in arrays and len(names) == 1:
        arrays = {
            inputs[0].name: arrays[names[0]],
            **{k: v for k, v in arrays.items() if k == LABEL},
        }
    runs: dict[str, list[Array]] = {}
    for of in inputs:
        if of.name not in arrays:
            raise InputError(
                f"there is no array for the input '{of.name}'",
                where=where,
                mend=f"an .npz file with {', '.join(i.name for i in inputs)}",
            )
        runs[of.name] = _runs_of(of, np.asarray(arrays[of.name]), where)
    counts = {len(found) for found in runs.values()}
    if len(counts) > 1:
        text = ", ".join(f"{len(found)} of '{name}'" for name, found in runs.items())
        raise InputError(f"the inputs have different numbers of samples: {text}", where=where)
    together = [dict(zip(runs, each, strict=True)) for each in zip(*runs.values(), strict=True)]
    labels = arrays.get(LABEL)
    of_labels = None if labels is None else np.asarray(labels)
    return _Made(iter(together), where, of_labels, len(together))


def _of_many(inputs: Sequence[Input], given: Iterable[Any], where: str) -> _Made:
    """Runs given one by one: arrays by name, in order, or the only input's array."""

    def runs() -> Iterator[Sample]:
        for number, each in enumerate(given, 1):
            place = f"{where}, run {number}"
            if isinstance(each, Mapping):
                arrays = dict(each)
            elif isinstance(each, (tuple, list)) and len(each) == len(inputs):
                arrays = {i.name: a for i, a in zip(inputs, each, strict=True)}
            else:
                arrays = {inputs[0].name: each}
            yield from _of_arrays(inputs, arrays, place).runs

    return _Made(runs(), where)


def _called(file: Path, name: str, where: str) -> Iterable[Any]:
    """Runs a Python file and yields what its function yields. Raises InputError."""
    mend = f'python -c \'import runpy; list(runpy.run_path("{file}")["{name}"]())\''
    try:
        source = file.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        mend = "the path of a .py file, and a function in it"
        raise InputError(f"cannot be read: {reason}", where=where, mend=mend) from None
    names: dict[str, Any] = {"__name__": "calibration", "__file__": str(file)}
    with users_code(str(file), InputError, where, mend):
        exec(compile(source, str(file), "exec"), names)
        function: Callable[[], Iterable[Any]] | None = names.get(name)
        if function is not None and callable(function):
            yield from function()
            return
    raise InputError(
        f"the file has no function '{name}'", where=where, mend=f"def {name}(): yield a run"
    )


def _runs_of(of: Input, array: Array, where: str) -> list[Array]:
    """The runs that an array holds for an input: one, one without its first axis of 1, or many
    along the first axis. Raises InputError."""
    array = _of_dtype(of, array, where)
    rank = len(of.shape)

    def fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
        return len(shape) == len(wanted) and all(
            n in (None, m) for n, m in zip(wanted, shape, strict=True)
        )

    first = of.shape[0] if rank else None
    found: list[Array] | None = None
    if rank == 0 and array.ndim == 0:
        found = [array]
    elif array.ndim == rank + 1 and fits(array.shape[1:], of.shape):
        found = list(array)
    elif rank and array.ndim == rank - 1 and first in (None, 1) and fits(array.shape, of.shape[1:]):
        found = [array[None]]
    elif rank and array.ndim == rank and fits(array.shape[1:], of.shape[1:]):
        size = first or 1
        found = [array[k : k + size] for k in range(0, len(array) - size + 1, size)]
    if not found:
        raise InputError(
            f"the input '{of.name}' is {of}, and the data are {array.dtype.name}"
            f"{list(array.shape)}",
            where=where,
            mend=f"arrays of {of}, or of many of those along the first axis",
        )
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise InputError(
            f"the data of the input '{of.name}' hold NaN or infinity",
            where=where,
            mend="representative data",
        )
    return [np.ascontiguousarray(a).reshape(a.shape) for a in found]


def _of_dtype(of: Input, array: Array, where: str) -> Array:
    """The array in the input's dtype. Converts floats of another size, and integers that fit."""
    if array.dtype.name == of.dtype:
        return array
    wanted = np.dtype(of.dtype)
    if array.dtype.kind == "f" and wanted.kind == "f":
        return array.astype(wanted)
    if array.dtype.kind in "iub" and wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
            return array.astype(wanted)
    raise InputError(
        f"the input '{of.name}' is {of}, and the data are {array.dtype.name}{list(array.shape)}",
        where=where,
        mend=f"numbers of {of.dtype}, scaled as the model takes them",
    )
