/* The executor: walks a call table. Needs nothing but the C library and allocates nothing, so that
 * a program that embeds a model links this file alone. */
#ifndef MLC_EXECUTE_H
#define MLC_EXECUTE_H

#include "../include/mlc_abi.h"

#include <stdbool.h>
#include <stddef.h>

enum { MLC_MAX_OPERANDS = 64 };

#define MLC_CALIBRATION UINT32_MAX /* index of the marks around the empty kernel */

typedef struct {
    enum mlc_space space;
    uint32_t index; /* which input or output */
    size_t offset;  /* bytes */
} mlc_operand;

typedef struct {
    mlc_kernel *kernel;
    const mlc_operand *operands;
    uint32_t operand_count; /* at most MLC_MAX_OPERANDS */
    int32_t tasks;
    const int64_t *scalars; /* NULL when the kernel has none */
} mlc_call;

typedef struct {
    const mlc_call *calls;
    uint32_t call_count; /* walk the first so many */
    void *arena;
    const void *weights;
    void *const *inputs;
    void *const *outputs;
    void *workspace;             /* as large as the largest that a kernel asks for */
    volatile uint32_t *progress; /* index of the call at work, for whoever watches; may be NULL */
    uint64_t *nanoseconds;       /* per call; NULL when not wanted */
    bool mark;                   /* put each kernel between two marks for QEMU's counting plugin */
} mlc_run;

/* Returns 0, or the status of the first kernel that gave another one, with *failed its call. */
int32_t mlc_execute(const mlc_run *run, uint32_t *failed);

uint64_t mlc_nanoseconds(void); /* since some moment, by the clock that nothing adjusts */

#endif
