"""tvm.transform: contexts and sequences of passes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import PassError
from ..passes.context import PassContext as _Context
from . import absent

__all__ = ["PassContext", "Sequential"]
Pass = Callable[[Any], Any]
# TVM's options that leave a pass of this name out.
DISABLING = {
    "tir.disable_cse_tir": None,  # LLVM does it
    "tir.disable_storage_rewrite": None,
    "tir.disable_vectorize": "vectorize_loops",
}
# TVM's options of what compile here always does, or never.
WITHOUT_EFFECT = frozenset(
    "relax.backend.use_cuda_graph relax.fallback_cuda_graph relay.backend.use_auto_scheduler"
    " relay.backend.use_meta_schedule relay.FuseOps.max_depth tir.enable_equiv_terms_in_cse_tir"
    " tir.noalias tir.Simplify tir.merge_static_smem".split()
)


def PassContext(
    opt_level: int = 2,
    required_pass: Sequence[str] = (),
    disabled_pass: Sequence[str] = (),
    instruments: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
) -> _Context:
    """A context by TVM's names of options. Options of passes that are not here are refused."""
    known: dict[str, Any] = {}
    out = list(disabled_pass)
    for option, value in (config or {}).items():
        if option in DISABLING:
            name = DISABLING[option]
            out += [name] if value and name else []
        elif option not in WITHOUT_EFFECT:
            if option.startswith(("tir.", "relay.", "relax.")):
                what = f"there is no option '{option}' here"
                raise PassError(what, mend="leave it out; mlc_deploy.PassContext lists its own")
            known[option] = value
    return _Context(opt_level, tuple(out), tuple(required_pass), known, tuple(instruments))


class Sequential:
    """Passes one after the other, as a pass."""

    def __init__(self, passes: Sequence[Pass] = (), opt_level: int = 0, name: str = "") -> None:
        self.passes = tuple(passes)

    def __call__(self, mod: Any) -> Any:
        for one in self.passes:
            mod = one(mod)
        return mod


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.transform.{name}", __all__)
