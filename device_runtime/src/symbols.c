/* The functions that generated code may call: what LLVM lowers intrinsics and missing instructions
 * to, as long as the toolchain's C library and compiler runtime have it on this machine. */
#define _GNU_SOURCE /* sincos */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "names.h"
#include "reloc.h"

/* Functions of the compiler's runtime have conventions of their own and appear in no header: here
 * only their addresses matter. */
typedef void Function(void);
#define DECLARE(name) extern Function name;

/* For float and for double. */
#define MATH(X)                                                                                    \
    X(acos) X(asin) X(atan) X(atan2) X(ceil) X(cos) X(cosh) X(erf) X(exp) X(expm1) X(floor) X(fma) \
    X(fmax) X(fmin) X(fmod) X(ldexp) X(log) X(log10) X(log1p) X(log2) X(nearbyint) X(rint)         \
    X(round) X(sin) X(sincos) X(sinh) X(sqrt) X(tan) X(tanh) X(trunc)

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

/* musl has no roundeven; rint is the same, since nobody here changes the rounding mode. */
#define OWN(X)                                                                                     \
    X("roundeven", rint) X("roundevenf", rintf) X("__truncsfbf2", truncate_to_bfloat)              \
    X("__truncdfbf2", truncate_double_to_bfloat)

#define MEMORY(X) X(memcpy) X(memmove) X(memset) X(memcmp) X(bcmp)
#define EACH(X, BOTH, OF_OWN) MEMORY(X) MATH(BOTH) MATH_FLOAT(X) MACHINE(X) OWN(OF_OWN)
#define NAME(name) NUL_AFTER(#name)
#define NAMES(name) NAME(name) NAME(name##f)
#define ADDRESS(name) (Function *)name,
#define ADDRESSES(name) ADDRESS(name) ADDRESS(name##f)
#define OWN_NAME(name, function) NUL_AFTER(name)
#define OWN_ADDRESS(name, function) (Function *)function,

static const char names[] = EACH(NAME, NAMES, OWN_NAME);
static Function *const functions[] = {EACH(ADDRESS, ADDRESSES, OWN_ADDRESS)};

uint64_t mlc_helper(const char *name) {
    int helper = name_index(names, name);
    return helper < 0 ? 0 : (uintptr_t)functions[helper];
}
