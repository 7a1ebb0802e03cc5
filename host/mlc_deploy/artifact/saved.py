"""`load_model` reads a saved model for boards, without the compiler:

model = mlc.load_model("model.mlc")
with mlc.connect("ssh://pi@raspberrypi.local") as board:
    done = mlc.deploy(model, board, {"input": x}, expect={"output": y})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlc_targets import MAX_LEVELS, Target, TargetError, best_level
from mlc_targets.object_format import Metadata, parse_metadata, section_of

from .format import Blob, disorder, read_file


@dataclass(frozen=True)
class SavedProgram:
    """The model for one CPU level of its target: "base", or a level with more features."""

    level: str
    precision: str
    target: Target
    object_bytes: bytes
    weights_bytes: memoryview
    metadata: Metadata
    index_extents: Mapping[str, int]


@dataclass(frozen=True)
class SavedModel:
    """A file's content, mapped, not read. Each program asks for more CPU features than the one
    before. Boards get the first program, unless `fitting` chose another."""

    name: str
    writer: str
    programs: tuple[SavedProgram, ...]

    @property
    def seconds(self) -> None:
        """The compiler's time is unknown."""
        return None

    def __repr__(self) -> str:
        levels = ", ".join(program.level for program in self.programs)
        return f"<SavedModel {self.name} for {self.target.short_name} ({levels})>"

    @property
    def target(self) -> Target:
        return self.programs[0].target

    @property
    def level(self) -> str:
        return self.programs[0].level

    @property
    def precision(self) -> str:
        return self.programs[0].precision

    @property
    def object_bytes(self) -> bytes:
        return self.programs[0].object_bytes

    @property
    def weights_bytes(self) -> memoryview:
        return self.programs[0].weights_bytes

    @property
    def metadata(self) -> Metadata:
        return self.programs[0].metadata

    @property
    def index_extents(self) -> Mapping[str, int]:
        """For each input that holds indices, how many entries it may index."""
        return self.programs[0].index_extents

    def fitting(self, machine: str, features: frozenset[str]) -> SavedModel:
        """The model with only the best program for such a board; the first if none runs."""
        best = best_level((p.target for p in self.programs), machine, features)
        return replace(self, programs=(self.programs[best],))


def load_model(path: str | Path) -> SavedModel:
    """The model in a file that `save` wrote. Every byte is checked.

    The file must not change while the model is in use: an update must rename another file over it.
    Raises ArtifactError, OSError.
    """
    file = Path(path)
    manifest, blobs = read_file(file)
    return saved_model(manifest, blobs, str(file))


def saved_model(manifest: Mapping[str, Any], blobs: list[Blob], where: str) -> SavedModel:
    """The model of a manifest and its blobs. Raises ArtifactError if they contradict each other."""
    rows = _field(manifest, "programs", list, where)
    if not 0 < len(rows) <= MAX_LEVELS:
        raise disorder(f"it lists {len(rows)} programs", where)
    return SavedModel(
        _field(manifest, "name", str, where),
        _field(manifest, "writer", str, where),
        tuple(_program(row, blobs, where) for row in rows),
    )


def _program(row: object, blobs: list[Blob], where: str) -> SavedProgram:
    if not isinstance(row, dict):
        raise disorder("a program is not a map", where)
    code = _blob(_field(row, "object", int, where), blobs, where)
    number = row.get("weights")
    weights = Blob(b"", memoryview(b"")) if number is None else _blob(number, blobs, where)
    indices = _field(row, "indices", dict, where)
    if not all(type(extent) is int and extent > 0 for extent in indices.values()):
        raise disorder("an extent of indices is not a number", where)
    try:
        metadata = parse_metadata(section_of(code.content))
        target = Target(_field(row, "target", str, where))
    except (LookupError, TypeError, ValueError, TargetError) as error:
        reason = str(error).partition("\n")[0]
        raise disorder(f"invalid program: {reason}", where) from None
    features = _field(row, "features", list, where)
    if not all(isinstance(feature, str) for feature in features):
        raise disorder("a feature has no name", where)
    told = Metadata(
        row["target"],
        _field(row, "machine", str, where),
        frozenset(features),
        metadata.kernels,
        metadata.model,
    )
    if told != metadata:
        raise disorder("target, machine and features contradict the object", where)
    if metadata.model is None:
        raise disorder("the object holds no model", where)
    model = metadata.model
    if (model.weights_bytes, model.weights_hash) != (len(weights.content), weights.name):
        raise disorder("the weights do not belong to the object", where)
    level, precision = (_field(row, key, str, where) for key in ("level", "precision"))
    return SavedProgram(
        level, precision, target, bytes(code.content), weights.content, metadata, indices
    )


def _field(row: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    if type(row.get(key)) is not kind:
        raise disorder(f"'{key}' is missing, or not of type {kind.__name__}", where)
    return row[key]


def _blob(number: object, blobs: list[Blob], where: str) -> Blob:
    if type(number) is not int or not 0 <= number < len(blobs):
        raise disorder(f"there is no blob {number!r:.20}", where)
    return blobs[number]
