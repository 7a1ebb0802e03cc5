/* The functions that generated code may call: what LLVM lowers intrinsics and missing instructions
 * to, as long as the toolchain's C library and compiler runtime have it on this machine. */
#define _GNU_SOURCE /* sincos */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "reloc.h"

/* Functions of the compiler's runtime have conventions of their own and appear in no header: here
 * only their addresses matter. */
typedef void Function(void);
#define DECLARE(name) extern Function name;
#define ENTRY(name) {#name, (Function *)name},

/* For float and for double. */
#define MATH(X)                                                                                    \
    X(acos) X(asin) X(atan) X(atan2) X(ceil) X(cos) X(cosh) X(erf) X(exp) X(expm1) X(floor) X(fma) \
    X(fmax) X(fmin) X(fmod) X(ldexp) X(log) X(log10) X(log1p) X(log2) X(nearbyint) X(rint)         \
    X(round) X(sin) X(sincos) X(sinh) X(sqrt) X(tan) X(tanh) X(trunc)
#define ENTRY_MATH(name) ENTRY(name) ENTRY(name##f)

/* For float only: in double each would add 5 to 8 KB to a program of 150 KB, or serve nobody. */
#define MATH_FLOAT(X) X(acoshf) X(asinhf) X(atanhf) X(cbrtf) X(exp2f) X(powf)

#define INT128(X) X(__divti3) X(__modti3) X(__udivti3) X(__umodti3)
#define POWER(X) X(__powisf2) X(__powidf2)
#define HALF(X) X(__extendhfsf2) X(__truncsfhf2) X(__truncdfhf2)

#if defined(__arm__)
#define MACHINE(X)                                                                                 \
    X(__aeabi_idiv) X(__aeabi_uidiv) X(__aeabi_idivmod) X(__aeabi_uidivmod) X(__aeabi_ldivmod)     \
    X(__aeabi_uldivmod) X(__aeabi_lmul) X(__aeabi_llsl) X(__aeabi_llsr) X(__aeabi_lasr)            \
    X(__aeabi_f2lz) X(__aeabi_f2ulz) X(__aeabi_d2lz) X(__aeabi_d2ulz) X(__aeabi_l2f)               \
    X(__aeabi_ul2f) X(__aeabi_l2d) X(__aeabi_ul2d) X(__aeabi_d2h)    \
    X(__aeabi_memcpy) X(__aeabi_memcpy4) X(__aeabi_memcpy8) X(__aeabi_memmove)                     \
    X(__aeabi_memmove4) X(__aeabi_memmove8) X(__aeabi_memset) X(__aeabi_memset4)                   \
    X(__aeabi_memset8) X(__aeabi_memclr) X(__aeabi_memclr4) X(__aeabi_memclr8)                     \
    X(__gnu_h2f_ieee) X(__gnu_f2h_ieee) POWER(X)
#elif defined(__aarch64__)
#define MACHINE(X) INT128(X) POWER(X)
#else
#define MACHINE(X) INT128(X) POWER(X) HALF(X)
#endif

MACHINE(DECLARE)

/* bfloat16 conversions are missing in too many compiler runtimes, so they are here. A bfloat16 is
 * returned in the low half of the register that a float is returned in. Round half to even. */
static float truncate_to_bfloat(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = isnan(x) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* Rounding twice goes wrong at ties, unless the first rounding is to odd. */
static float truncate_double_to_bfloat(double x) {
    float nearest = (float)x;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (!isnan(x) && (double)nearest != x) bits = (bits - (fabs((double)nearest) > fabs(x))) | 1;
    memcpy(&nearest, &bits, sizeof bits);
    return truncate_to_bfloat(nearest);
}

static const struct {
    const char *name;
    Function *function;
} helpers[] = {
    ENTRY(memcpy) ENTRY(memmove) ENTRY(memset) ENTRY(memcmp) ENTRY(bcmp)
    MATH(ENTRY_MATH) MATH_FLOAT(ENTRY)
    /* musl has no roundeven; rint is the same, since nobody here changes the rounding mode */
    {"roundeven", (Function *)rint},
    {"roundevenf", (Function *)rintf},
    {"__truncsfbf2", (Function *)truncate_to_bfloat},
    {"__truncdfbf2", (Function *)truncate_double_to_bfloat},
    MACHINE(ENTRY)
};

uint64_t mlc_helper(const char *name) {
    for (size_t i = 0; i < sizeof helpers / sizeof helpers[0]; i++)
        if (strcmp(helpers[i].name, name) == 0) return (uintptr_t)helpers[i].function;
    return 0;
}
