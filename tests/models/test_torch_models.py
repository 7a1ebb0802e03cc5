"""The architectures as PyTorch's modules: by torch.export and by torch's own ONNX exporter."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --only torch")

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.driver.compare import compare  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.graph import evaluate  # noqa: E402
from tests.models.architectures import ARCHITECTURES, inputs, onnx_model  # noqa: E402
from tests.models.torch_layers import to_torch  # noqa: E402
from tests.onnx_models import Array, reference  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch's own
]


def run_by_torch(name: str) -> tuple[Any, tuple[Any, ...], Array]:
    """The module, its inputs, and what torch computes."""
    module = to_torch(ARCHITECTURES[name].network())
    tensors = tuple(torch.from_numpy(a) for a in inputs(name).values())
    with torch.no_grad():
        return module, tensors, module(*tensors).numpy()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_program(name: str) -> None:
    module, tensors, expected = run_by_torch(name)
    compiled = mlc.compile(torch.export.export(module, tensors), "host")
    names = [p.name for p in compiled.reference.params]
    given = dict(zip(names, inputs(name).values(), strict=True))
    with mlc.connect("local://") as board:
        (found,) = board.load(compiled).run(given).values()
    check = compare(found, expected)
    assert check.ok and check.max_rel_err < 1e-4, check


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_onnx_from_torch(name: str) -> None:
    module, tensors, expected = run_by_torch(name)
    file = io.BytesIO()
    torch.onnx.export(
        module, tensors, file, dynamo=False, input_names=list(inputs(name)), opset_version=17
    )
    (found,) = evaluate(from_onnx(file.getvalue()), inputs(name)).values()
    check = compare(found, expected)
    assert check.ok and check.max_rel_err < 1e-4, check


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_onnx_of_ours_is_the_same_network(name: str) -> None:
    _, _, expected = run_by_torch(name)
    check = compare(reference(onnx_model(name), inputs(name))["scores"], expected)
    assert check.ok and check.max_rel_err < 1e-4, check
