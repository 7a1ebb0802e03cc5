/* The system calls that computing takes, as a program for the kernel's packet filter (seccomp). */
#define _GNU_SOURCE /* siginfo_t, CLONE_THREAD */
#include "box.h"
#include "names.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__aarch64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__arm__)
#define OWN_ARCHITECTURE AUDIT_ARCH_ARM
#elif defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#endif

#ifdef OWN_ARCHITECTURE

enum { MARK_SYSCALL = 4242 }; /* instruments.c's, which every kernel refuses by itself */

/* What the executor, the pool, the timer and the loader call, and the C library under them. Those
 * that run most often come first. */
static const uint32_t ALLOWED[] = {
    SYS_futex,
#ifdef SYS_clock_gettime
    SYS_clock_nanosleep,
#else /* a 32-bit machine's, of both widths */
    SYS_clock_nanosleep_time32,
    SYS_clock_nanosleep_time64,
    SYS_futex_time64,
#endif
    MARK_SYSCALL,
    SYS_sched_yield,
    SYS_getcpu,
    SYS_getrusage,
    SYS_read, /* of descriptors that are there: counters */
    SYS_pread64,
    SYS_mprotect,
#ifdef SYS_mmap2
    SYS_mmap2,
#else
    SYS_mmap,
#endif
    SYS_munmap,
    SYS_madvise,
    SYS_brk,
    SYS_nanosleep,
    SYS_restart_syscall,
    SYS_sched_getaffinity,
    SYS_rt_sigprocmask, /* around the making of a thread; SIGKILL and a forced SIGSYS pass it */
    SYS_sysinfo,
    SYS_exit_group,
#ifdef __arm__
    0xf0002, /* cacheflush, of this machine alone */
#endif
#ifdef __GLIBC__ /* what its threads and its malloc call besides */
    SYS_set_robust_list,
    SYS_rseq,
    SYS_getrandom,
#endif
};

/* What the kernel's own code calls, too, in the page of our memory that is for looking at the clock. */
static const uint32_t CLOCKS[] = {
#ifdef SYS_clock_gettime
    SYS_clock_gettime,
#else
    SYS_clock_gettime32,
    SYS_clock_gettime64,
#endif
};

/* Allowed where (the first argument & mask) is `value`. */
static const struct {
    uint32_t number, mask, value;
} CHECKED[] = {
    {SYS_recvmsg, UINT32_MAX, BOX_SOCKET},
    {SYS_sendto, UINT32_MAX, BOX_SOCKET},
    {SYS_sched_setaffinity, UINT32_MAX, 0}, /* its own, and nobody else's */
#ifdef __GLIBC__ /* signals 32 and 33, its own, which the first thread prepares for */
    {SYS_rt_sigaction, ~1U, 32},
#endif
    /* A thread, of those flags that the C library gives, and no process. */
    {SYS_clone,
     ~(uint32_t)(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_SETTLS |
                 CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | CLONE_DETACHED),
     CLONE_THREAD},
};

enum {
    COUNT = sizeof ALLOWED / sizeof *ALLOWED,
    CHECKS = sizeof CHECKED / sizeof *CHECKED,
    PROGRAM = 15 + 2 * COUNT + 6 * CHECKS + 6 + 1
};

typedef struct {
    struct sock_filter code[PROGRAM];
    unsigned short size;
} Filter;

static void add(Filter *f, unsigned code, uint32_t value, unsigned yes, unsigned no) {
    f->code[f->size++] =
        (struct sock_filter){(uint16_t)code, (uint8_t)yes, (uint8_t)no, value};
}

