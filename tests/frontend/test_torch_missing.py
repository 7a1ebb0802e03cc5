"""What users see who have not installed torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import InstallError
from tests.frontend import pt2_files as pt2


def test_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = pt2.write(tmp_path / "model.pt2", pt2.relu())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InstallError) as error:
        mlc.compile(file, "host")
    assert str(error.value) == (
        "PyTorch programs need torch, which is not installed\n"
        f"  in:  {file}\n"
        "  try: pip install 'mlc-deploy[torch]'"
    )
