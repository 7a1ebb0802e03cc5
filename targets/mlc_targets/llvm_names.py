"""The names that `-mattr` takes, per architecture: LLVM's list, as far as it makes sense here.

Left out are names for other profiles (M, R), other modes (Thumb code, 16 and 32 bit x86, soft
float), and "all"; tests/targets/test_llvm.py compares the rest with what LLVM prints.
"""

from __future__ import annotations

from .features import IMPLIES

# Names that imply nothing of the vocabulary; features.py has the others.
_AARCH64 = """
v8a CONTEXTIDREL2 a320 a35 a510 a520 a520ae a53 a55 a57 a64fx a65 a710 a715 a72 a720 a720ae a73
a75 a76 a77 a78 a78ae a78c addr-lsl-slow-14 aggressive-fma aggressive-interleaving
alternate-sextload-cvt-f32-pattern alu-lsl-fast am ampere1 ampere1a ampere1b ampere1c amvs
apple-a10 apple-a11 apple-a12 apple-a13 apple-a14 apple-a15 apple-a16 apple-a17 apple-a7
apple-m4 apple-m5 arith-bcc-fusion arith-cbz-fusion ascend-store-address avoid-ldapur
balance-fp-ops brbe bti btie c1-nano c1-premium c1-pro c1-ultra call-saved-x10 call-saved-x11
call-saved-x12 call-saved-x13 call-saved-x14 call-saved-x15 call-saved-x18 call-saved-x8
call-saved-x9 carmel ccdp ccidx ccpp chk clrbhb cmh cmp-bcc-fusion cmpbr cortex-a725 cortex-r82
cortex-r82ae cortex-x1 cortex-x2 cortex-x3 cortex-x4 cortex-x925 cpa crc cssc
disable-fast-inc-vl disable-latency-sched-heuristic disable-ldp
disable-maximize-scalable-bandwidth disable-stp disable-unpredicated-ld-st-lower dit ecv el2vmsa
el3 enable-select-opt ete exynos-cheap-as-move exynosm3 exynosm4 falkor fgt
fix-cortex-a53-835769 flagm fmv force-32bit-jump-tables fp-armv8 fpac fujitsu-monaka
fuse-address fuse-addsub-2reg-const1 fuse-adrp-add fuse-aes fuse-arith-logic fuse-crypto-eor
fuse-csel fuse-cset fuse-literals gcie gcs harden-sls-blr harden-sls-nocomdat harden-sls-retbr
hbc hcx ite kryo ldp-aligned-only lor ls64 lscp lse lse2 lsui max-interleave-factor-4 mec mops
mpam mpamv2 mte mtetc neoverse512tvb neoversee1 neoversen1 neoversen2 neoversen3 neoversev1
neoversev2 neoversev3 neoversev3AE nmi no-bti-at-return-twice no-neg-immediates no-sve-fp-ld1r
no-zcz-fpr64 nv occmo olympus  outline-atomics pan pan-rwv pauth pauth-lr pcdphint
perfmon poe2 pops predictable-select-expensive predres prfm-slc-target rand ras rasv2 rcpc
reserve-lr-for-ra reserve-x1 reserve-x10 reserve-x11 reserve-x12 reserve-x13 reserve-x14
reserve-x15 reserve-x18 reserve-x2 reserve-x20 reserve-x21 reserve-x22 reserve-x23 reserve-x24
reserve-x25 reserve-x26 reserve-x27 reserve-x28 reserve-x3 reserve-x4 reserve-x5 reserve-x6
reserve-x7 reserve-x9 rme saphira sb sel2 slow-misaligned-128store slow-paired-128
slow-strqro-store spe spe-eef specres2 specrestrict ssbs store-pair-suppress stp-aligned-only
strict-align sve-aes2 sve-b16b16 sve-bfscale sve-bitperm tagged-globals tev the thunderx
thunderx2t99 thunderx3t110 thunderxt81 thunderxt83 thunderxt88 tlb-rmi tlbid tlbiw tpidr-el1
tpidr-el2 tpidr-el3 tpidrro-el0 tracev8.4 trbe tsv110 uaops use-experimental-zeroing-pseudos
use-fixed-over-scalable-if-equal-cost use-postra-scheduler use-reciprocal-square-root
use-wzr-to-vec-move vh wfxt xs zcm-fpr128 zcm-fpr32 zcm-fpr64 zcm-gpr32 zcm-gpr64
zcz-fp-workaround zcz-fpr128 zcz-gpr32 zcz-gpr64
"""

