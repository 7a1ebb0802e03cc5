/* CPU features by LLVM's names: one table per machine of bits in the words that describe the CPU. */
#include "cpu.h"
#include "names.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <elf.h>
#include <sys/auxv.h>
#endif

/* Features are rows of name, word, state and mask. A CPU has one when all bits of `mask` are set in the
 * word, and the operating system keeps the registers that the feature works on. */
typedef struct {
    uint64_t word[12];
    uint64_t state; /* a set of the registers kept, as the rows' `state`; 0 asks for none */
} Cpu;

#define BIT(n) (UINT32_C(1) << (n))

#if defined(__aarch64__)

enum { HWCAP, HWCAP2, HWCAP2_HIGH };

#define FEATURES(X)                                                                                \
    X("v8a", HWCAP, 0, 0)                                                                          \
    X("fp-armv8", HWCAP, 0, BIT(0))                                                                \
    X("neon", HWCAP, 0, BIT(1))                                                                    \
    X("aes", HWCAP, 0, BIT(3) | BIT(4))                                                            \
    X("sha2", HWCAP, 0, BIT(5) | BIT(6))                                                           \
    X("crc", HWCAP, 0, BIT(7))                                                                     \
    X("lse", HWCAP, 0, BIT(8))                                                                     \
    X("fullfp16", HWCAP, 0, BIT(9) | BIT(10))                                                      \
    X("rdm", HWCAP, 0, BIT(12))                                                                    \
    X("jsconv", HWCAP, 0, BIT(13))                                                                 \
    X("complxnum", HWCAP, 0, BIT(14))                                                              \
    X("rcpc", HWCAP, 0, BIT(15))                                                                   \
    X("ccpp", HWCAP, 0, BIT(16))                                                                   \
    X("sha3", HWCAP, 0, BIT(17) | BIT(21))                                                         \
    X("sm4", HWCAP, 0, BIT(18) | BIT(19))                                                          \
    X("dotprod", HWCAP, 0, BIT(20))                                                                \
    X("sve", HWCAP, 0, BIT(22))                                                                    \
    X("fp16fml", HWCAP, 0, BIT(23))                                                                \
    X("dit", HWCAP, 0, BIT(24))                                                                    \
    X("lse2", HWCAP, 0, BIT(25))                                                                   \
    X("rcpc-immo", HWCAP, 0, BIT(26))                                                              \
    X("flagm", HWCAP, 0, BIT(27))                                                                  \
    X("ssbs", HWCAP, 0, BIT(28))                                                                   \
    X("sb", HWCAP, 0, BIT(29))                                                                     \
    X("pauth", HWCAP, 0, BIT(30) | BIT(31))                                                        \
    X("ccdp", HWCAP2, 0, BIT(0))                                                                   \
    X("sve2", HWCAP2, 0, BIT(1))                                                                   \
    X("sve-aes", HWCAP2, 0, BIT(2) | BIT(3))                                                       \
    X("sve-bitperm", HWCAP2, 0, BIT(4))                                                            \
    X("sve-sha3", HWCAP2, 0, BIT(5))                                                               \
    X("sve-sm4", HWCAP2, 0, BIT(6))                                                                \
    X("altnzcv", HWCAP2, 0, BIT(7))                                                                \
    X("fptoint", HWCAP2, 0, BIT(8))                                                                \
    X("f32mm", HWCAP2, 0, BIT(10))                                                                 \
    X("f64mm", HWCAP2, 0, BIT(11))                                                                 \
    X("i8mm", HWCAP2, 0, BIT(13))                                                                  \
    X("bf16", HWCAP2, 0, BIT(14))                                                                  \
    X("rand", HWCAP2, 0, BIT(16))                                                                  \
    X("bti", HWCAP2, 0, BIT(17))                                                                   \
    X("mte", HWCAP2, 0, BIT(18))                                                                   \
    X("sme", HWCAP2, 0, BIT(23))                                                                   \
    X("sme-i16i64", HWCAP2, 0, BIT(24))                                                            \
    X("sme-f64f64", HWCAP2, 0, BIT(25))                                                            \
    X("sme-fa64", HWCAP2, 0, BIT(30))                                                              \
    X("wfxt", HWCAP2, 0, BIT(31))                                                                  \
    X("cssc", HWCAP2_HIGH, 0, BIT(2))                                                              \
    X("sve2p1", HWCAP2_HIGH, 0, BIT(4))                                                            \
    X("sme2", HWCAP2_HIGH, 0, BIT(5))                                                              \
    X("mops", HWCAP2_HIGH, 0, BIT(11))

