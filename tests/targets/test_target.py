"""Target: what users write is understood, completed, and written back."""

from __future__ import annotations

import contextvars
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_targets import Target, TargetError, board_names
from mlc_targets.cpus import CPUS
from mlc_targets.features import VOCABULARY
from mlc_targets.host import difference
from mlc_targets.parse import FAST_MATH
from mlc_targets.resolve import SHORT_NAMES

TVM_EXAMPLE = "llvm --device=arm_cpu -mtriple=armv7a-linux-gnueabihf -mattr=+neon"


@pytest.mark.parametrize(
    "spec",
    [
        TVM_EXAMPLE,
        "llvm -device arm_cpu -mtriple armv7l-linux-gnueabihf --mattr +neon",
        "llvm -target=armv7a-none-linux-gnueabihf -mattr=+neon -mfloat-abi=hard",
        "llvm -keys=arm_cpu,cpu -mtriple=arm-linux-gnueabihf -mcpu=generic -mattr=' +neon, '",
        {"kind": "llvm", "mtriple": "armv7a-linux-gnueabihf", "mattr": ["+neon"]},
        {"kind": "llvm", "mtriple": "armv7hl-redhat-linux-gnueabihf", "mattr": "+neon"},
        '{"kind": "llvm", "mtriple": "armhf-linux-gnueabihf", "mattr": ["+neon"], "opt_level": 3}',
        "armv7a",
        "ARMV7A -mattr=+neon",
    ],
)
def test_spellings_of_one_target(spec: str | dict[str, object]) -> None:
    target = Target(spec)
    if isinstance(spec, dict) and "redhat" in str(spec):
        assert target.mtriple == "armv7a-redhat-linux-gnueabihf"
        return
    assert target == Target("armv7a")
    assert hash(target) == hash(Target("armv7a"))
    assert str(target) == (
        "llvm -keys=arm_cpu,cpu -device=arm_cpu -mtriple=armv7a-unknown-linux-gnueabihf"
        " -mcpu=generic -mattr=+neon -mfloat-abi=hard"
    )


def test_every_attribute() -> None:
    text = (
        "llvm -keys=mine,arm_cpu -device=cpu -model='my chip' -tag=lab/7 -mcpu=cortex-a55"
        " -mtriple=aarch64-linux-musl -mattr=-dotprod,+i8mm -mfloat-abi=hard -mabi=aapcs"
        " -num-cores=4 -opt-level=2 -fast-math-nnan -fast-math-contract=true"
        " -host='llvm -mtriple=x86_64-linux-gnu -mcpu=znver3'"
    )
    target = Target(text)
    assert target.kind == "llvm"
    assert target.keys == ("mine", "arm_cpu", "cpu")
    assert (target.device, target.model, target.tag) == ("cpu", "my chip", "lab/7")
    assert target.mtriple == "aarch64-unknown-linux-musl"
    assert (target.mcpu, target.mattr) == ("cortex-a55", ("-dotprod", "+i8mm"))
    assert (target.mfloat_abi, target.mabi) == ("hard", "aapcs")
    assert (target.num_cores, target.opt_level) == (4, 2)
    assert target.fast_math == ("nnan", "contract")
    assert target.host == Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    assert Target(str(target)) == target
    assert Target(target.to_dict()) == target
    assert Target(json.dumps(target.to_dict())) == target
    assert Target(target) == target
    assert pickle.loads(pickle.dumps(target)) == target
    assert eval(repr(target), {"Target": Target}) == target


def test_defaults() -> None:
    target = Target("aarch64")
    assert (target.keys, target.device) == (("arm_cpu", "cpu"), "arm_cpu")
    assert (target.opt_level, target.num_cores, target.fast_math) == (3, 0, ())
    assert (target.model, target.tag, target.mabi, target.host) == ("", "", "", None)
    assert Target("x86_64").keys == ("cpu",)
    assert Target("c -mtriple=x86_64-linux-gnu").kind == "c"
    assert Target("aarch64", host="x86_64").host == Target("x86_64")


