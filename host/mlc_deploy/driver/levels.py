"""`compile_levels`: one model for several generations of a CPU family, in one artifact.

model = mlc.compile_levels("model.onnx", "aarch64:base,dotprod,i8mm")
model.save("model.mlc")                  # the board takes the last program that it can run
mlc.deploy(model, board)                 # sends only that program
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_targets import Target, best_level, levels_of

from ..artifact import save
from .compile import CompiledModel, compile

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..graph import Function
    from ..ir import IRModule


@dataclass(frozen=True)
class CompiledLevels:
    """The programs of a model; each asks for more CPU features than the ones before it."""

    programs: tuple[CompiledModel, ...]

    @property
    def name(self) -> str:
        return self.programs[0].name

    @property
    def target(self) -> Target:
        return self.programs[0].target

    def fitting(self, machine: str, features: frozenset[str]) -> CompiledModel:
        """The best program for such a board; the first if none runs."""
        return self.programs[best_level((p.target for p in self.programs), machine, features)]

    def save(self, path: str | Path) -> Path:
        """Writes all programs to one file, equal weights once. Raises ArtifactError, OSError."""
        first, *more = self.programs
        return save(path, first, more)


def compile_levels(
    model: str | Path | ExportedProgram | Function | IRModule,
    target: str | Sequence[tuple[str, Target]],
    **options: Any,
) -> CompiledLevels:
    """Compiles a model for each level of a target's text (mlc_targets.levels has its form), with
    the options of `compile`. Raises what `compile` raises, and TargetError."""
    levels = levels_of(target) if isinstance(target, str) else target
    made = (replace(compile(model, to, **options), level=level) for level, to in levels)
    return CompiledLevels(tuple(made))
