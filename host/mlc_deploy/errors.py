"""The errors for a user's mistakes: what is wrong, where, how to mend it.

    MlcError
      ├ InstallError     this installation lacks one of its files
      ├ ImporterError    a model file cannot be read, or holds what is not supported
      │   └ ShapeError   a requested shape is not the model's, or one is missing
      ├ ScriptError      a script of functions is not well formed
      ├ GraphError       a graph is built in an invalid way
      ├ ExternalError    a registered function is missing, raised, or did not write its outputs
      ├ ScheduleError    a schedule primitive does not apply, or would change the result
      ├ PassError        a PassContext names an unknown pass, phase or option
      ├ LowerError       a scheduled function cannot be made into flat loops
      ├ CodegenError     flat loops cannot be made into an object for the target
      ├ ArtifactError    a saved model's file is damaged; a model cannot be saved
      ├ DeployError      a board cannot run a program compiled for a target
      ├ InputError       a given array does not fit the model's input or output
      ├ FarmError        a farm of boards cannot be used: a package, an address, a kind of board
      ├ DecodeError      a model writes no text, or not this one: no decoder, no tokenizer, no room
      ├ ReportError      no page or trace can be made of a file
      ├ QuantizeError    no layer of a model can be made int8 within the budget
      └ TuneError        nothing can be tuned with a database, a space or boards

`mlc_targets.TargetError` and `mlc_rpc.RpcError` have the same form and are separate roots, since
these packages import nothing of this one. Our own mistakes are `assert`s.
"""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlc_targets.text import INDENT, LONG, paragraph, shown


class MlcError(Exception):
    """A mistake that the user can mend.

    `what` is one sentence without a full stop. `where` is the line of the program, the file or the
    layer. `mend` says what to do. Names in them may be from outside: unprintable characters are
    escaped. The message is

        unroll: loop 'k' has extent n, which is not a constant
          in:  for k in unroll(n)
          try: split 'k' by a constant first, then unroll its inner loop
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        self.what, self.where, self.mend = what, where, mend
        super().__init__(paragraph(what) + _entry("in:  ", where) + _entry("try: ", mend))

    def __reduce__(self) -> Any:
        """For other processes: pickles the parts, since __init__ builds the message from them."""
        return _remade, (type(self), self.what, self.where, self.mend), self.__dict__


def _remade(kind: type[MlcError], what: str, where: str, mend: str) -> MlcError:
    return kind(what, where=where, mend=mend)


def _entry(label: str, text: str) -> str:
    if not text:
        return ""
    lines = (shown(line.expandtabs(), LONG) for line in text.split("\n"))
    return f"\n  {label}" + textwrap.indent("\n".join(lines), INDENT).lstrip()


class InstallError(MlcError):
    """This installation lacks one of its own files."""


class ImporterError(MlcError):
    """A model file cannot be read, or holds what is not supported."""


class ScriptError(MlcError):
    """A script of functions is not well formed: `where` is file:line:column and the line."""


class ShapeError(ImporterError):
    """A requested shape or dimension is not the model's, or one is missing."""


class GraphError(MlcError):
    """A graph is built in an invalid way, or a request does not fit it."""


class ExternalError(MlcError):
    """A registered function is missing, raised, or did not write its outputs."""


class ScheduleError(MlcError):
    """A schedule primitive does not apply here, or would change the result."""


class PassError(MlcError):
    """A PassContext names an unknown pass, phase or option."""


class LowerError(MlcError):
    """A scheduled function cannot be made into flat loops."""


class CodegenError(MlcError):
    """Flat loops cannot be made into an object for the target."""


class ArtifactError(MlcError):
    """A file is not a saved model, is damaged, or is of another version; or a model cannot be saved
    or exported."""


class DeployError(MlcError):
    """A board cannot run a program compiled for a target."""


class InputError(MlcError):
    """A given array does not fit the model's input or output."""


class FarmError(MlcError):
    """A farm of boards cannot be used: a missing package, a bad address, or a kind of board that
    the farm lacks."""


class DecodeError(MlcError):
    """A model is not a decoder, a package or tokenizer is missing, or a text is too long."""


class ReportError(MlcError):
    """A file is not a record, is damaged, or is of another version; or a page would be too
    large."""


class QuantizeError(MlcError):
    """No layer of a model can be quantized, or none keeps the budget and costs less."""


class CostsMore(QuantizeError):
    """No layer is quantized, since int8 would cost the target more than floats."""


class TuneError(MlcError):
    """Nothing can be tuned: the database is none or of another version, the space has no candidate,
    or all boards are gone."""


class ModelWarning(UserWarning):
    """A warning for the user: a model contradicts itself, and the message gives the decision."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Adds the path to an OSError: the system's errors for an open file name no path."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def users_code(file: str, kind: type[MlcError], where: str, mend: str) -> Iterator[None]:
    """Whatever code of the user's file raises becomes an error of this kind, with the line."""
    try:
        yield
    except kind:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        place = f"{where}, line {line}" if line else where
        raise kind(f"{type(error).__name__}: {error}", where=place, mend=mend) from error