_ARM = """
dsp a12 a15 a17 a32 a35 a5 a53 a55 a57 a7 a72 a73 a75 a76 a77 a78c a8 a9 aapcs-frame-chain
acquire-release atomics-32 avoid-movs-shop avoid-muls avoid-partial-cpsr branch-align-64
cheap-predicable-cpsr clrbhb cortex-a510 cortex-a710 cortex-a78 cortex-a78ae cortex-x1
cortex-x1c crc d32 db dfb disable-postra-scheduler dont-widen-vmovs expand-fp-mlx
fix-cmse-cve-2021-35465 fix-cortex-a57-aes-1742098 fp16 fp64 fpao fuse-aes fuse-literals
harden-sls-blr harden-sls-nocomdat harden-sls-retbr hwdiv hwdiv-arm krait kryo long-calls
loop-align mp muxed-units neon-fpmovs neonfp neoverse-v1 no-branch-predictor
no-bti-at-return-twice no-movt no-neg-immediates nonpipelined-vfp perfmon prefer-ishst
prefer-vmovsr prof-unpr ras read-tp-tpidrprw read-tp-tpidruro read-tp-tpidrurw reserve-r9
ret-addr-stack sb slow-fp-brcc slow-load-D-subreg slow-odd-reg slow-vdup32 slow-vgetlni32
slowfpvfmx slowfpvmlx splat-vfp-neon strict-align swift thumb2 trustzone use-mipipeliner
use-misched v6 vldn-align vmlx-forwarding vmlx-hazards wide-stride-vfp zcz
"""

_X86_64 = """
adx allow-light-256-bit amx-tile bmi bmi2 branch-hint branchfusion ccmp cf cldemote clflushopt
clwb clzero cmov cmpccxadd crc32 cx16 cx8 egpr enqcmd ermsb evex512 false-deps-getmant
false-deps-lzcnt-tzcnt false-deps-mulc false-deps-mullq false-deps-perm false-deps-popcnt
false-deps-range fast-11bytenop fast-15bytenop fast-7bytenop fast-bextr fast-dpwssd fast-gather
fast-hops fast-imm16 fast-lzcnt fast-movbe fast-scalar-fsqrt fast-scalar-shift-masks
fast-shld-rotate fast-variable-crosslane-shuffle fast-variable-perlane-shuffle fast-vector-fsqrt
fast-vector-shift-masks faster-shift-than-shuffle fsgsbase fsrm fxsr harden-sls-ijmp
harden-sls-ret hreset idivl-to-divb idivq-to-divl inline-asm-use-gpr32 invpcid lea-sp
lea-uses-ag lvi-cfi lvi-load-hardening lwp lzcnt macrofusion mmx movbe movdir64b movdiri movrs
mwaitx ndd nf no-bypass-delay no-bypass-delay-blend no-bypass-delay-mov no-bypass-delay-shuffle
nopl pad-short-functions pconfig pku popcnt ppx prefer-128-bit prefer-256-bit
prefer-legacy-setcc prefer-mask-registers prefer-movmsk-over-vtest prefer-no-gather
prefer-no-scatter prefetchi prfchw ptwrite push2pop2 raoint rdpid rdpru rdrnd rdseed retpoline
retpoline-external-thunk retpoline-indirect-branches retpoline-indirect-calls rtm sahf
sbb-dep-breaking serialize seses sgx shstk slow-3ops-lea slow-incdec slow-lea slow-pmaddwd
slow-pmulld slow-pmullq slow-shld slow-two-mem-ops slow-unaligned-mem-16 slow-unaligned-mem-32
sse sse-unaligned-mem sse2 tagged-globals tbm tsxldtrk tuning-fast-imm-vector-shift uintr
use-glm-div-sqrt-costs use-slm-arith-costs usermsr vzeroupper waitpkg wbnoinvd x87 xsave xsavec
xsaveopt xsaves zu
"""

MATTR_NAMES: dict[str, frozenset[str]] = {
    arch: frozenset(text.split()) | frozenset(IMPLIES[arch])
    for arch, text in (("aarch64", _AARCH64), ("arm", _ARM), ("x86_64", _X86_64))
}
