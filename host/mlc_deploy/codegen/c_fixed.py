"""The fixed text of generated C: the kernel ABI, helper functions, and names that C uses."""

from __future__ import annotations

from . import c_numbers
from .c_text import identifier

SOURCE_NOTE = """\
/* Made by mlc-deploy. C11 that needs <math.h> and nothing else. The compiler must convert integers
 * modulo 2^n and shift negative ones arithmetically, as gcc, clang and MSVC do. Comparisons that
 * are always true come from the model and are intended. */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wtautological-compare"
#endif"""

# The text of device_runtime/include/mlc_abi.h below its comment, word for word. A program may
# include both headers: the first one declares it.
ABI = """\
#ifndef MLC_ABI_H
#define MLC_ABI_H

#include <stdint.h>

#define MLC_ABI_VERSION 1
#define MLC_ALIGNMENT 64
#define MLC_SECTION ".mlc"

typedef struct {
    void *const *data;      /* one pointer per parameter, in order */
    const int64_t *scalars; /* values of the symbolic dimensions, in order */
    void *workspace;        /* this thread's scratch memory, of the size the kernel asked for */
} mlc_args;

/* Runs tasks [task_begin, task_end) and returns 0, or a status that says what went wrong. A kernel
 * without a parallel loop has one task. Kernels call nothing back and keep no state. */
typedef int32_t mlc_kernel(const mlc_args *args, int32_t task_begin, int32_t task_end);

enum mlc_status {
    MLC_OK = 0,
    MLC_OUT_OF_BOUNDS = 1, /* an access outside its buffer, in code built with bound checks */
    MLC_BAD_SHAPE = 2,     /* arguments whose sizes do not fit each other */
    MLC_BAD_EXTENT = 3,    /* a symbolic dimension that is negative, or more than it may be */
    MLC_BAD_INDEX = 4      /* an index, or a number of rows, outside of its axis */
};

enum mlc_space { MLC_ARENA = 0, MLC_WEIGHTS = 1, MLC_INPUT = 2, MLC_OUTPUT = 3 };

#endif"""


def header(name: str, prototypes: str) -> str:
    """The header of generated C, a file of that name."""
    guard = "MLC_" + identifier(name).upper()
    return f"""#ifndef {guard}
#define {guard}

{ABI}

#ifdef __cplusplus
extern "C" {{
#endif

{prototypes}

#ifdef __cplusplus
}}
#endif

#endif
"""


# SYMBOL, TYPE, EXP and ERF are replaced. A file gets only the helpers that its kernels call.
HELPERS = {
    **c_numbers.HELPERS,
    "prefetch": """\
static inline void SYMBOL(uintptr_t at) {
#if defined(__GNUC__)
    __builtin_prefetch((const void *)at);
#else
    (void)at;
#endif
}""",
    "min": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) {
    return a < b ? a : b;
}""",
    "max": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) {
    return a > b ? a : b;
}""",
    "min of floats": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* NaN where either is */
    return a < b || a != a ? a : b;
}""",
    "max of floats": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* NaN where either is */
    return a > b || a != a ? a : b;
}""",
    "sigmoid": """\
static inline TYPE SYMBOL(TYPE x) {
    return 1 / (1 + EXP(-x));
}""",
    "silu": """\
static inline TYPE SYMBOL(TYPE x) {
    return x < (TYPE)-1e30 ? (TYPE)-0.0 : x / (1 + EXP(-x));
}""",
    "gelu": """\
static inline TYPE SYMBOL(TYPE x) {
    return x < (TYPE)-1e30 ? (TYPE)-0.0
                           : x * (TYPE)0.5 * (ERF(x * (TYPE)0.70710678118654752440) + 1);
}""",
    "half_bits": """\
static inline uint16_t SYMBOL(double x) { /* to the nearest float16, half to even */
    const double size = fabs(x);
    const int sign = signbit(x) ? 0x8000 : 0;
    if (!(size < 65536.0)) {
        return (uint16_t)(sign | (size != size ? 0x7e00 : 0x7c00));
    }
    const int exponent = size < 0x1p-14 ? -14 : ilogb(size);
    const int mantissa = (int)nearbyint(ldexp(size, 10 - exponent)); /* with its leading 1 */
    return (uint16_t)(sign | ((exponent + 14) * 1024 + mantissa));
}""",
    "half_value": """\
static inline float SYMBOL(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
                          : ldexpf((float)fraction, -24);
    if (exponent == 31) {
        size = fraction ? NAN : INFINITY;
    }
    return bits & 0x8000 ? -size : size;
}""",
    "round_half": """\
static inline float SYMBOL(double x) {
    return mlc_half_value(mlc_half_bits(x));
}""",
}

ACTIVATIONS = ("sigmoid", "silu", "gelu")  # helpers of their own
# Intrinsics that <math.h> has; float's take the suffix f.
MATH = {
    **{
        n: n
        for n in "exp expm1 log log1p sin cos tan tanh erf sqrt floor ceil trunc pow fmod".split()
    },
    "nearbyint": "nearbyint",  # half to even, in C's default rounding direction
    "abs": "fabs",
}

# Names that a kernel cannot have: words of C, library functions that compilers know, and our own.
_MATH_H = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb
lrint lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn
sin sinh sqrt tan tanh tgamma trunc
"""
_OTHERS = """
auto break case char const continue default do double else enum extern float for goto if inline int
long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while bool true false asm typeof main linux unix args task_begin task_end
first_iteration end_iteration
NULL NAN INFINITY EOF errno offsetof isfinite isinf isnan isnormal signbit fpclassify
abort abs atexit atoi atol calloc div exit free getenv labs ldiv llabs malloc qsort rand read
realloc select srand system time write memchr memcmp memcpy memmove memset strcat strchr strcmp
strcpy strlen printf putchar puts scanf sprintf isalnum isalpha isdigit islower isspace isupper
tolower toupper float_t double_t ptrdiff_t size_t wchar_t intptr_t uintptr_t intmax_t uintmax_t
"""

MATH_NAMES = frozenset(name + suffix for name in _MATH_H.split() for suffix in ("", "f", "l"))
RESERVED = frozenset(
    [
        *MATH_NAMES,
        *_OTHERS.split(),
        *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    ]
)
