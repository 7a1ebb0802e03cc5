"""Digests of the machine code of models: the guard of a change that should leave code as it is.

    python scripts/bench/same_objects.py [MODEL ...] [--target aarch64 ...] [--json FILE]
                                         [--against FILE]

Models and targets are those of scripts/bench/models.py; without names, MODELS and TARGETS below.
For each pair it compiles the model and digests every kernel's object, the whole object (with its
call table) and the weights. `--json` writes the digests. `--against` compares them with an earlier
file, names each kernel that differs, and then the exit status is 1. Where code is meant to change,
scripts/bench/models.py says what the change costs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from scripts.bench.models import MACHINES  # noqa: E402
from tests.models.architectures import ARCHITECTURES, NAMES, model_and_inputs  # noqa: E402
from tests.models.quantized import ENDING, quantized_model  # noqa: E402

MODELS = (
    "mobilenet_v2", "mobilenet_v3_small", "resnet18", "vit_tiny", "bert_tiny", "mobilenet_v1_int8",
    "resnet18_int8",
)  # fmt: skip
TARGETS = ("aarch64", "armv7a", "cortex-a76", "cortex-a76-float16", "i8mm", "host")
Digests = dict[str, str]  # by what they are of: "object", "weights", "kernel NAME"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--target", action="append", choices=list(MACHINES))
    parser.add_argument("--json", type=Path, help="write the digests to FILE")
    parser.add_argument("--against", type=Path, help="compare with the digests of FILE")
    options = parser.parse_args(arguments)
    known = (*NAMES, *(f"{name}{ENDING}" for name in ARCHITECTURES))
    models = options.models or MODELS
    unknown = [name for name in models if name not in known]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(known)}")
    before = json.loads(options.against.read_text()) if options.against else {}
    found: dict[str, Digests] = {}
    differing = 0
    for name in models:
        for target in options.target or TARGETS:
            if target == "cortex-a76-float16" and name.endswith(ENDING):
                continue
            key = f"{name} {target}"
            found[key] = digests(name, target)
            changed = differences(found[key], before[key]) if key in before else []
            differing += bool(changed)
            verdict = "not compared" if key not in before else ", ".join(changed) or "the same"
            print(f"{key:<40}{found[key]['object'][:12]}  {verdict}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if differing else 0


def digests(name: str, target: str) -> Digests:
    """Of a model that is compiled for a machine of scripts/bench/models.py."""
    machine = MACHINES[target]
    model, _ = quantized_model(name) if name.endswith(ENDING) else model_and_inputs(name)
    compiled = mlc.compile(from_onnx(model), machine.target, precision=machine.precision)
    objects = compiled.library.compiled or {}
    return {
        "object": _digest(compiled.object_bytes),
        "weights": _digest(compiled.weights_bytes),
        **{f"kernel {kernel}": _digest(made.code) for kernel, made in objects.items()},
    }


def differences(now: Digests, before: Digests) -> list[str]:
    """What differs, kernels first; a kernel that only one of them has differs, too."""
    names = sorted(now.keys() | before.keys(), key=lambda n: (not n.startswith("kernel "), n))
    return [name for name in names if now.get(name) != before.get(name)]


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
