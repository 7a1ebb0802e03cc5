"""`save_folder`: everything that a board needs to run a model without a laptop."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..board.runtime_files import runtime_file
from ..files.unfinished import replacing, write_whole
from .save import Savable, save

RUNTIME = "mlc-runtime"


def save_folder(
    folder: str | Path, model: Savable, name: str = "", levels: Sequence[Savable] = ()
) -> Path:
    """Writes NAME.mlc, the program that runs it, and a README with the command. Makes the folder if
    need be. `levels` are those of `save`.

    A rename replaces each file that exists, so a board that runs from the folder never sees half a
    file. Raises ArtifactError, InstallError, OSError.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    called = name or model.name
    saved = save(to / f"{called}.mlc", model, levels)
    runtime = to / RUNTIME
    with replacing(runtime, mode=0o755) as part:
        shutil.copyfile(runtime_file(model.target.arch), part)
    described = model.metadata.model
    assert described is not None
    inputs = (w for p in described.inputs for w in ("--input", f"{p.name}={p.name}.npy"))
    command = (f"./{RUNTIME}", "run", f"{called}.mlc", *inputs, "--output", "results")
    write_whole(to / "README", shlex.join(command) + "\n")
    return saved
