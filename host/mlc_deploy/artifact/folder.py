"""`save_folder`: all that a board needs to run a model without a laptop."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..runtime_files import runtime_file
from .save import Savable, save

RUNTIME = "mlc-runtime"


def save_folder(
    folder: str | Path, model: Savable, name: str = "", levels: Sequence[Savable] = ()
) -> Path:
    """Writes NAME.mlc, the program that runs it, and a README of how; the folder is made. `levels`
    are as `save` has them.

    What is there already is replaced file by file, each by a rename, so that a board which runs
    from there is updated without a moment in between. Raises ArtifactError, InstallError, OSError.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    called = name or model.name
    saved = save(to / f"{called}.mlc", model, levels)
    runtime = to / RUNTIME
    temporary = runtime.with_name(f".{RUNTIME}.new")
    shutil.copyfile(runtime_file(model.target.arch), temporary)
    temporary.chmod(0o755)
    temporary.replace(runtime)
    described = model.metadata.model
    assert described is not None
    inputs = (w for p in described.inputs for w in ("--input", f"{p.name}={p.name}.npy"))
    command = (f"./{RUNTIME}", "run", f"{called}.mlc", *inputs, "--output", "results")
    (to / "README").write_text(shlex.join(command) + "\n", encoding="utf-8")
    return saved
