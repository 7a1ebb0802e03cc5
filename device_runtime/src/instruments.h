/* What a run tells of each call while it walks the table: how far it is, how long each call took,
 * and, to QEMU's counting plugin, where each kernel begins and ends. */
#ifndef MLC_INSTRUMENTS_H
#define MLC_INSTRUMENTS_H

#include "pool.h"

#include "../include/mlc_runtime.h"

#include <stdbool.h>
#include <stddef.h>

#define MLC_CALIBRATION UINT32_MAX /* index of the marks around the empty kernel */

enum { MAX_SPANS = 1 << 13 }; /* of a run; what comes later is not told */

/* A thread at work on a call, in nanoseconds since the run began. */
typedef struct {
    uint32_t call, thread;
    uint64_t begin, took;
} Span;

typedef struct {
    Span rows[MAX_SPANS];
    uint32_t count;
    uint64_t origin;              /* when the run began */
    PoolTime threads[MAX_THREADS]; /* of the call at work */
} Spans;

/* The end of a run before its own: right after one of the iterations of a call. */
typedef struct {
    uint32_t call, turn;          /* iterations count from 0, over all loops around the call */
    uint32_t seen;                /* iterations so far */
    bool reached;
    void *data[MLC_MAX_OPERANDS]; /* where the call's operands were then */
} Stop;

typedef struct {
    volatile uint32_t *progress; /* index of the call at work, for whoever watches; may be NULL */
    uint64_t *nanoseconds;       /* per call, which each run adds to; NULL when not wanted */
    uint64_t *turns;             /* likewise: how often the call was at work */
    Spans *spans;                /* likewise */
    Stop *stop;                  /* NULL: the run goes on to its own end */
    bool mark;                   /* put each kernel between two marks; on one thread only */
    uint32_t threads;            /* that share a kernel's tasks, as pool_prepare has them ready */
    size_t workspace_stride;     /* bytes from one thread's workspace to the next one's */
    uint64_t before;             /* when the previous call ended */
} Instruments;

/* Before each run. */
void instruments_begin(Instruments *instruments);

/* The mlc_invoke whose context is an Instruments. Its status is not MLC_OK once a stop is reached. */
int32_t instruments_invoke(void *context, const mlc_call *call, const mlc_args *args,
                           uint32_t index);

/* Seconds that `nanoseconds` adds to each call. */
double instruments_cost(void);

#endif
