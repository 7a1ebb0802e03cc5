/* Hides from this thread, and from those that it starts, the instructions that QEMU does not know:
 * CPUID faults, and the handler answers without them. Libraries that choose kernels by CPUID then
 * choose here what they choose in the emulator. Linux on x86-64, where the CPU can do this. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_CPUID = 0x1012, OFF = 0, ON = 1 };
enum { CPUID_BYTES = 2 };

/* Bits of leaf 7: all that begins with AVX512 or AMX, and GFNI. */
static const unsigned HIDDEN_EBX = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 |
                                   1u << 30 | 1u << 31;
static const unsigned HIDDEN_ECX = 1u << 1 | 1u << 6 | 1u << 8 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned HIDDEN_EDX = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 |
                                   1u << 25;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (memcmp((const void *)registers[REG_RIP], "\x0f\xa2", CPUID_BYTES) != 0) {
        signal(number, SIG_DFL); /* a fault of its own: it comes again, and ends the process */
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], sub = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_CPUID, ON);
    __cpuid_count(leaf, sub, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_CPUID, OFF);
    if (leaf == 7 && sub == 0) b &= ~HIDDEN_EBX, c &= ~HIDDEN_ECX, d &= ~HIDDEN_EDX;
    if (leaf == 7 && sub == 1) a = b = c = d = 0; /* AVX-VNNI, AVX-IFMA and later ones */
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += CPUID_BYTES;
}

/* 0, or -1 where the CPU or the kernel cannot do this. */
int hide(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    action.sa_sigaction = on_fault;
    if (sigaction(SIGSEGV, &action, NULL) != 0) return -1;
    return (int)syscall(SYS_arch_prctl, ARCH_CPUID, OFF);
}
