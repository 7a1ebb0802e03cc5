"""Options of several commands, and values with a form of their own: NAME=FILE, NAME=1,3,224,224,
NAME=128."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from numpy.typing import NDArray

from mlc_rpc.cores import KINDS, core_numbers
from mlc_targets import Target, levels_of

from ..artifact.format import is_saved
from ..errors import GraphError, MlcError, users_code
from ..files import npy
from ..files.outside import refuse_special
from ..passes.context import MEMORY, OPTIONS, options
from .help import ADVANCED, BOARD, COMPILING, MODEL, grouped

Array = NDArray[Any]
Value = TypeVar("Value")

SHIPPED = Path(__file__).parents[1] / "models"  # models and images that come with the package
SHIPPED_MODEL = SHIPPED / "digits_cnn.onnx"
NO_STATES = "none"
SHIPPED_DATA = SHIPPED / "digits.npz"  # images for the shipped model
INT8 = "int8"  # a precision that is made of data, by quantization
DATA_HELP = "Calibration data: .npy, .npz, a folder of them or of images, or FILE.py:NAME"
PREPROCESS_HELP = "Turn images into inputs: 'resize=224x224 mean=… std=… layout=NCHW color=RGB'"
LABEL = "label"  # the array of an .npz that holds the right classes


class Misuse(MlcError):
    """A mistake in the command line."""


def refuse_compiled(file: Path, target: Target, options: Mapping[str, object], source: str) -> None:
    """Raises Misuse for an option of the compiler beside a saved model. source: the kind of thing
    that such a model is compiled from."""
    for option, value in options.items():
        if value:
            raise Misuse(
                f"the model is compiled already, for {target.short_name}",
                where=f"{file} {option}",
                mend=f"without {option}, or the {source} that it was compiled from",
            )


@dataclass(frozen=True, slots=True)
class Reading:
    """The options of reading a model. Raises Misuse for an unknown precision or memory."""

    shape: tuple[str, ...]
    bind: tuple[str, ...]
    const: tuple[str, ...]
    state: tuple[str, ...]
    own: str | None
    asked_precision: str | None
    asked_memory: str | None
    trust: bool

    def __post_init__(self) -> None:
        if self.asked_memory not in (None, *MEMORY):
            where = f"--memory {self.asked_memory}"
            raise Misuse("there is no such choice", where=where, mend=" or ".join(MEMORY))
        if self.asked_precision is None:
            return
        from ..graph.precision import PRECISIONS  # here: a saved model does without the compiler

        known = (*PRECISIONS, INT8)
        if self.asked_precision not in known:
            where = f"--precision {self.asked_precision}"
            raise Misuse("there is no such precision", where=where, mend=" or ".join(known))

    @property
    def memory(self) -> str:
        return self.asked_memory or OPTIONS["graph.memory"]

    @property
    def precision(self) -> str:
        return self.asked_precision or "float32"

    @property
    def rest(self) -> str:
        """The precision of the layers that are not quantized."""
        return "float32" if self.precision == INT8 else self.precision

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of model_graph and compile. Raises Misuse, also for int8: it needs data."""
        if self.precision == INT8:
            raise Misuse(
                "this command takes a quantized model",
                where=f"--precision {INT8}",
                mend="mlc-deploy quantize MODEL --data D -o FILE.onnx, then FILE.onnx",
            )
        return {
            "shapes": shapes(self.shape), "dims": dims(self.bind),
            "converters": converters(self.own), "precision": self.precision, "trust": self.trust,
            "states": states(self.state), "values": constants(self.const),
        }  # fmt: skip