def test_fast_math_is_all_flags_but_those_switched_off() -> None:
    assert Target("aarch64 -fast-math").fast_math == FAST_MATH
    assert "fast-math=1" in str(Target("aarch64 -fast-math=1"))
    off = Target("aarch64 -fast-math -fast-math-nnan=0")
    assert off.fast_math == tuple(flag for flag in FAST_MATH if flag != "nnan")
    assert Target(str(off)) == off


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("armv7a-linux-gnueabihf", "armv7a-unknown-linux-gnueabihf"),
        ("armv7-a-linux-gnueabi", "armv7a-unknown-linux-gnueabi"),
        ("armv7l-unknown-linux-musleabihf", "armv7a-unknown-linux-musleabihf"),
        ("armv8l-linux-gnueabihf", "armv8a-unknown-linux-gnueabihf"),
        ("arm-none-eabi", "armv7a-unknown-none-eabi"),
        ("armv7a-linux-androideabi21", "armv7a-unknown-linux-androideabi21"),
        ("arm64-linux-android", "aarch64-unknown-linux-android"),
        ("aarch64-linux-android21", "aarch64-unknown-linux-android21"),
        ("aarch64-android", "aarch64-unknown-linux-android"),
        ("aarch64", "aarch64-unknown-linux-gnu"),
        ("aarch64-linux", "aarch64-unknown-linux-gnu"),
        ("aarch64-linux-musl", "aarch64-unknown-linux-musl"),
        ("aarch64-none-elf", "aarch64-unknown-none-elf"),
        ("aarch64-none-linux-gnu", "aarch64-unknown-linux-gnu"),
        ("aarch64-poky-linux", "aarch64-poky-linux-gnu"),
        ("amd64-pc-linux-gnu", "x86_64-pc-linux-gnu"),
        ("x86-64-linux-gnu", "x86_64-unknown-linux-gnu"),
    ],
)
def test_triples_are_normalised(given: str, normal: str) -> None:
    target = Target({"kind": "llvm", "mtriple": given})
    assert target.mtriple == normal
    assert Target({"kind": "llvm", "mtriple": normal}) == target


def test_float_abi_follows_the_triple() -> None:
    assert Target("armv7a").mfloat_abi == "hard"
    assert Target("llvm -mtriple=armv7a-linux-gnueabi").mfloat_abi == "soft"
    assert Target("llvm -mtriple=armv7a-linux-androideabi -mfloat-abi=soft").mfloat_abi == "soft"
    assert Target("x86_64").mfloat_abi == "hard"


def test_bare_arm_is_armv7() -> None:
    target = Target("llvm -mtriple=arm-linux-gnueabihf")
    assert target.mtriple == "armv7a-unknown-linux-gnueabihf"


def test_c_is_the_same_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Target("c")
    monkeypatch.setattr("sys.platform", "darwin")
    assert Target("c") == here


def test_armv7_has_neon_only_when_asked() -> None:
    bare = Target("llvm -mtriple=armv7a-linux-gnueabihf")
    assert not bare.has("neon") and not bare.has("d32") and bare.has("vfp3d16")
    assert bare.llvm_features == "-d32,-neon,-slowfpvmlx,-expand-fp-mlx,+use-misched"
    assert (bare.register_bits, bare.vector_registers, bare.lanes("float32")) == (0, 0, 1)
    neon = Target(TVM_EXAMPLE)
    assert neon.has("neon") and neon.has("d32") and not neon.has("vfp4d16")
    assert neon.llvm_features == "-d32,-neon,+neon,-slowfpvmlx,-expand-fp-mlx,+use-misched"
    # A CPU that has it says so itself, and takes no for an answer.
    a7 = Target("llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7")
    assert a7.has("neon") and a7.llvm_features == "-slowfpvmlx,-expand-fp-mlx,+use-misched"
    assert not Target("llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7 -mattr=-neon").has(
        "neon"
    )


def test_a_hint_gives_way_to_the_user() -> None:
    assert Target("armv7a -mattr=+slowfpvmlx").llvm_features == (
        "-d32,-neon,+neon,+slowfpvmlx,-expand-fp-mlx,+use-misched"
    )


@pytest.mark.parametrize(
    ("spec", "has", "has_not"),
    [
        ("armv7a -mattr=+vfp4", "vfp4 vfp3 d32 fp16 neon", "hwdiv-arm dotprod"),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=+i8mm", "neon i8mm", "dotprod bf16"),
        ("aarch64 -mattr=+v8.2a,+dotprod", "crc lse rdm dotprod", "fullfp16 i8mm"),
        ("aarch64 -mattr=+v8.6a", "dotprod i8mm bf16 complxnum", "fullfp16 sve"),
        ("aarch64 -mcpu=neoverse-v1 -mattr=-sve", "fullfp16 i8mm", "sve sve2"),
        ("x86_64 -mattr=+avx512vnni", "avx512vnni avx512f avx2 fma", "avx512bw avxvnni"),
        ("x86_64 -mcpu=znver4 -mattr=-avx512f", "avx2 fma", "avx512f avx512vnni avx512bf16"),
    ],
)
def test_what_attributes_bring_and_take(spec: str, has: str, has_not: str) -> None:
    features = Target(spec).features
    assert set(has.split()) <= features
    assert not set(has_not.split()) & features


