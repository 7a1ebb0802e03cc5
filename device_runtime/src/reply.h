/* The worker's replies, in msgpack as mlc_rpc/wire.py has them: the worker writes them, and the
 * supervisor, which believes nothing of what kernels have had in their hands, checks them. */
#ifndef MLC_REPLY_H
#define MLC_REPLY_H

#include "instruments.h"
#include "msgpack.h"
#include "timer.h"

/* To `run`: {nanoseconds: [uint]}, turns: [uint] where `turns` has them, and spans: [[call, thread,
 * begin, took]] where there are any. */
void reply_times(Writer *w, const uint64_t *nanoseconds, const uint64_t *turns, uint32_t count,
                 const Spans *spans);

/* To `time`. */
void reply_samples(Writer *w, const Samples *samples, uint32_t layers);

/* Whether these bytes are one of the two, and nothing else: the second where samples > 0, and then
 * with so many. */
bool reply_is_right(const uint8_t *reply, size_t size, uint32_t samples);

#endif