READING = (
    grouped(
        MODEL, "--shape", multiple=True, metavar="NAME=1,3,…", help="Set the shape of an input"
    ),
    grouped(
        MODEL, "--bind", multiple=True, metavar="NAME=N",
        help="Set a dimension by name; NAME<=N: dynamic, at most N",
    ),
    grouped(
        MODEL, "--const", multiple=True, metavar="NAME=N", rare=True,
        help="Make an input a constant: numbers or an .npy file",
    ),
    grouped(
        MODEL, "--state", multiple=True, metavar="IN=OUT", rare=True,
        help="Keep input IN on the board; OUT is its next value",
    ),
    grouped(
        MODEL, "--converters", "own", metavar="FILE.py", rare=True,
        help="Run FILE.py, whose CONVERTERS convert operators",
    ),
    grouped(
        COMPILING, "--precision", "asked_precision", metavar="P",
        help="Compute in float32, float16 or int8 (default: float32)",
    ),
    grouped(
        COMPILING, "--memory", "asked_memory", metavar="M", rare=True,
        help="Weight memory for speed: small, balanced (default), fast",
    ),
    grouped(
        MODEL, "--trust", is_flag=True, rare=True, help="Let a .pt2 file run code on this machine"
    ),
)  # fmt: skip


def reads_models(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command the options of READING, as its argument `reading`."""

    @wraps(command)
    def run(**given: Any) -> int:
        reading = Reading(*(given.pop(name) for name in Reading.__slots__))
        with options({"graph.memory": reading.memory}):
            return command(reading=reading, **given)

    for option in reversed(READING):
        run = option(run)
    return run


def known_cores(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    """The value of --cores. Raises Misuse for text that does not name cores."""
    if text in ("", *KINDS):
        return text
    try:
        core_numbers(text)
    except ValueError as error:
        mend = "fast, slow, or numbers such as 0-3 or 4,5"
        raise Misuse(str(error), where=f"--cores {text}", mend=mend) from None
    return text


CORES = grouped(
    BOARD, "--cores", metavar="LIST", default="", callback=known_cores, rare=True,
    help="Pin threads to cores: fast, slow or 0-3,… (default: fast)",
)  # fmt: skip
DEBUG = grouped(
    ADVANCED, "--debug", is_flag=True, expose_value=False, rare=True,
    help="Show a traceback with errors",
)  # fmt: skip
DB_HELP = "Use the schedules found by `mlc-deploy tune`"
TARGET_HELP = "Compile for T: a board or CPU (see help targets)"
JSON_HELP = "Write the results as JSON (-: to stdout)"


def above_zero(numbers: Mapping[str, float | None]) -> None:
    """Raises Misuse for an option with a number of 0 or less."""
    for option, value in numbers.items():
        if value is not None and not value > 0:
            raise Misuse(f"{option} must be more than 0", where=f"{option} {value:g}")


def named(
    option: str, texts: Sequence[str], read: Callable[[str, str], Value], form: str
) -> dict[str, Value]:
    """The values of a repeated option NAME=TEXT by name, each made by read(name, text).

    Raises Misuse, with `form` as an example.
    """
    found: dict[str, Value] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not (name and equals and rest):
            raise Misuse(f"{option} '{text}' is not {form}", mend=f"{option} {form}")
        if name in found:
            raise Misuse(f"{option} is given twice for '{name}'", mend="give it once")
        try:
            found[name] = read(name, rest)
        except ValueError:
            raise Misuse(f"{option} '{text}' is not {form}", mend=f"{option} {form}") from None
    return found


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return named("--shape", texts, lambda _, text: _extents(text), "NAME=1,3,224,224")


def dims(texts: Sequence[str]) -> dict[str, int | str]:
    """Dimensions by name: a number, "<=512" for a dynamic one, "1,<=64,<=512" for ranges, or the
    name of another that it always equals. Raises Misuse."""

    def read(name: str, text: str) -> int | str:
        whole = f"<={text}" if name.endswith("<") else text.strip()
        return int(whole) if whole.isdigit() else whole

    given = named("--bind", texts, read, "NAME=128 or NAME<=128")
    found = {name.rstrip("< "): n for name, n in given.items()}
    if any(isinstance(n, str) for n in found.values()):
        _refuse_bounds(found, " ".join(f"--bind '{text}'" for text in texts))
    return found


def _refuse_bounds(given: Mapping[str, int | str], where: str) -> None:
    """Raises Misuse for text that bounds no dynamic dimension and names no other."""
    from ..graph.extents import most_of  # here: the compiler takes a while to import
    from ..graph.ranges import parted

    try:
        for name, n in parted(given)[0].items():
            if isinstance(n, str):
                most_of(name, n)
    except GraphError as error:
        raise Misuse(error.what, where=where, mend=error.mend) from None


def ranges(texts: Sequence[str]) -> dict[str, int | str]:
    """The dimensions that have several ranges."""
    return {name: n for name, n in dims(texts).items() if isinstance(n, str) and "," in n}


def known_dims(texts: Sequence[str]) -> dict[str, int]:
    """Dimensions by name. Raises Misuse for dynamic ones, since layers are quantized at one
    size."""
    from ..graph.ranges import parted  # here: the compiler takes a while to import

    found: dict[str, int] = {}
    for name, n in parted(dims(texts))[0].items():
        if not isinstance(n, int):
            equals = "" if isinstance(n, str) else "="
            what = f"--bind '{name}{equals}{n}': layers are quantized at one size"
            raise Misuse(what, mend=f"--bind {name}=128")
        found[name] = n
    return found


def states(texts: Sequence[str]) -> dict[str, str] | None:
    """The states by input; None without the option: then names say which inputs are states."""
    if texts in ((NO_STATES,), ()):
        return {} if texts else None
    return named("--state", texts, lambda _, text: text, "h_in=h_out")


def constants(texts: Sequence[str]) -> dict[str, Any]:
    return named("--const", texts, _constant, "NAME=16000")


def _constant(name: str, text: str) -> Array | bool | int | float | list[float]:
    if Path(text).suffix in (".npy", ".npz"):
        return _load("--const", name, Path(text))[0]
    if text in ("true", "false"):
        return text == "true"
    numbers = [float(part) if set(part) & set(".einf") else int(part) for part in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


def _extents(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(","))


def arrays(option: str, texts: Sequence[str]) -> tuple[dict[str, Array], Array | None]:
    """The arrays of files by name, and the first `label` that an .npz among them holds."""
    files = named(option, texts, lambda _, text: text, "NAME=FILE.npy")
    found = {name: _load(option, name, Path(file)) for name, file in files.items()}
    labels = (label for _, label in found.values() if label is not None)
    return {name: array for name, (array, _) in found.items()}, next(labels, None)


def _load(option: str, name: str, path: Path) -> tuple[Array, Array | None]:
    """The array of an .npy; or of an .npz the array `name`, else its only one, and its labels."""
    where = f"{option} {name}={path}"
    try:
        with npy.opened(path) as loaded:
            if not isinstance(loaded, npy.Arrays):
                return loaded, None
            names = [n for n in loaded if n != LABEL]
            chosen = name if name in names else names[0] if len(names) == 1 else None
            if chosen is None:
                raise Misuse(
                    f"the file holds no array '{name}'",
                    where=where,
                    mend=f"one of {', '.join(loaded) or '(it is empty)'}",
                )
            return loaded[chosen], loaded[LABEL] if LABEL in loaded else None
    except FileNotFoundError:
        raise Misuse(
            "there is no such file", where=where, mend="the path of an .npy or .npz file"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise Misuse(f"cannot be read: {reason}", where=where) from None
    except npy.Unreadable as error:
        raise Misuse(str(error), where=where, mend="numpy.save(file, array)") from None


def one_level(target: str, what: str) -> Target:
    """The target of a text with one CPU level. Raises TargetError, and Misuse for several levels,
    with a message that begins with `what`."""
    levels = levels_of(target)
    if len(levels) > 1:
        raise Misuse(
            f"{what} one CPU level, not {len(levels)}",
            where=f"--target {target}",
            mend=f"--target {target.rpartition(':')[0]}:{levels[-1][0]}",
        )
    return levels[0][1]


def model_file(text: str | None, commands: Sequence[str]) -> Path:
    """MODEL as an existing file; the shipped model if there is no MODEL. Raises Misuse, with the
    nearest names."""
    if text is None:
        return SHIPPED_MODEL
    path = Path(text)
    if path.is_dir() or path.is_file():
        return path
    try:
        refuse_special(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        mend = "the path of an .onnx, .tflite, .pt2 or .mlc file"
        raise Misuse(f"cannot be read: {reason}", where=text, mend=mend) from None
    folder = path.parent
    files = [str(p) for p in folder.glob("*") if p.suffix in (".onnx", ".tflite", ".pt2", ".mlc")]
    near = get_close_matches(text, [*files, *commands], 3)
    if "." in text or "/" in text:
        what, where = "there is no such file", text
    else:
        what, where = f"there is no such command or file: '{text}'", ""
    raise Misuse(what, where=where, mend=" or ".join(near) or "the path of an .onnx or .mlc file")


def source_file(text: str | None, commands: Sequence[str]) -> Path:
    """MODEL as a file to compile. Raises Misuse, also for a file that --save wrote."""
    path = model_file(text, commands)
    if path.is_file() and is_saved(path):
        mend = "the model that it was compiled from"
        raise Misuse("the model is compiled already", where=str(path), mend=mend)
    return path


def folder(option: str, text: str) -> Path:
    """A folder to write into, made now, so that a refusal comes before the work. Raises Misuse."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise Misuse(
            "this is not a folder", where=f"{option} {text}", mend="another name"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Misuse(
            f"it cannot be made: {reason}", where=f"{option} {text}", mend="another folder"
        ) from None
    if not os.access(path, os.W_OK):
        raise Misuse("it cannot be written", where=f"{option} {text}", mend="another folder")
    return path


def writable(option: str, text: str) -> Path:
    """A file to write later, checked now, so that a refusal comes before the work. Raises
    Misuse."""
    path = Path(text)
    if path.is_dir():
        raise Misuse("this is a folder", where=f"{option} {text}", mend="a file's name")
    if not path.parent.is_dir():
        raise Misuse(
            "there is no such folder", where=f"{option} {text}", mend=f"mkdir -p {path.parent}"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Misuse("it cannot be written", where=f"{option} {text}", mend="another folder")
    return path


def converters(file: str | None) -> dict[str, Any]:
    """The converters of a Python file: its dict CONVERTERS, from names of operators to functions.

    The file is run. It may register functions, too (mlc.register_func). Raises Misuse for a file
    that cannot be read or run, and for any other CONVERTERS.
    """
    if file is None:
        return {}
    where = f"--converters {file}"
    try:
        source = Path(file).read_bytes()
    except FileNotFoundError:
        raise Misuse("there is no such file", where=where, mend="the path of a .py file") from None
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=where) from None
    names: dict[str, Any] = {"__name__": "converters", "__file__": file}
    with users_code(file, Misuse, where, mend=f"python {file}"):
        exec(compile(source, file, "exec"), names)
    found = names.get("CONVERTERS", {})
    # A file that registers functions needs no CONVERTERS.
    if "CONVERTERS" not in names and b"register_func" not in source:
        raise Misuse(
            "the file holds no CONVERTERS", where=where, mend='CONVERTERS = {"Operator": convert}'
        )
    if not isinstance(found, dict):
        raise Misuse(
            f"CONVERTERS is a {type(found).__name__}, not a dict",
            where=where,
            mend='CONVERTERS = {"Operator": convert}',
        )
    for name, convert in found.items():
        if not isinstance(name, str) or not callable(convert):
            raise Misuse(
                f"CONVERTERS holds {name!r}: {convert!r:.60}",
                where=where,
                mend="names of operators, and functions that convert them",
            )
    return found
