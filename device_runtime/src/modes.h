/* What a thread's registers say of how it computes. A kernel may leave any of it changed (the
 * rounding, whether tiny numbers count as zero, exceptions that trap, the direction of string
 * instructions), so it is set anew after each call of one: what comes next, another kernel or our
 * own code, computes as if there had been none before. */
#ifndef MLC_MODES_H
#define MLC_MODES_H

#include <stdint.h>

/* To what a process begins with: rounds to nearest, keeps tiny numbers, traps nothing. */
static inline void modes_reset(void) {
#if defined(__aarch64__)
    __asm__ volatile("msr fpcr, xzr\n\tmsr fpsr, xzr" ::: "memory");
#elif defined(__arm__)
    __asm__ volatile("vmsr fpscr, %0" ::"r"(0) : "memory");
#elif defined(__x86_64__)
    static const uint32_t sse = 0x1f80;
    __builtin_ia32_writeeflags_u64(0x202); /* upwards, and misaligned accesses are allowed */
    __asm__ volatile("fninit\n\tldmxcsr %0" ::"m"(sse) : "memory"); /* and the x87 stack is empty */
#endif
}

#endif
