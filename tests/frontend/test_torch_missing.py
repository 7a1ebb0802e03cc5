"""What users see who have not installed torch."""

from __future__ import annotations

import sys

import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import InstallError


def test_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InstallError) as error:
        mlc.compile("model.pt2", "host")
    assert str(error.value) == (
        "PyTorch programs need torch, which is not installed\n"
        "  in:  model.pt2\n"
        "  try: pip install 'mlc-deploy[torch]'"
    )
