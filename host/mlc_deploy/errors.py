"""The errors that a user's mistake raises: what is wrong, where, how to mend it.

    MlcError
      ├ InstallError     this installation lacks one of its files
      ├ ImporterError    a model file cannot be read, or holds what is not supported
      │   └ ShapeError   a shape that was asked for is not the model's, or one is missing
      ├ ScriptError      a script of functions is not well formed
      ├ GraphError       a graph is put together in a way that gives none
      ├ ExternalError    a registered function is missing, raised, or did not write its outputs
      ├ ScheduleError    a schedule primitive does not apply, or would change the result
      ├ PassError        a PassContext names a pass, phase or option that is not
      ├ LowerError       a scheduled function cannot be made into flat loops
      ├ CodegenError     flat loops cannot be made into an object for the target
      ├ ArtifactError    a saved model's file is damaged; a model cannot be saved
      ├ DeployError      a board cannot run what was compiled for a target
      ├ InputError       an array that was given does not fit the model's input or output
      ├ FarmError        a farm of boards cannot be used: a package, an address, a kind of board
      ├ DecodeError      a model writes no text, or not this one: no decoder, no tokenizer, no room
      ├ ReportError      a file is no record that a page or a trace can be made of
      ├ QuantizeError    no layer of a model can be made int8 within the budget
      └ TuneError        a database, a space or boards with which nothing can be tuned

`mlc_targets.TargetError` and `mlc_rpc.RpcError` have the same form and are roots of their own,
since those packages import nothing of this one. Our own mistakes are `assert`s.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlc_targets.text import INDENT, LONG, paragraph, shown


class MlcError(Exception):
    """A mistake that the user can mend.

    `what` is one sentence without a full stop; `where` is the line of the program, the file or the
    layer it is about; `mend` says what to do. Names in them may be from outside: what of them is
    not printable is shown escaped. The message is

        unroll: loop 'k' has extent n, which is not a constant
          in:  for k in unroll(n)
          try: split 'k' by a constant first, then unroll its inner loop
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        self.what, self.where, self.mend = what, where, mend
        super().__init__(paragraph(what) + _entry("in:  ", where) + _entry("try: ", mend))

    def __reduce__(self) -> Any:
        """For other processes: of its parts, since the message is made of them once."""
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
    """A shape or dimension that was asked for is not the model's, or one is missing."""


class GraphError(MlcError):
    """A graph is put together in a way that gives none; what is asked of it does not fit it."""


class ExternalError(MlcError):
    """A registered function is missing, raised, or did not write its outputs."""


class ScheduleError(MlcError):
    """A schedule primitive does not apply here, or would change the result."""


class PassError(MlcError):
    """A PassContext names a pass, a phase or an option that there is not."""


class LowerError(MlcError):
    """A scheduled function cannot be made into flat loops."""


class CodegenError(MlcError):
    """Flat loops cannot be made into an object for the target."""


class ArtifactError(MlcError):
    """A file is no saved model, or a damaged one, or another version's; a model that cannot be
    saved or exported."""


class DeployError(MlcError):
    """A board cannot run what was compiled for a target."""


class InputError(MlcError):
    """An array that was given does not fit the model's input or output."""


class FarmError(MlcError):
    """A farm of boards cannot be used: a missing package, a bad address, a kind of board that it
    does not have."""


class DecodeError(MlcError):
    """A model that is no decoder, a missing package or tokenizer, a text that is too long."""


class ReportError(MlcError):
    """A file that is no record, a damaged one, or one of another version; a page that would be
    larger than a page may be."""


class QuantizeError(MlcError):
    """A model with no layer for small integers, or none that keeps the budget and costs less."""


class CostsMore(QuantizeError):
    """No layer for small integers, since they would cost the target more than floats."""


class TuneError(MlcError):
    """Nothing can be tuned with this: a database that is none or another version's, a space
    without a candidate, boards that are all gone."""


class ModelWarning(UserWarning):
    """What was decided about a model that says two things; its user should know of it."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError says where: the system's own names no file once that is open."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
