/* CPU features by LLVM's names: one table per machine of bits in the words that describe the CPU. */
#include "cpu.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <elf.h>
#include <sys/auxv.h>
#endif

/* A CPU has a feature when all bits of `mask` are set in the word, and the operating system keeps
 * the registers that the feature works on. */
typedef struct {
    const char *name;
    uint8_t word;
    uint8_t state;
    uint64_t mask;
} Feature;

typedef struct {
    uint64_t word[12];
    uint64_t state; /* a set of the registers kept, as the features' `state`; 0 asks for none */
} Cpu;

#define BIT(n) (UINT64_C(1) << (n))

#if defined(__aarch64__)

enum { HWCAP, HWCAP2 };

static const Feature features[] = {
    {"v8a", HWCAP, 0, 0},
    {"fp-armv8", HWCAP, 0, BIT(0)},
    {"neon", HWCAP, 0, BIT(1)},
    {"aes", HWCAP, 0, BIT(3) | BIT(4)},
    {"sha2", HWCAP, 0, BIT(5) | BIT(6)},
    {"crc", HWCAP, 0, BIT(7)},
    {"lse", HWCAP, 0, BIT(8)},
    {"fullfp16", HWCAP, 0, BIT(9) | BIT(10)},
    {"rdm", HWCAP, 0, BIT(12)},
    {"jsconv", HWCAP, 0, BIT(13)},
    {"complxnum", HWCAP, 0, BIT(14)},
    {"rcpc", HWCAP, 0, BIT(15)},
    {"ccpp", HWCAP, 0, BIT(16)},
    {"sha3", HWCAP, 0, BIT(17) | BIT(21)},
    {"sm4", HWCAP, 0, BIT(18) | BIT(19)},
    {"dotprod", HWCAP, 0, BIT(20)},
    {"sve", HWCAP, 0, BIT(22)},
    {"fp16fml", HWCAP, 0, BIT(23)},
    {"dit", HWCAP, 0, BIT(24)},
    {"lse2", HWCAP, 0, BIT(25)},
    {"rcpc-immo", HWCAP, 0, BIT(26)},
    {"flagm", HWCAP, 0, BIT(27)},
    {"ssbs", HWCAP, 0, BIT(28)},
    {"sb", HWCAP, 0, BIT(29)},
    {"pauth", HWCAP, 0, BIT(30) | BIT(31)},
    {"ccdp", HWCAP2, 0, BIT(0)},
    {"sve2", HWCAP2, 0, BIT(1)},
    {"sve-aes", HWCAP2, 0, BIT(2) | BIT(3)},
    {"sve-bitperm", HWCAP2, 0, BIT(4)},
    {"sve-sha3", HWCAP2, 0, BIT(5)},
    {"sve-sm4", HWCAP2, 0, BIT(6)},
    {"altnzcv", HWCAP2, 0, BIT(7)},
    {"fptoint", HWCAP2, 0, BIT(8)},
    {"f32mm", HWCAP2, 0, BIT(10)},
    {"f64mm", HWCAP2, 0, BIT(11)},
    {"i8mm", HWCAP2, 0, BIT(13)},
    {"bf16", HWCAP2, 0, BIT(14)},
    {"rand", HWCAP2, 0, BIT(16)},
    {"bti", HWCAP2, 0, BIT(17)},
    {"mte", HWCAP2, 0, BIT(18)},
    {"sme", HWCAP2, 0, BIT(23)},
    {"sme-i16i64", HWCAP2, 0, BIT(24)},
    {"sme-f64f64", HWCAP2, 0, BIT(25)},
    {"sme-fa64", HWCAP2, 0, BIT(30)},
    {"wfxt", HWCAP2, 0, BIT(31)},
    {"cssc", HWCAP2, 0, BIT(34)},
    {"sve2p1", HWCAP2, 0, BIT(36)},
    {"sme2", HWCAP2, 0, BIT(37)},
    {"mops", HWCAP2, 0, BIT(43)},
};

