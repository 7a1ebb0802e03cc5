"""Graph functions whose parameters have no shape: `def main(x: R.Tensor, y: R.Tensor)`.

Such a function is read again for each types of its parameters. Until then it is a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import GraphError
from ..ir.names import Names
from ..ops import TensorType
from .nodes import Constant, Function


@dataclass(frozen=True, slots=True, eq=False)
class Shapeless:
    """params: the names of all parameters. unknown: those without a shape, each with its dtype and
    number of dimensions where these are known. read: makes the function for types of these."""

    name: str
    params: tuple[str, ...]
    unknown: Mapping[str, tuple[str | None, int | None]]
    text: str
    read: Callable[[Mapping[str, TensorType]], Function]

    def __str__(self) -> str:
        return self.text

    def script(self) -> str:
        return self.text

    def module_lines(
        self,
        name: str,
        names: Mapping[str, str],
        taken: Names,
        found: dict[str, Constant] | None = None,
    ) -> Iterator[str]:
        """The lines of the function within a module."""
        yield from self.text.splitlines()

    def of(self, types: Mapping[str, TensorType]) -> Function:
        """The function for types of the parameters without a shape. Raises GraphError."""
        for name, (dtype, rank) in self.unknown.items():
            if name not in types:
                raise GraphError(
                    f"'{self.name}' does not say the shape of '{name}'",
                    mend=f'shapes={{"{name}": (1, 16)}}, or R.Tensor((1, 16), "float32") in it',
                )
            given = types[name]
            if dtype not in (None, given.dtype) or rank not in (None, len(given.shape)):
                wanted = f"{dtype or 'any dtype'}, {'any' if rank is None else rank} dimensions"
                raise GraphError(f"'{self.name}' takes '{name}' of {wanted}; it is given {given}")
        return self.read(types)

    def of_inputs(self, types: Sequence[TensorType]) -> Function:
        """The function for the types of all its parameters, in order."""
        if len(types) != len(self.params):
            listed = ", ".join(self.params)
            raise ValueError(f"{len(types)} inputs for {len(self.params)}: {listed}")
        return self.of(dict(zip(self.params, types, strict=True)))
