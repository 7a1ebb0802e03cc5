/* Kernels that try to leave the memory they were given, one per number, and a kernel that computes.
 * tests/runtime/memory_probes.py says what each must come to.
 *
 * `attack` makes its system calls by itself, or, where it is told of one, by an instruction of the
 * runtime's own: as a kernel does that knows the program it runs in. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *const *data;
    const int64_t *scalars;
    void *workspace;
} Args;

typedef struct {
    int64_t probe;
    uint64_t gadget;   /* address of "system call; return" in the runtime; 0: none */
    uint64_t target;   /* address of memory that is no business of a kernel */
    uint64_t size;     /* its bytes */
} Wish;

enum { WEIGHTS = 4096 }; /* floats, of whole pages */

#define KERNEL __attribute__((noinline, used))

/* ---- System calls ---- */

#if defined(__x86_64__)

enum { WRITE = 1, MMAP = 9, MPROTECT = 10, MUNMAP = 11, MREMAP = 25, MADVISE = 28, SENDTO = 44,
       CLONE = 56, FTRUNCATE = 77, SIGPROCMASK = 14, OPENAT = 257, EXIT_GROUP = 231, VM_WRITE = 311 };

static long ask(const Wish *w, long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    if (w->gadget)
        __asm__ volatile("call *%[at]"
                         : "+a"(n)
                         : [at] "b"(w->gadget), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    else
        __asm__ volatile("syscall"
                         : "+a"(n)
                         : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    return n;
}

#elif defined(__aarch64__)

enum { WRITE = 64, MMAP = 222, MPROTECT = 226, MUNMAP = 215, MREMAP = 216, MADVISE = 233,
       SENDTO = 206, CLONE = 220, FTRUNCATE = 46, SIGPROCMASK = 135, OPENAT = 56, EXIT_GROUP = 94,
       VM_WRITE = 271 };

static long ask(const Wish *w, long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    if (w->gadget)
        __asm__ volatile("blr %[at]"
                         : "+r"(x0)
                         : [at] "r"(w->gadget), "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                         : "x30", "memory");
    else
        __asm__ volatile("svc 0"
                         : "+r"(x0)
                         : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                         : "memory");
    return x0;
}

#else
#error "the probes are for x86_64 and aarch64"
#endif

enum { BOTH = 3, RUN = 4 }; /* protections: to read and write, to run */
enum { PRIVATE = 2, FIXED = 16, ANONYMOUS = 32, MAY_MOVE = 1 };

/* ---- What each does; returns what the system said ---- */

static void spoil(void *at, size_t size) {
    volatile unsigned char *bytes = at;
    for (size_t i = 0; i < size; i++) bytes[i] ^= 0xff;
}

/* A page of it that the system has made writable is written to. */
static long unprotect(const Wish *w, void *at, size_t size, long protection) {
    long page = (long)at & ~4095L;
    long said = ask(w, MPROTECT, page, (long)size, protection, 0, 0, 0);
    if (said == 0) spoil(at, 64);
    return said;
}

static long map_over(const Wish *w, void *at, size_t size) {
    long said = ask(w, MMAP, (long)at, (long)size, BOTH, PRIVATE | FIXED | ANONYMOUS, -1, 0);
    return said == (long)at ? 0 : said;
}

static long shrink_all(const Wish *w) {
    long done = 0;
    for (int fd = 0; fd < 600; fd++) done += ask(w, FTRUNCATE, fd, 0, 0, 0, 0, 0) == 0;
    return done;
}

static long write_all(const Wish *w) {
    static const char junk[64] = "junk";
    long done = 0;
    for (int fd = 3; fd < 600; fd++) done += ask(w, WRITE, fd, (long)junk, 64, 0, 0, 0) > 0;
    return done;
}

/* Messages of many sizes to whoever is at the other end of its socket. */
static long answer_for_itself(const Wish *w, int byte) {
    static unsigned char message[8192];
    for (size_t i = 0; i < sizeof message; i++) message[i] = (unsigned char)byte;
    long sent = 0;
    for (long size = 1; size <= (long)sizeof message; size += size < 1400 ? 1 : 400)
        sent += ask(w, SENDTO, 3, (long)message, size, 0x4000, 0, 0) > 0;
    return sent;
}

/* A thread that never ends, and writes over a piece of memory again and again. */
static struct {
    volatile unsigned char *at;
    size_t size;
} flipped;
static _Alignas(16) unsigned char stack[4096];

static void flip(void) {
    for (unsigned turn = 0;; turn++)
        for (size_t i = 0; i < flipped.size; i++)
            flipped.at[i] = (unsigned char)(flipped.at[i] + turn + 1);
}

static long begin_flipping(const Wish *w) {
    enum { FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 };
    void **top = (void **)(void *)(stack + sizeof stack - 64);
    flipped.at = (volatile unsigned char *)w->target;
    flipped.size = w->size;
    *top = (void *)flip; /* where the new thread's return leads, on x86 */
#if defined(__x86_64__)
    return ask(w, CLONE, FLAGS, (long)top, 0, 0, 0, 0);
#else
    register long x8 __asm__("x8") = CLONE;
    register long x0 __asm__("x0") = FLAGS;
    register long x1 __asm__("x1") = (long)top;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile("mov x19, %[at]\n\tcbz x19, 1f\n\tblr x19\n\tb 2f\n1:\tsvc 0\n2:\tcbnz x0, 3f\n"
                     "\tbr %[flip]\n3:"
                     : "+r"(x0)
                     : [at] "r"(w->gadget), [flip] "r"(flip), "r"(x8), "r"(x1), "r"(x2), "r"(x3),
                       "r"(x4)
                     : "x19", "x30", "memory");
    return x0;
#endif
}

static long take_all_memory(const Wish *w) {
    long taken = 0;
    while (taken < 1 << 20 &&
           ask(w, MMAP, 0, 64 << 20, BOTH, PRIVATE | ANONYMOUS, -1, 0) > 0)
        taken++;
    return taken;
}

static KERNEL long smash(volatile unsigned char *from) {
    for (size_t i = 0; i < 1 << 20; i++) from[i] = 0x41;
    return 0;
}

/* ---- How the next one computes ---- */

static void leave_modes(int64_t which) {
#if defined(__x86_64__)
    uint32_t sse = 0x1f80;
    uint16_t x87 = 0x0c7f; /* single precision, towards zero */
    switch (which) {
    case 0: sse |= 3 << 13; break;        /* rounds towards zero */
    case 1: sse |= 1 << 15 | 1 << 6; break; /* tiny results and operands are zero */
    case 2: __asm__ volatile("std"); return;
    case 3: /* a full stack of another precision */
        __asm__ volatile("fldcw %0" ::"m"(x87));
        for (int i = 0; i < 8; i++) __asm__ volatile("fldpi");
        return;
    case 4: sse &= ~(0x3fU << 7); break; /* every exception traps */
    default: __asm__ volatile("pushfq\n\torq $0x40000, (%%rsp)\n\tpopfq" ::: "memory", "cc"); return;
    }
    __asm__ volatile("ldmxcsr %0" ::"m"(sse));
#else
    static const uint64_t modes[] = {3 << 22, 1 << 24 | 1 << 19, 1 << 25, 1 << 26,
                                     0x1f << 8 | 1 << 15, 2 << 22};
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(modes[which]), "r"(0x0800001fUL));
#endif
}

/* ---- The kernels ---- */

int32_t compute(const Args *args, int32_t begin, int32_t end);

enum { PROBES_OF_MODES = 100, EFFECTS_OF_MODES = 200 };

/* How many of the results are others after a kernel has left its modes behind. */
static int64_t effect_of_modes(void *weights, int64_t which) {
    static float results[2][WEIGHTS];
    void *data[] = {weights, weights, NULL};
    Args args = {data, NULL, NULL};
    for (int i = 0; i < 2; i++) {
        data[2] = results[i];
        compute(&args, 0, 8);
        if (i == 0) leave_modes(which);
    }
    int64_t differ = 0;
    for (int i = 0; i < WEIGHTS; i++) differ += results[0][i] != results[1][i];
    return differ;
}

/* data: weights, wish, what the system said. */
int32_t attack(const Args *args, int32_t begin, int32_t end) {
    void *weights = args->data[0];
    const Wish *w = args->data[1];
    int64_t *said = args->data[2];
    size_t size = WEIGHTS * sizeof(float);
    if (w->probe >= EFFECTS_OF_MODES) {
        if (begin == 0) *said = effect_of_modes(weights, w->probe - EFFECTS_OF_MODES);
        return 0;
    }
    if (w->probe >= PROBES_OF_MODES) {
        leave_modes(w->probe - PROBES_OF_MODES);
        return 0;
    }
    if (begin != 0) return 0;
    (void)end;
    switch (w->probe) {
    case 0: break;
    case 1: *said = unprotect(w, weights, size, BOTH); break;
    case 2: *said = map_over(w, weights, size); spoil(weights, size); break;
    case 3: *said = ask(w, MREMAP, (long)weights, (long)size, 8 * (long)size, MAY_MOVE, 0, 0); break;
    case 4: *said = ask(w, MUNMAP, (long)weights, (long)size, 0, 0, 0, 0); break;
    case 5: *said = ask(w, MADVISE, (long)weights, (long)size, 4 /* DONTNEED */, 0, 0, 0); break;
    case 6: *said = ask(w, MADVISE, (long)weights, (long)size, 9 /* REMOVE */, 0, 0, 0); break;
    case 7: spoil(weights, size); break;
    case 8: *said = unprotect(w, (void *)compute, 4096, BOTH | RUN); break;
    case 9: *said = shrink_all(w); break;
    case 10: *said = ask(w, FTRUNCATE, (long)w->target, 0, 0, 0, 0, 0); break;
    case 11: *said = write_all(w); break;
    case 12: *said = answer_for_itself(w, 0); break;
    case 13: *said = answer_for_itself(w, 0xff); break;
    case 14: spoil((void *)w->target, w->size); break;
    case 15: *said = begin_flipping(w); break;
    case 16: *said = take_all_memory(w); break;
    case 17: *said = smash((volatile unsigned char *)__builtin_frame_address(0)); break;
    case 18: { /* every signal */
        uint64_t all = ~UINT64_C(0);
        *said = ask(w, SIGPROCMASK, 0, (long)&all, 0, 8, 0, 0);
        break;
    }
    case 19: *said = ask(w, OPENAT, -100, (long)"/proc/self/fd/3", 2, 0, 0, 0); break;
    case 20: *said = ask(w, VM_WRITE, 1, 0, 0, 0, 0, 0); break;
    case 21: *said = ask(w, EXIT_GROUP, 0, 0, 0, 0, 0, 0); break;
    default: return 2;
    }
    return 0;
}

/* y = x / w, and more that depends on how numbers are rounded, on tiny ones and on the direction in
 * which strings are copied; data: weights, x, y. */
int32_t compute(const Args *args, int32_t begin, int32_t end) {
    const float *weights = args->data[0], *x = args->data[1];
    float *y = args->data[2];
    enum { EACH = WEIGHTS / 8 };
    for (int32_t task = begin; task < end; task++) {
        float copied[EACH];
        void *to = copied;
        const void *from = weights + task * EACH;
#if defined(__x86_64__)
        size_t bytes = sizeof copied;
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
#else
        for (size_t i = 0; i < sizeof copied; i++)
            ((volatile char *)to)[i] = ((const volatile char *)from)[i];
#endif
        for (int32_t i = 0; i < EACH; i++) {
            volatile float tiny = x[task * EACH + i] * 1e-39f;
            volatile float back = tiny * 1e30f;
            float third = x[task * EACH + i] / copied[i];
#if defined(__x86_64__)
            volatile long double wide = x[task * EACH + i];
            third += (float)(wide / 3);
#endif
            y[task * EACH + i] = third + back * 1e9f;
        }
    }
    return 0;
}

/* What the module says of itself (mlc_abi.h). */
__asm__(".section .mlc,\"e\"\n.incbin \"metadata\"\n.text\n");