@pytest.mark.parametrize("feature", ["sve", "sve2-aes", "sme2", "ssve-aes", "bf16", "fp16fml"])
def test_a_feature_that_no_kernel_uses_is_refused(feature: str) -> None:
    with pytest.raises(TargetError) as refused:
        Target(f"aarch64 -mattr=+{feature}")
    assert str(refused.value) == (
        f"mattr '+{feature}': no kernel uses it, so that it would change nothing but which boards "
        f"take the object\n  in:  aarch64 -mattr=+{feature}\n"
        f"  try: leave '+{feature}' out; kernels use neon, fullfp16, dotprod and i8mm"
    )
    assert Target(f"aarch64 -mattr=-{feature}").arch == "aarch64"


def test_a_cpu_may_have_what_no_kernel_uses() -> None:
    assert Target("aws/graviton3").has("sve")
    flags = {"sve": True, "bf16": True, "dotprod": True, "fullfp16": True}
    assert difference("aarch64", "generic", flags) == ("+dotprod", "+fullfp16")


def test_what_tvm_takes_wrongly() -> None:
    rasp3b = Target("rasp3b")
    assert (rasp3b.arch, rasp3b.mcpu) == ("arm", "cortex-a53")
    assert rasp3b.has("vfp4") and rasp3b.has("vfp4d16")
    for phone in ("pixel2", "mate10", "p20pro", "llvm -mtriple=arm64-linux-android"):
        assert Target(phone).arch == "aarch64" and Target(phone).pointer_bits == 64
    pynq = Target("pynq")
    assert (pynq.mcpu, pynq.mfloat_abi, pynq.has("vfp4d16")) == ("cortex-a9", "hard", False)
    assert Target("nvidia/jetson-orin-nano").has("dotprod")


@pytest.mark.parametrize(
    ("spec", "bits", "registers", "lanes"),
    [
        ("armv7a", 128, 16, {"float32": 4, "float16": 8, "int8": 16, "int64": 2, "float64": 1}),
        ("aarch64", 128, 32, {"float32": 4, "float16": 8, "uint8": 16, "float64": 2, "bool": 16}),
        ("aarch64 -mcpu=neoverse-v1", 128, 32, {"float32": 4}),
        ("armv7a -mattr=-neon", 0, 0, {"float32": 1, "int8": 1}),
        ("x86_64", 128, 16, {"float32": 4}),
        ("x86_64 -mcpu=sandybridge", 256, 16, {"float32": 8, "int32": 4}),
        ("x86_64 -mcpu=haswell", 256, 16, {"float32": 8, "int8": 32}),
        ("x86_64 -mcpu=knl", 512, 32, {"float32": 16, "int32": 16, "int8": 32}),
        ("x86_64 -mcpu=znver4", 512, 32, {"float32": 16, "int8": 64, "float64": 8}),
    ],
)
def test_registers(spec: str, bits: int, registers: int, lanes: dict[str, int]) -> None:
    target = Target(spec)
    assert (target.register_bits, target.vector_registers) == (bits, registers)
    assert {dtype: target.lanes(dtype) for dtype in lanes} == lanes


def test_required_features_are_what_code_may_hold() -> None:
    assert Target("aarch64").required_features == ("fp-armv8", "neon")
    assert Target("raspberry-pi/5").required_features == (
        *("dotprod", "fp-armv8", "fullfp16", "neon", "rdm"),
    )
    assert Target("armv7a").required_features == ("d32", "neon", "vfp2", "vfp3", "vfp3d16")
    bare = Target("llvm -mtriple=armv7a-linux-gnueabihf")
    assert bare.required_features == ("vfp2", "vfp3d16")
    assert "v8" in Target("rasp3b").required_features


def test_names_of_targets() -> None:
    assert Target("rasp4b64").short_name == "raspberry-pi/4b-aarch64"
    assert Target(TVM_EXAMPLE).short_name == "armv7a"
    assert Target("armv8a").short_name == "aarch64"
    assert Target("aarch64 -mcpu=cortex-a72").short_name == "cortex-a72"


def test_options_change_what_a_name_means() -> None:
    target = Target("raspberry-pi/4b -num-cores=2 -mattr=+dotprod -opt-level=1")
    assert (target.num_cores, target.opt_level, target.mcpu) == (2, 1, "cortex-a72")
    assert target.has("dotprod") and target.tag == "raspberry-pi/4b-aarch64"
    assert Target({"tag": "rasp4b", "num-cores": 1}).num_cores == 1
    assert not Target("armv7a -mattr=-neon").has("neon")


