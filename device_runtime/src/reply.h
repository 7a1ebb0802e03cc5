/* The worker's replies, in msgpack as mlc_rpc/wire.py has them: the worker writes them, and the
 * supervisor, which believes nothing of what kernels have had in their hands, checks them. */
#ifndef MLC_REPLY_H
#define MLC_REPLY_H

#include "instruments.h"
#include "msgpack.h"
#include "timer.h"

/* What is told of a run, where it is not NULL. */
typedef struct {
    const uint64_t *nanoseconds, *turns; /* of each of `calls` calls */
    uint32_t calls;
    const Spans *spans;
    const uint64_t *places; /* of the operands of the call that the run stopped after */
    uint32_t place_count;
} RunReply;

/* To `run`: a map of {nanoseconds: [uint], turns: [uint], spans: [[call, thread, begin, took]],
 * places: [uint]}, as far as it is told. */
void reply_run(Writer *w, const RunReply *reply);

/* To `time`. */
void reply_samples(Writer *w, const Samples *samples, uint32_t layers);

/* Whether these bytes are one of the two, and nothing else: the second where samples > 0, and then
 * with so many. */
bool reply_is_right(const uint8_t *reply, size_t size, uint32_t samples);

#endif
