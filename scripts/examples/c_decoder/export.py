"""Exports a decoder for the C program in main.c.

python export.py MODEL TARGET FOLDER [LENGTH]      LENGTH: tokens that the cache has room for
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlc_deploy as mlc


def export(model: str | Path, target: str, folder: Path, length: int | None = None) -> Path:
    """Writes decoder.o, decoder.h, decoder.weights and the executor's source."""
    decoder = mlc.load_decoder(model, target, length=length)
    assert isinstance(decoder.model, mlc.CompiledModel)
    return decoder.model.export(folder, "decoder")


if __name__ == "__main__":
    export(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
