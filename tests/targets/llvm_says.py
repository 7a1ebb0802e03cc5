"""Asks LLVM which features it takes a machine to have; run as a program, it answers for its caller.

LLVM has no query for that, but its inliner has: a function may be inlined into another when the
other's features cover its own. So a caller with the machine's features calls one function for each
feature asked about, with the machine's features and that one more; those that vanish were there.
LLVM ends the process where features contradict each other, hence the child.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

Question = tuple[str, str, str, list[str]]  # triple, cpu, features, names asked about


def features(questions: Sequence[Question]) -> list[set[str]]:
    """For each question, those of the names that LLVM takes the machine to have."""
    if not questions:
        return []
    out = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert out.returncode == 0, out.stderr[-2000:]
    assert not out.stderr, out.stderr[-2000:]  # LLVM warns there of names it does not know
    return [set(names) for names in json.loads(out.stdout)]


def names(triple: str) -> tuple[set[str], set[str]]:
    """The CPUs and the features of LLVM's own list."""
    program = (
        "import llvmlite.binding as b; b.initialize_all_targets();"
        f"b.Target.from_triple({triple!r}).create_target_machine(cpu='help')"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    cpus, _, rest = out.stderr.partition("Available features")
    listed = re.compile(r"^  (\S+) +- ", re.MULTILINE)
    return set(listed.findall(cpus)), set(listed.findall(rest))


def _main() -> None:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    answers = []
    for triple, cpu, own, asked in json.load(sys.stdin):
        lines = [f'target triple = "{triple}"', "declare void @x()", "define void @caller() #0 {"]
        lines += [f"  call void @f{i}()" for i in range(len(asked))]
        lines += ["  ret void", "}"]
        lines += [
            f"define internal void @f{i}() #{i + 1} {{\n  call void @x()\n  ret void\n}}"
            for i in range(len(asked))
        ]
        for i, more in enumerate([[], *([f"+{name}"] for name in asked)]):
            text = ",".join(([own] if own else []) + more)
            lines.append(f'attributes #{i} = {{ "target-cpu"="{cpu}" "target-features"="{text}" }}')
        module = binding.parse_assembly("\n".join(lines))
        machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, features=own)
        options = binding.create_pipeline_tuning_options(speed_level=1)
        passes = binding.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        left = {int(i) for i in re.findall(r"call (?:fastcc )?void @f(\d+)\(\)", str(module))}
        answers.append([name for i, name in enumerate(asked) if i not in left])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _main()
