"""Names of TVM's that do not exist here, each with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

ROOT = "tvm"
_COMPILE = 'mlc_deploy.compile("model.onnx", target), for files of ONNX, TFLite and PyTorch'
_PASSES = "mlc_deploy.PassContext(config={'lower.add_pass': [(phase, function)]})"
_GPU = "parallel and vectorize: kernels run on CPUs"
# A name, or the beginning of names -> what to write instead.
INSTEAD: Mapping[str, str] = {
    "tvm.arith": "mlc_deploy.arith: simplify, linear",
    "tvm.auto_scheduler": "mlc_deploy.tune.tune_tir, which needs no template",
    "tvm.autotvm.graph_tuner": "mlc_deploy.tune.tune_graph, which chooses layouts as well",
    "tvm.autotvm.record": "mlc_deploy.tune.Database",
    "tvm.autotvm.tophub": "mlc_deploy.tune.tune_graph",
    "tvm.contrib.cc": "func.export_library(path): no other compiler is needed",
    "tvm.contrib.debugger": "session.load(model).profile(...)",
    "tvm.contrib.graph_executor": "mlc_deploy.compile and tvm.relax.VirtualMachine",
    "tvm.contrib.ndk": "func.export_library(path): no other compiler is needed",
    "tvm.contrib.nvcc": _GPU,
    "tvm.contrib.pickle_memoize": "numpy, whose result you keep yourself",
    "tvm.contrib.tar": "func.export_library(path)",
    "tvm.cuda": _GPU,
    "tvm.dlight": "mlc_deploy.build without a schedule: it takes the target's own",
    "tvm.driver.tvmc": "the command mlc-deploy",
    "tvm.gpu": _GPU,
    "tvm.ir.assert_structural_equal": "mlc_deploy.ir.structural_equal",
    "tvm.metal": _GPU,
    "tvm.micro": 'mlc_deploy.compile(model, "c") and save, for firmware',
    "tvm.opencl": _GPU,
    "tvm.parser": "mlc_deploy.from_script",
    "tvm.relax.analysis": "mlc_deploy.graph",
    "tvm.relax.dpl": "mlc_deploy.graph passes, which find their patterns themselves",
    "tvm.relax.frontend": _COMPILE,
    "tvm.relax.training": "torch, before the model is compiled: models are not trained here",
    "tvm.relay": _COMPILE,
    "tvm.rocm": _GPU,
    "tvm.rpc.Server": "a board's name or URL: mlc-deploy board enroll; nothing to start there",
    "tvm.s_tir": "tvm.tir",
    "tvm.te.gradient": "torch, before the model is compiled: models are not trained here",
    "tvm.te.scan": "a loop of the graph: R.loop, or emit_loop of a BlockBuilder",
    "tvm.te.hybrid": "tvm.script.tir",
    "tvm.tir.analysis": "mlc_deploy.lower, which verifies what it makes",
    "tvm.tir.ir_builder": "tvm.script.tir, or te.ir_builder in a tensor intrinsic",
    "tvm.tir.stmt_functor": "mlc_deploy.ir.rewrite",
    "tvm.tir.transform": _PASSES,
    "tvm.topi": "tvm.te.compute, or tvm.relax.op in a BlockBuilder",
    "tvm.vulkan": _GPU,
    "tvm.webgpu": _GPU,
}


def instead(name: str) -> str | None:
    """What to write instead of `tvm.relay.build`, or None."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        known = INSTEAD.get(".".join(parts[:count]))
        if known is not None:
            return known
    return None


def message(name: str, known: Iterable[str] = ()) -> str:
    """The message for an absent name. known: the names beside it."""
    last = name.rpartition(".")[2]
    near = get_close_matches(last, list(known), 3)
    mend = instead(name) or ", ".join(near) or "docs/reference/from_tvm.md"
    return f"there is no {name} here\n  try: {mend}"


def error(name: str, known: Iterable[str] = ()) -> AttributeError:
    return AttributeError(message(name, known))