static Cpu read_cpu(void) {
    uint64_t more = getauxval(AT_HWCAP2);
    return (Cpu){.word = {
        [HWCAP] = getauxval(AT_HWCAP), [HWCAP2] = more, [HWCAP2_HIGH] = more >> 32}};
}

const char *mlc_machine(void) { return "aarch64"; }

#elif defined(__arm__)

enum { HWCAP, HWCAP2, LEVEL };

/* Storage of half floats ("fp16") came with VFPv4; Cortex-A9 has it too, but its kernels do not
 * tell. "vfp3" and "vfp4" mean 32 registers to LLVM. */
#define FEATURES(X)                                                                                \
    X("v7", HWCAP, 0, 0)                                                                           \
    X("v8", LEVEL, 0, BIT(8))                                                                      \
    X("thumb2", HWCAP, 0, BIT(2))                                                                  \
    X("dsp", HWCAP, 0, BIT(7))                                                                     \
    X("fpregs", HWCAP, 0, BIT(6))                                                                  \
    X("fp64", HWCAP, 0, BIT(6))                                                                    \
    X("vfp2", HWCAP, 0, BIT(6))                                                                    \
    X("vfp2sp", HWCAP, 0, BIT(6))                                                                  \
    X("vfp3d16", HWCAP, 0, BIT(13))                                                                \
    X("vfp3d16sp", HWCAP, 0, BIT(13))                                                              \
    X("vfp3", HWCAP, 0, BIT(13) | BIT(19))                                                         \
    X("vfp3sp", HWCAP, 0, BIT(13) | BIT(19))                                                       \
    X("vfp4d16", HWCAP, 0, BIT(16))                                                                \
    X("vfp4d16sp", HWCAP, 0, BIT(16))                                                              \
    X("vfp4", HWCAP, 0, BIT(16) | BIT(19))                                                         \
    X("vfp4sp", HWCAP, 0, BIT(16) | BIT(19))                                                       \
    X("d32", HWCAP, 0, BIT(19))                                                                    \
    X("fp16", HWCAP, 0, BIT(16))                                                                   \
    X("neon", HWCAP, 0, BIT(12))                                                                   \
    X("fp-armv8", LEVEL, 0, BIT(9))                                                                \
    X("fp-armv8sp", LEVEL, 0, BIT(9))                                                              \
    X("fp-armv8d16", LEVEL, 0, BIT(9))                                                             \
    X("fp-armv8d16sp", LEVEL, 0, BIT(9))                                                           \
    X("hwdiv-arm", HWCAP, 0, BIT(17))                                                              \
    X("hwdiv", HWCAP, 0, BIT(18))                                                                  \
    X("fullfp16", HWCAP, 0, BIT(22) | BIT(23))                                                     \
    X("dotprod", HWCAP, 0, BIT(24))                                                                \
    X("fp16fml", HWCAP, 0, BIT(25))                                                                \
    X("bf16", HWCAP, 0, BIT(26))                                                                   \
    X("i8mm", HWCAP, 0, BIT(27))                                                                   \
    X("aes", HWCAP2, 0, BIT(0) | BIT(1))                                                           \
    X("sha2", HWCAP2, 0, BIT(2) | BIT(3))                                                          \
    X("crc", HWCAP2, 0, BIT(4))                                                                    \
    X("sb", HWCAP2, 0, BIT(5))

/* LEVEL: bit 8 for ARMv8 in AArch32 state, bit 9 when it has its floating point. A 32-bit kernel
 * calls itself v7 on such a CPU too; there the CRC instructions, new in v8, tell. */