static void load(Filter *f, size_t offset) {
    add(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

/* Goes on with the next instruction where it is so, else passes over so many. */
static void pass_unless(Filter *f, uint32_t value, unsigned over) {
    add(f, BPF_JMP | BPF_JEQ | BPF_K, value, 0, over);
}

static void answer(Filter *f, uint32_t what) { add(f, BPF_RET | BPF_K, what, 0, 0); }

/* The low half of the first argument, on the little-endian machines that there are. */
static void load_first(Filter *f) { load(f, offsetof(struct seccomp_data, args)); }

static void allow(Filter *f, const uint32_t *numbers, unsigned count) {
    load(f, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < count; i++) {
        pass_unless(f, numbers[i], 1);
        answer(f, SECCOMP_RET_ALLOW);
    }
}

extern const char __executable_start[], etext[]; /* the linker's: where this program's code is */

/* A kernel of ours calls nothing, so what calls is this program's own code. That keeps others from the
 * calls that are allowed, too: those that say what memory is where. */
static void own_code_only(Filter *f) {
    uint64_t first = (uintptr_t)__executable_start, end = (uintptr_t)etext;
    size_t at = offsetof(struct seccomp_data, instruction_pointer);
    if (getauxval(AT_BASE) != 0 || first >> 32 != end >> 32) return; /* libraries are elsewhere */
    load(f, at + 4);
    add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(first >> 32), 0, 3);
    load(f, at);
    add(f, BPF_JMP | BPF_JGE | BPF_K, (uint32_t)first, 0, 1);
    add(f, BPF_JMP | BPF_JGT | BPF_K, (uint32_t)end, 0, 1); /* it points after the call */
    answer(f, SECCOMP_RET_TRAP);
}

static void write_filter(Filter *f) {
    load(f, offsetof(struct seccomp_data, arch));
    add(f, BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCHITECTURE, 1, 0);
    answer(f, SECCOMP_RET_TRAP); /* as a 32-bit program: there the same numbers mean other calls */
    allow(f, CLOCKS, sizeof CLOCKS / sizeof *CLOCKS);
    own_code_only(f);
    allow(f, ALLOWED, COUNT);
    for (unsigned i = 0; i < CHECKS; i++) {
        pass_unless(f, CHECKED[i].number, 5);
        load_first(f);
        add(f, BPF_ALU | BPF_AND | BPF_K, CHECKED[i].mask, 0, 0);
        pass_unless(f, CHECKED[i].value, 1);
        answer(f, SECCOMP_RET_ALLOW);
        answer(f, SECCOMP_RET_TRAP);
    }
    pass_unless(f, SYS_close, 4); /* of anything but its socket */
    load_first(f);
    pass_unless(f, BOX_SOCKET, 1);
    answer(f, SECCOMP_RET_TRAP);
    answer(f, SECCOMP_RET_ALLOW);
#ifdef __GLIBC__ /* whose flags cannot be seen; it then calls clone */
    pass_unless(f, SYS_clone3, 1);
    answer(f, SECCOMP_RET_ERRNO | ENOSYS);
#endif
    answer(f, SECCOMP_RET_TRAP);
}

static volatile uint32_t *forbidden_call;

/* The call was not carried out. A kernel may have broken what this needs; then it dies of that. */
static void trapped(int number, siginfo_t *about, void *context) {
    (void)number;
    (void)context;
    *forbidden_call = about->si_arch == OWN_ARCHITECTURE ? (uint32_t)about->si_syscall + 1
                                                         : UINT32_MAX;
    _exit(1);
}

bool filter_begin(volatile uint32_t *forbidden) {
    enum { ALLOW_SPECULATION = 4 }; /* without it some kernels slow the process down */
    Filter filter = {.size = 0};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    write_filter(&filter);
    struct sock_fprog program = {filter.size, filter.code};
    forbidden_call = forbidden;
    sigaction(SIGSYS, &action, NULL);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, ALLOW_SPECULATION, &program) == 0 ||
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0; /* Linux before 4.17 */
}

#else

bool filter_begin(volatile uint32_t *forbidden) {
    (void)forbidden;
    return false;
}

#endif

/* ---- Names ---- */

/* Those that somebody would try; and those that are allowed, but to this program alone. */
#define EVERYWHERE(X)                                                                              \
    X(accept4) X(bind) X(bpf) X(capset) X(chdir) X(chroot) X(clone) X(clone3) X(close)             \
    X(close_range) X(connect) X(dup) X(dup3) X(execve) X(execveat) X(exit) X(fallocate) X(fchmod)  \
    X(fchmodat) X(fcntl) X(ftruncate) X(getdents64) X(getpid) X(init_module) X(io_uring_setup)     \
    X(ioctl) X(kill) X(linkat) X(listen) X(memfd_create) X(mkdirat) X(mknodat) X(mount) X(openat)  \
    X(openat2) X(perf_event_open) X(personality) X(pidfd_getfd) X(pidfd_open)                      \
    X(pidfd_send_signal) X(pipe2) X(ppoll) X(prctl) X(prlimit64) X(process_vm_readv)               \
    X(process_vm_writev) X(ptrace) X(pwrite64) X(reboot) X(recvfrom) X(recvmsg) X(renameat2)       \
    X(rt_sigaction) X(rt_sigqueueinfo) X(rt_sigreturn) X(sched_setaffinity) X(sched_setscheduler)  \
    X(sendmsg) X(sendto) X(setitimer) X(setns) X(setpgid) X(setpriority) X(setresuid)              \
    X(setrlimit) X(setsid) X(setuid) X(shmget) X(shutdown) X(sigaltstack) X(socket) X(socketpair)  \
    X(symlinkat) X(tgkill) X(timer_create) X(tkill) X(truncate) X(umount2) X(unlinkat) X(unshare)  \
    X(userfaultfd) X(utimensat) X(vmsplice) X(wait4) X(write) X(writev) X(brk) X(madvise)          \
    X(mprotect) X(mremap) X(munmap) X(rt_sigprocmask) X(exit_group)

#ifdef SYS_mmap2
#define MAPPED(X) X(mmap2)
#else
#define MAPPED(X) X(mmap)
#endif
#ifdef SYS_fork /* where the oldest calls are there beside those that replace them */
#define OLDEST(X)                                                                                  \
    X(access) X(chmod) X(creat) X(dup2) X(fork) X(link) X(mkdir) X(open) X(pipe) X(poll)           \
    X(rename) X(symlink) X(unlink) X(vfork)
#else
#define OLDEST(X)
#endif
#ifdef SYS_alarm
#define ALARM(X) X(alarm)
#else
#define ALARM(X)
#endif
#ifdef SYS_setuid32
#define WIDE(X) X(setuid32) X(setresuid32)
#else
#define WIDE(X)
#endif
#ifdef SYS_ftruncate64
#define LONG(X) X(ftruncate64)
#else
#define LONG(X)
#endif

#define EACH(X) EVERYWHERE(X) MAPPED(X) OLDEST(X) ALARM(X) WIDE(X) LONG(X)
#define NAME(name) NUL_AFTER(#name)
#define NUMBER(name) SYS_##name,

static const char NAMES[] = EACH(NAME);
static const uint16_t NUMBERS[] = {EACH(NUMBER)};

const char *filter_name(uint32_t number) {
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (NUMBERS[i] == number) return name_at(NAMES, i);
    return NULL;
}
