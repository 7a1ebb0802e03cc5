#define _GNU_SOURCE /* CLOCK_MONOTONIC_RAW */
#include "execute.h"

#include <time.h>

enum { MARK_SYSCALL = 4242, MARK_BEGIN = 1, MARK_END = 2 };

uint64_t mlc_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A system call that no kernel has (it answers ENOSYS) and that the counting plugin sees. Inline,
 * so that the instructions between a mark and the kernel are few and always the same. */
static inline void mark(uint32_t tag, uint32_t index) {
#if defined(__aarch64__)
    register long number __asm__("x8") = MARK_SYSCALL;
    register long a __asm__("x0") = (long)tag;
    register long b __asm__("x1") = (long)index;
    __asm__ volatile("svc 0" : "+r"(a) : "r"(number), "r"(b) : "memory", "cc");
#elif defined(__arm__) /* r7 may be the frame pointer, which cannot be asked for */
    register long a __asm__("r0") = (long)tag;
    register long b __asm__("r1") = (long)index;
    register long saved __asm__("r3");
    register long number __asm__("r2") = MARK_SYSCALL;
    __asm__ volatile("mov %1, r7\n\tmov r7, %2\n\tsvc 0\n\tmov r7, %1"
                     : "+r"(a), "=&r"(saved)
                     : "r"(number), "r"(b)
                     : "memory", "cc");
#elif defined(__x86_64__)
    long number = MARK_SYSCALL;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"((long)tag), "S"((long)index)
                     : "rcx", "r11", "memory", "cc");
#else
    (void)tag;
    (void)index;
#endif
}

static int32_t empty_kernel(const mlc_args *args, int32_t task_begin, int32_t task_end) {
    (void)args;
    (void)task_begin;
    (void)task_end;
    return MLC_OK;
}

/* Not inlined, so that every kernel, the empty one too, is reached through the same instructions:
 * what a pair of marks adds can then be measured once and subtracted. */
static __attribute__((noinline)) int32_t marked(mlc_kernel *kernel, const mlc_args *args,
                                                int32_t tasks, uint32_t index) {
    mark(MARK_BEGIN, index);
    int32_t status = kernel(args, 0, tasks);
    mark(MARK_END, index);
    return status;
}

static void *address(const mlc_run *run, const mlc_operand *operand) {
    char *base = NULL;
    switch (operand->space) {
    case MLC_ARENA:
        base = run->arena;
        break;
    case MLC_WEIGHTS: /* kernels only read what is an input to them */
        base = (char *)(uintptr_t)run->weights;
        break;
    case MLC_INPUT:
        base = run->inputs[operand->index];
        break;
    case MLC_OUTPUT:
        base = run->outputs[operand->index];
        break;
    }
    return base + operand->offset;
}

/* All tasks of one call. The one place that knows how many threads there are: a pool would cut the
 * range [0, tasks) here and give each thread its own workspace. */
static int32_t run_tasks(const mlc_run *run, const mlc_call *call, uint32_t index) {
    void *data[MLC_MAX_OPERANDS];
    for (uint32_t i = 0; i < call->operand_count; i++) data[i] = address(run, &call->operands[i]);
    mlc_args args = {.data = data, .scalars = call->scalars, .workspace = run->workspace};
    return run->mark ? marked(call->kernel, &args, call->tasks, index)
                     : call->kernel(&args, 0, call->tasks);
}

int32_t mlc_execute(const mlc_run *run, uint32_t *failed) {
    if (run->mark) {
        mlc_args nothing = {0};
        marked(empty_kernel, &nothing, 1, MLC_CALIBRATION);
    }
    uint64_t before = run->nanoseconds ? mlc_nanoseconds() : 0;
    for (uint32_t i = 0; i < run->call_count; i++) {
        if (run->progress) *run->progress = i;
        int32_t status = run_tasks(run, &run->calls[i], i);
        if (run->nanoseconds) {
            uint64_t now = mlc_nanoseconds();
            run->nanoseconds[i] = now - before;
            before = now;
        }
        if (status != MLC_OK) {
            *failed = i;
            return status;
        }
    }
    return MLC_OK;
}