static Cpu read_cpu(void) {
    return (Cpu){.word = {[HWCAP] = getauxval(AT_HWCAP), [HWCAP2] = getauxval(AT_HWCAP2)}};
}

const char *mlc_machine(void) { return "aarch64"; }

#elif defined(__arm__)

enum { HWCAP, HWCAP2, LEVEL };

/* Storage of half floats ("fp16") came with VFPv4; Cortex-A9 has it too, but its kernels do not
 * tell. "vfp3" and "vfp4" mean 32 registers to LLVM. */
static const Feature features[] = {
    {"v7", HWCAP, 0, 0},
    {"v8", LEVEL, 0, BIT(8)},
    {"thumb2", HWCAP, 0, BIT(2)},
    {"dsp", HWCAP, 0, BIT(7)},
    {"fpregs", HWCAP, 0, BIT(6)},
    {"fp64", HWCAP, 0, BIT(6)},
    {"vfp2", HWCAP, 0, BIT(6)},
    {"vfp2sp", HWCAP, 0, BIT(6)},
    {"vfp3d16", HWCAP, 0, BIT(13)},
    {"vfp3d16sp", HWCAP, 0, BIT(13)},
    {"vfp3", HWCAP, 0, BIT(13) | BIT(19)},
    {"vfp3sp", HWCAP, 0, BIT(13) | BIT(19)},
    {"vfp4d16", HWCAP, 0, BIT(16)},
    {"vfp4d16sp", HWCAP, 0, BIT(16)},
    {"vfp4", HWCAP, 0, BIT(16) | BIT(19)},
    {"vfp4sp", HWCAP, 0, BIT(16) | BIT(19)},
    {"d32", HWCAP, 0, BIT(19)},
    {"fp16", HWCAP, 0, BIT(16)},
    {"neon", HWCAP, 0, BIT(12)},
    {"fp-armv8", LEVEL, 0, BIT(9)},
    {"fp-armv8sp", LEVEL, 0, BIT(9)},
    {"fp-armv8d16", LEVEL, 0, BIT(9)},
    {"fp-armv8d16sp", LEVEL, 0, BIT(9)},
    {"hwdiv-arm", HWCAP, 0, BIT(17)},
    {"hwdiv", HWCAP, 0, BIT(18)},
    {"fullfp16", HWCAP, 0, BIT(22) | BIT(23)},
    {"dotprod", HWCAP, 0, BIT(24)},
    {"fp16fml", HWCAP, 0, BIT(25)},
    {"bf16", HWCAP, 0, BIT(26)},
    {"i8mm", HWCAP, 0, BIT(27)},
    {"aes", HWCAP2, 0, BIT(0) | BIT(1)},
    {"sha2", HWCAP2, 0, BIT(2) | BIT(3)},
    {"crc", HWCAP2, 0, BIT(4)},
    {"sb", HWCAP2, 0, BIT(5)},
};

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

