"""Small models of dynamic and data-dependent sizes as exported C and as LLVM's objects, at several
sizes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from tests.backends.dynamic_models import MODELS, MOST, SIZES
from tests.backends.programs import ARMS, CLANG, GCC, HOST, Machine, run_models, skip_reason

Array = NDArray[Any]
WAYS = {"gcc": ("c", GCC), "clang": ("c", CLANG), "llvm": ("x86_64", HOST)}
WAYS |= {name: (machine.target, machine) for name, machine in ARMS.items()}


def right(model: bytes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def check(name: str, target: str, machine: Machine, folder: Path) -> None:
    case = MODELS[name]()
    if reason := skip_reason(machine):
        pytest.skip(reason)
    model = mlc.compile(from_onnx(case.model, dims={"n": f"<={MOST}"}), target)
    runs = [case.arrays(n) for n in SIZES]
    (found,) = run_models(machine, [(model, runs)], folder)
    for inputs, (answer, outputs) in zip(runs, found, strict=True):
        assert answer.status == 0 and answer.whole
        expected = right(case.model.SerializeToString(), inputs)
        assert outputs.keys() == expected.keys()
        for key, wanted in expected.items():
            assert outputs[key].shape == wanted.shape and outputs[key].dtype == wanted.dtype
            np.testing.assert_allclose(outputs[key], wanted, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_exported_c(name: str, tmp_path: Path) -> None:
    check(name, *WAYS["gcc"], tmp_path)


@pytest.mark.backends
@pytest.mark.parametrize("way", [way for way in WAYS if way != "gcc"])
@pytest.mark.parametrize("name", MODELS)
def test_every_way(name: str, way: str, tmp_path: Path) -> None:
    check(name, *WAYS[way], tmp_path)