static Cpu read_cpu(void) {
    uint64_t hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
    const char *platform = (const char *)getauxval(AT_PLATFORM);
    bool v8 = (platform && strncmp(platform, "v8", 2) == 0) || (hwcap2 & BIT(4));
    uint64_t level = v8 ? BIT(8) | (hwcap & BIT(16) && hwcap & BIT(19) ? BIT(9) : 0) : 0;
    return (Cpu){.word = {[HWCAP] = hwcap, [HWCAP2] = hwcap2, [LEVEL] = level}};
}

const char *mlc_machine(void) { return "arm"; }

#elif defined(__x86_64__)

/* The words are answers of CPUID: leaf and register. */
enum { L1_ECX, L1_EDX, L7_EBX, L7_ECX, L7_EDX, L7_1_EAX, L7_1_EDX, E1_ECX, E1_EDX };
enum { YMM = 0x06, ZMM = 0xe6 }; /* as in XCR0 */

#define FEATURES(X)                                                                                \
    X("cx8", L1_EDX, 0, BIT(8))                                                                    \
    X("cmov", L1_EDX, 0, BIT(15))                                                                  \
    X("mmx", L1_EDX, 0, BIT(23))                                                                   \
    X("fxsr", L1_EDX, 0, BIT(24))                                                                  \
    X("sse", L1_EDX, 0, BIT(25))                                                                   \
    X("sse2", L1_EDX, 0, BIT(26))                                                                  \
    X("sse3", L1_ECX, 0, BIT(0))                                                                   \
    X("pclmul", L1_ECX, 0, BIT(1))                                                                 \
    X("ssse3", L1_ECX, 0, BIT(9))                                                                  \
    X("fma", L1_ECX, YMM, BIT(12))                                                                 \
    X("cx16", L1_ECX, 0, BIT(13))                                                                  \
    X("sse4.1", L1_ECX, 0, BIT(19))                                                                \
    X("sse4.2", L1_ECX, 0, BIT(20))                                                                \
    X("movbe", L1_ECX, 0, BIT(22))                                                                 \
    X("popcnt", L1_ECX, 0, BIT(23))                                                                \
    X("aes", L1_ECX, 0, BIT(25))                                                                   \
    X("xsave", L1_ECX, 0, BIT(26) | BIT(27))                                                       \
    X("avx", L1_ECX, YMM, BIT(28))                                                                 \
    X("f16c", L1_ECX, YMM, BIT(29))                                                                \
    X("rdrnd", L1_ECX, 0, BIT(30))                                                                 \
    X("fsgsbase", L7_EBX, 0, BIT(0))                                                               \
    X("bmi", L7_EBX, 0, BIT(3))                                                                    \
    X("avx2", L7_EBX, YMM, BIT(5))                                                                 \
    X("bmi2", L7_EBX, 0, BIT(8))                                                                   \
    X("avx512f", L7_EBX, ZMM, BIT(16))                                                             \
    X("avx512dq", L7_EBX, ZMM, BIT(17))                                                            \
    X("rdseed", L7_EBX, 0, BIT(18))                                                                \
    X("adx", L7_EBX, 0, BIT(19))                                                                   \
    X("avx512ifma", L7_EBX, ZMM, BIT(21))                                                          \
    X("clflushopt", L7_EBX, 0, BIT(23))                                                            \
    X("clwb", L7_EBX, 0, BIT(24))                                                                  \
    X("avx512cd", L7_EBX, ZMM, BIT(28))                                                            \
    X("sha", L7_EBX, 0, BIT(29))                                                                   \
    X("avx512bw", L7_EBX, ZMM, BIT(30))                                                            \
    X("avx512vl", L7_EBX, ZMM, BIT(31))                                                            \
    X("avx512vbmi", L7_ECX, ZMM, BIT(1))                                                           \
    X("avx512vbmi2", L7_ECX, ZMM, BIT(6))                                                          \
    X("gfni", L7_ECX, 0, BIT(8))                                                                   \
    X("vaes", L7_ECX, YMM, BIT(9))                                                                 \
    X("vpclmulqdq", L7_ECX, YMM, BIT(10))                                                          \
    X("avx512vnni", L7_ECX, ZMM, BIT(11))                                                          \
    X("avx512bitalg", L7_ECX, ZMM, BIT(12))                                                        \
    X("avx512vpopcntdq", L7_ECX, ZMM, BIT(14))                                                     \
    X("rdpid", L7_ECX, 0, BIT(22))                                                                 \
    X("movdiri", L7_ECX, 0, BIT(27))                                                               \
    X("movdir64b", L7_ECX, 0, BIT(28))                                                             \
    X("avx512vp2intersect", L7_EDX, ZMM, BIT(8))                                                   \
    X("avx512fp16", L7_EDX, ZMM, BIT(23))                                                          \
    X("avxvnni", L7_1_EAX, YMM, BIT(4))                                                            \
    X("avx512bf16", L7_1_EAX, ZMM, BIT(5))                                                         \
    X("avxifma", L7_1_EAX, YMM, BIT(23))                                                           \
    X("avxvnniint8", L7_1_EDX, YMM, BIT(4))                                                        \
    X("avxneconvert", L7_1_EDX, YMM, BIT(5))                                                       \
    X("avxvnniint16", L7_1_EDX, YMM, BIT(10))                                                      \
    X("sahf", E1_ECX, 0, BIT(0))                                                                   \
    X("lzcnt", E1_ECX, 0, BIT(5))                                                                  \
    X("sse4a", E1_ECX, 0, BIT(6))                                                                  \
    X("prfchw", E1_ECX, 0, BIT(8))                                                                 \
    X("xop", E1_ECX, YMM, BIT(11))                                                                 \
    X("fma4", E1_ECX, YMM, BIT(16))                                                                \
    X("tbm", E1_ECX, 0, BIT(21))                                                                   \
    X("64bit", E1_EDX, 0, BIT(29))