def test_llvm_alone_is_any_machine_like_this_one() -> None:
    target = Target("llvm")
    assert target.mcpu in ("generic", "x86-64")
    assert target.mtriple == Target("host").mtriple


def test_current_target() -> None:
    assert Target.current() is None
    outer, inner = Target("armv7a"), Target("aarch64")
    with outer as entered:
        assert entered is outer
        with inner, outer:
            assert Target.current() is outer
        with inner:
            assert Target.current() is inner
            assert contextvars.Context().run(Target.current) is None
        assert Target.current(allow_none=False) is outer
    assert Target.current() is None
    with pytest.raises(TargetError) as error:
        Target.current(allow_none=False)
    assert str(error.value) == "no target is in scope\n  try: with Target('armv7a'):"


def test_a_target_is_a_value() -> None:
    target = Target("armv7a")
    with pytest.raises(AttributeError):
        target.mcpu = "cortex-a9"  # type: ignore[misc]
    assert len({target, Target(TVM_EXAMPLE), Target("aarch64")}) == 2


words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,7}", fullmatch=True)
free_text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    arch = draw(st.sampled_from(["aarch64", "arm", "x86_64"]))
    triple = {
        "aarch64": ["aarch64-linux-gnu", "arm64-linux-android", "aarch64-none-elf"],
        "arm": ["armv7a-linux-gnueabihf", "armv7a-linux-gnueabi", "arm-linux-musleabihf"],
        "x86_64": ["x86_64-linux-gnu", "x86_64-linux-musl"],
    }[arch]
    names = draw(st.lists(st.sampled_from(sorted(VOCABULARY[arch])), unique=True, max_size=4))
    optional = {
        "mcpu": st.sampled_from(sorted(CPUS[arch])),
        "keys": st.lists(words, max_size=3),
        "model": free_text,
        "tag": free_text,
        "num-cores": st.integers(1, 1024),
        "opt-level": st.integers(0, 3),
        "fast-math": st.booleans(),
        "fast-math-nsz": st.booleans(),
        "host": st.sampled_from(["x86_64", "aarch64 -model='a b'"]),
    }
    return {
        "kind": draw(st.sampled_from(["llvm", "c"])),
        "mtriple": draw(st.sampled_from(triple)),
        "mattr": [draw(st.sampled_from("+-")) + name for name in names],
        **draw(st.fixed_dictionaries({}, optional=optional)),
    }


@given(attributes())
def test_round_trip(spec: dict[str, Any]) -> None:
    try:
        target = Target(spec)
    except TargetError as error:  # a combination that is refused says how to mend it
        assert error.hint and error.where
        return
    assert Target(str(target)) == target
    assert Target(target.to_dict()) == target
    assert Target(json.dumps(target.to_dict())) == target
    assert target.features <= VOCABULARY[target.arch]
    assert set(target.required_features) <= target.features


@given(st.text(max_size=60) | st.lists(words, max_size=5).map(" -".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        target = Target(text)
    except TargetError as error:
        assert error.what
    else:
        assert Target(str(target)) == target


@pytest.mark.parametrize("name", [*SHORT_NAMES, *board_names()])
def test_every_name_round_trips(name: str) -> None:
    target = Target(name)
    assert Target(str(target)) == target == Target(target.to_dict())


@pytest.mark.parametrize("mcpu", ["generic", "cortex-a5", "cortex-a7", "cortex-a8"])
@pytest.mark.parametrize("mattr", ["+neon", "+neon,+vfp4", "+neon,+fp16"])
def test_scheduled_for_another_cpu_a_function_keeps_its_features(mcpu: str, mattr: str) -> None:
    triple = "llvm -mtriple=armv7a-linux-gnueabihf"
    target = Target(f"{triple} -mcpu={mcpu} -mattr={mattr}")
    attributes = target.tuned_for("cortex-a9")
    features = attributes["target-features"].removesuffix(target.llvm_features)
    given = ",".join(filter(None, (features.strip(","), mattr)))
    assert attributes["target-features"].endswith(target.llvm_features)
    assert Target(f"{triple} -mcpu=cortex-a9 -mattr={given}").features == target.features


def test_only_the_schedule_is_another_cpu_where_llvm_has_a_word_for_it() -> None:
    assert Target("aarch64").tuned_for("kryo") == {"tune-cpu": "kryo"}
    assert Target("aarch64").tuned_for(None) == {}
