#include "instruments.h"

#include "clock.h"
#include "modes.h"
#include "pool.h"

#include <string.h>

enum { MARK_SYSCALL = 4242, MARK_BEGIN = 1, MARK_END = 2 };

/* A system call that no kernel has (it answers ENOSYS) and that the counting plugin sees. Inline,
 * so that the instructions between a mark and the kernel are few and always the same. It says where
 * the stack is, whose place depends on the environment: simulated caches pass it over. */
static inline void mark(uint32_t tag, uint32_t index) {
#if defined(__aarch64__)
    register long number __asm__("x8") = MARK_SYSCALL;
    register long a __asm__("x0") = (long)tag;
    register long b __asm__("x1") = (long)index;
    register long c __asm__("x2") = (long)__builtin_frame_address(0);
    __asm__ volatile("svc 0" : "+r"(a) : "r"(number), "r"(b), "r"(c) : "memory", "cc");
#elif defined(__arm__) /* r7 may be the frame pointer, which cannot be asked for */
    register long a __asm__("r0") = (long)tag;
    register long b __asm__("r1") = (long)index;
    register long c __asm__("r2") = (long)__builtin_frame_address(0);
    register long saved __asm__("r3");
    register long number __asm__("r12") = MARK_SYSCALL;
    __asm__ volatile("mov %1, r7\n\tmov r7, %2\n\tsvc 0\n\tmov r7, %1"
                     : "+r"(a), "=&r"(saved)
                     : "r"(number), "r"(b), "r"(c)
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
    modes_reset();
    return status;
}

void instruments_begin(Instruments *instruments) {
    if (instruments->mark) {
        mlc_args nothing = {0};
        marked(empty_kernel, &nothing, 1, MLC_CALIBRATION);
    }
    instruments->before = instruments->nanoseconds ? mlc_nanoseconds() : 0;
    if (instruments->spans) {
        instruments->spans->count = 0;
        instruments->spans->origin = mlc_nanoseconds();
    }
}

static void add_spans(Spans *spans, uint32_t call, uint32_t threads) {
    for (uint32_t thread = 0; thread < threads && spans->count < MAX_SPANS; thread++) {
        const PoolTime *time = &spans->threads[thread];
        if (time->begin == 0) continue;
        spans->rows[spans->count++] =
            (Span){call, thread, time->begin - spans->origin, time->end - time->begin};
    }
}

/* On one thread. */
static int32_t marked_and_timed(const mlc_call *call, const mlc_args *args, uint32_t index,
                                PoolTime *time) {
    if (time) time->begin = mlc_nanoseconds();
    int32_t status = marked(call->kernel, args, call->tasks, index);
    if (time) time->end = mlc_nanoseconds();
    return status;
}

static int32_t stop_here(Stop *stop, const mlc_call *call, const mlc_args *args) {
    enum { STOPPED = INT32_MIN }; /* nobody looks at it: `reached` says why the walk has ended */
    stop->reached = true;
    memcpy(stop->data, args->data, call->operand_count * sizeof *stop->data);
    return STOPPED;
}

int32_t instruments_invoke(void *context, const mlc_call *call, const mlc_args *args,
                           uint32_t index) {
    Instruments *instruments = context;
    Stop *stop = instruments->stop;
    if (instruments->progress) *instruments->progress = index;
    PoolTime *times = instruments->spans ? instruments->spans->threads : NULL;
    int32_t status = instruments->mark
                         ? marked_and_timed(call, args, index, times)
                         : pool_run(call->kernel, args, call->tasks, instruments->threads,
                                    instruments->workspace_stride, times);
    if (times) add_spans(instruments->spans, index, instruments->threads);
    if (instruments->nanoseconds) {
        if (instruments->turns) instruments->turns[index]++;
        uint64_t now = mlc_nanoseconds();
        instruments->nanoseconds[index] += now - instruments->before;
        instruments->before = now;
    }
    bool here = stop && stop->call == index && status == MLC_OK;
    return here && stop->seen++ == stop->turn ? stop_here(stop, call, args) : status;
}

/* What costs is to look at the clock. The least of several batches, since whatever comes between
 * makes one longer and never shorter. */
double instruments_cost(void) {
    const uint32_t batches = 16, looks = 64;
    uint64_t least = UINT64_MAX;
    for (uint32_t batch = 0; batch < batches; batch++) {
        uint64_t begin = mlc_nanoseconds(), end = begin;
        for (uint32_t i = 0; i < looks; i++) end = mlc_nanoseconds();
        if (end - begin < least) least = end - begin;
    }
    return (double)least / (1e9 * (double)looks);
}