static Cpu read_cpu(void) {
    Cpu cpu = {0};
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        cpu.word[L1_ECX] = c;
        cpu.word[L1_EDX] = d;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        unsigned last = a;
        cpu.word[L7_EBX] = b;
        cpu.word[L7_ECX] = c;
        cpu.word[L7_EDX] = d;
        if (last >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
            cpu.word[L7_1_EAX] = a;
            cpu.word[L7_1_EDX] = d;
        }
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) {
        cpu.word[E1_ECX] = c;
        cpu.word[E1_EDX] = d;
    }
    if (cpu.word[L1_ECX] & BIT(27)) { /* OSXSAVE: XGETBV exists */
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        cpu.state = (uint64_t)d << 32 | a;
    }
    return cpu;
}

const char *mlc_machine(void) { return "x86_64"; }

#endif

#define NAME(name, word, state, mask) NUL_AFTER(name)
#define WORD(name, word, state, mask) word,
#define STATE(name, word, state, mask) state,
#define MASK(name, word, state, mask) mask,

static const char features[] = FEATURES(NAME);
static const uint8_t words[] = {FEATURES(WORD)}, states[] = {FEATURES(STATE)};
static const uint32_t masks[] = {FEATURES(MASK)};

static bool has(const Cpu *cpu, size_t feature) {
    return (cpu->word[words[feature]] & masks[feature]) == masks[feature] &&
           (cpu->state & states[feature]) == states[feature];
}

/* Read once: under a hypervisor each CPUID costs a trap. */
static const Cpu *this_cpu(void) {
    static Cpu cpu;
    static bool known;
    if (!known) cpu = read_cpu();
    known = true;
    return &cpu;
}

const char *mlc_cpu_feature(size_t index) {
    for (size_t i = 0; i < sizeof words; i++)
        if (has(this_cpu(), i) && index-- == 0) return name_at(features, i);
    return NULL;
}

bool mlc_cpu_has(const char *name) {
    int feature = name_index(features, name);
    return feature >= 0 && has(this_cpu(), (size_t)feature);
}