static const Feature features[] = {
    {"cx8", L1_EDX, 0, BIT(8)},
    {"cmov", L1_EDX, 0, BIT(15)},
    {"mmx", L1_EDX, 0, BIT(23)},
    {"fxsr", L1_EDX, 0, BIT(24)},
    {"sse", L1_EDX, 0, BIT(25)},
    {"sse2", L1_EDX, 0, BIT(26)},
    {"sse3", L1_ECX, 0, BIT(0)},
    {"pclmul", L1_ECX, 0, BIT(1)},
    {"ssse3", L1_ECX, 0, BIT(9)},
    {"fma", L1_ECX, YMM, BIT(12)},
    {"cx16", L1_ECX, 0, BIT(13)},
    {"sse4.1", L1_ECX, 0, BIT(19)},
    {"sse4.2", L1_ECX, 0, BIT(20)},
    {"movbe", L1_ECX, 0, BIT(22)},
    {"popcnt", L1_ECX, 0, BIT(23)},
    {"aes", L1_ECX, 0, BIT(25)},
    {"xsave", L1_ECX, 0, BIT(26) | BIT(27)},
    {"avx", L1_ECX, YMM, BIT(28)},
    {"f16c", L1_ECX, YMM, BIT(29)},
    {"rdrnd", L1_ECX, 0, BIT(30)},
    {"fsgsbase", L7_EBX, 0, BIT(0)},
    {"bmi", L7_EBX, 0, BIT(3)},
    {"avx2", L7_EBX, YMM, BIT(5)},
    {"bmi2", L7_EBX, 0, BIT(8)},
    {"avx512f", L7_EBX, ZMM, BIT(16)},
    {"avx512dq", L7_EBX, ZMM, BIT(17)},
    {"rdseed", L7_EBX, 0, BIT(18)},
    {"adx", L7_EBX, 0, BIT(19)},
    {"avx512ifma", L7_EBX, ZMM, BIT(21)},
    {"clflushopt", L7_EBX, 0, BIT(23)},
    {"clwb", L7_EBX, 0, BIT(24)},
    {"avx512cd", L7_EBX, ZMM, BIT(28)},
    {"sha", L7_EBX, 0, BIT(29)},
    {"avx512bw", L7_EBX, ZMM, BIT(30)},
    {"avx512vl", L7_EBX, ZMM, BIT(31)},
    {"avx512vbmi", L7_ECX, ZMM, BIT(1)},
    {"avx512vbmi2", L7_ECX, ZMM, BIT(6)},
    {"gfni", L7_ECX, 0, BIT(8)},
    {"vaes", L7_ECX, YMM, BIT(9)},
    {"vpclmulqdq", L7_ECX, YMM, BIT(10)},
    {"avx512vnni", L7_ECX, ZMM, BIT(11)},
    {"avx512bitalg", L7_ECX, ZMM, BIT(12)},
    {"avx512vpopcntdq", L7_ECX, ZMM, BIT(14)},
    {"rdpid", L7_ECX, 0, BIT(22)},
    {"movdiri", L7_ECX, 0, BIT(27)},
    {"movdir64b", L7_ECX, 0, BIT(28)},
    {"avx512vp2intersect", L7_EDX, ZMM, BIT(8)},
    {"avx512fp16", L7_EDX, ZMM, BIT(23)},
    {"avxvnni", L7_1_EAX, YMM, BIT(4)},
    {"avx512bf16", L7_1_EAX, ZMM, BIT(5)},
    {"avxifma", L7_1_EAX, YMM, BIT(23)},
    {"avxvnniint8", L7_1_EDX, YMM, BIT(4)},
    {"avxneconvert", L7_1_EDX, YMM, BIT(5)},
    {"avxvnniint16", L7_1_EDX, YMM, BIT(10)},
    {"sahf", E1_ECX, 0, BIT(0)},
    {"lzcnt", E1_ECX, 0, BIT(5)},
    {"sse4a", E1_ECX, 0, BIT(6)},
    {"prfchw", E1_ECX, 0, BIT(8)},
    {"xop", E1_ECX, YMM, BIT(11)},
    {"fma4", E1_ECX, YMM, BIT(16)},
    {"tbm", E1_ECX, 0, BIT(21)},
    {"64bit", E1_EDX, 0, BIT(29)},
};

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

static bool has(const Cpu *cpu, const Feature *feature) {
    return (cpu->word[feature->word] & feature->mask) == feature->mask &&
           (cpu->state & feature->state) == feature->state;
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
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++)
        if (has(this_cpu(), &features[i]) && index-- == 0) return features[i].name;
    return NULL;
}

bool mlc_cpu_has(const char *name) {
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++)
        if (strcmp(features[i].name, name) == 0) return has(this_cpu(), &features[i]);
    return false;
}
