/* Timing on the board, with the parameters of TVM's time_evaluator. */
#ifndef MLC_TIMER_H
#define MLC_TIMER_H

#include "failure.h"

#include <stddef.h>

enum { MAX_REPEAT = 10000 };

typedef struct {
    uint32_t number;       /* runs per sample, at first */
    uint32_t repeat;       /* samples; at most MAX_REPEAT */
    double min_repeat_ms;  /* a sample that is shorter is taken again with a larger number */
    uint32_t limit_zero_time_iterations; /* give up growing after so many samples of zero time */
    double cooldown_interval_ms;         /* rest this long ... */
    uint32_t repeats_to_cooldown;        /* ... after so many samples */
    uint64_t cache_flush_bytes; /* touch so many bytes before each sample, to empty the caches */
} TimerOptions;

extern const TimerOptions TIMER_DEFAULTS;

/* Runs `run(context)` once unmeasured, then takes options->repeat samples: seconds[i] is the mean
 * of number[i] runs. The number grown for one sample does not carry over to the next, so samples
 * stay comparable. False when a run or the flushing buffer failed. */
bool time_evaluate(const TimerOptions *options, bool (*run)(void *context), void *context,
                   double *seconds, uint32_t *number, Failure *failure);

#endif
