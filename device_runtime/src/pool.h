/* Threads that carry out the tasks of a kernel together. They are made when they are first wanted
 * and then kept: one with nothing to do spins for a moment, in which the next kernel mostly comes,
 * and then sleeps. */
#ifndef MLC_POOL_H
#define MLC_POOL_H

#include "failure.h"

#include "../include/mlc_abi.h"

enum { MAX_THREADS = 256 };

typedef struct {
    uint64_t begin, end; /* as mlc_nanoseconds has it; both 0 for a thread that had nothing to do */
} PoolTime;

/* Looks at which cores there are; before the others, and before the rights are given up that this
 * takes. */
void pool_look(void);

/* Has `threads` of them ready, the caller included, 1 to MAX_THREADS, on the cores that are named as
 * cores_named has it; for "", on the fast ones while those suffice. The caller is always the same
 * thread, and no kernel is at work. */
bool pool_prepare(uint32_t threads, const char *cores, Failure *failure);

/* kernel(args, 0, tasks) in pieces, by as many threads as were prepared. The t-th one's workspace
 * begins t * workspace_stride bytes after args->workspace. Returns MLC_OK, or a status that one of
 * the pieces returned. Which thread takes which piece is chance; tasks depend on neither. Where
 * `times` is not NULL, it has room for each thread, and says when each was at work. */
int32_t pool_run(mlc_kernel *kernel, const mlc_args *args, int32_t tasks, uint32_t threads,
                 size_t workspace_stride, PoolTime *times);

/* Whether the threads are on that core. */
bool pool_uses(unsigned core);

#endif
