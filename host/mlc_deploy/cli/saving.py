"""--save and --emit: the compiled model as files or text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CodegenError
from ..files.unfinished import write_whole
from .options import Misuse, writable
from .tables import tell

if TYPE_CHECKING:
    from mlc_targets import Target

    from ..driver.compile import CompiledModel
    from ..driver.levels import CompiledLevels

MODEL = ".mlc"
KERNELS = (".o", ".s", ".ll", ".c")
FORMS = {"llvm": ".ll", "asm": ".s", "obj": ".o", "c": ".c", "ir": ".txt"}  # form -> suffix


def saved(text: str) -> Path:
    """The path that --save writes; a folder ends in "/" or exists. Raises Misuse."""
    path = Path(text)
    if is_folder(text):
        if path.exists() and not path.is_dir():
            raise Misuse("this is not a folder", where=f"--save {text}", mend="another name")
        return path
    path = writable("--save", text)
    if path.suffix not in (MODEL, *KERNELS):
        raise Misuse(
            f"--save does not know the suffix of '{path.name}'",
            where=f"--save {text}",
            mend="a name that ends in .mlc (model), .o (object), .s (assembly), .ll (LLVM IR), "
            ".c (source)\nor / (a folder with the model and the program that runs it)",
        )
    return path


def is_folder(text: str) -> bool:
    """Whether --save names a folder: the name ends in "/", or the folder exists."""
    return text.endswith(("/", os.sep)) or Path(text).is_dir()


def save_model(model: CompiledLevels, text: str, name: str) -> None:
    """Writes the model where `saved` said. Raises MlcError, OSError."""
    from ..artifact import save_folder

    to = saved(text)
    first, *more = model.programs
    refuse_machine_code(model.target, f"--save {text}", to.suffix)
    if is_folder(text):
        save_folder(to, first, name, more)
    elif to.suffix == MODEL:
        model.save(to)
    elif more:
        raise Misuse(
            f"a file of kernels holds one CPU level, not {len(model.programs)}",
            where=f"--save {text}",
            mend=f"a name that ends in {MODEL}, or one level in --target",
        )
    else:
        first.library.save(to)


def refuse_machine_code(target: Target, where: str, suffix: str) -> None:
    """Raises Misuse for machine code of the target "c", which has none."""
    if target.kind == "c" and suffix in (".o", ".s", ".ll"):
        raise Misuse(
            "the target 'c' is C for any machine, and has no machine code",
            where=where,
            mend="--emit c --output DIR, or --target with a machine: armv7a, aarch64",
        )


def emit_model(model: CompiledModel, form: str, to: Path | None, name: str) -> None:
    """Prints the model in one of FORMS, or writes it to a folder. In a folder, "obj" (for the
    target "c": "c") writes all files that a C program needs. Raises MlcError, OSError."""
    refuse_machine_code(model.target, f"--emit {form}", FORMS[form])
    try:
        _emit(model, form, to, name)
    except CodegenError as error:
        if form != "c" or model.target.kind == "c":
            raise
        raise CodegenError(error.what, where=error.where, mend="--target c --emit c") from error


def _emit(model: CompiledModel, form: str, to: Path | None, name: str) -> None:
    if to is None:
        _print(model, form)
    elif form == "obj" or (form == "c" and model.target.kind == "c"):
        model.export(to, name)
    elif form == "ir":
        write_whole(to / f"{name}{FORMS[form]}", _ir(model))
    else:
        model.library.save(to / f"{name}{FORMS[form]}")


def _print(model: CompiledModel, form: str) -> None:
    from ..codegen import c_source

    match form:
        case "llvm":
            click.echo(model.library.optimized_ir)
        case "asm":
            click.echo(model.library.assembly)
        case "c":
            source, header = c_source(model.library)
            click.echo(f"{header}\n{source}")
        case "ir":
            tell(_ir(model).removesuffix("\n"))
        case "obj":
            if sys.stdout.isatty():
                raise Misuse(
                    "an object file is not text",
                    mend="--emit obj > model.o\n--emit obj --output DIR, for a C program",
                )
            sys.stdout.buffer.write(model.object_bytes)


def _ir(model: CompiledModel) -> str:
    from ..graph.lower import lower_kernel

    sources = model.program.kernels.values()
    kernels = "\n\n".join(str(lower_kernel(s, model.target)) for s in sources)
    return f"{model.program.function}\n\n{kernels}\n"
