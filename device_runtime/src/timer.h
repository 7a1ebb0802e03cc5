/* Timing on the board, with the parameters of TVM's time_evaluator. */
#ifndef MLC_TIMER_H
#define MLC_TIMER_H

#include "conditions.h"
#include "failure.h"

#include <stddef.h>

enum { MAX_REPEAT = 10000, MAX_ROWS = 500, MAX_LAYER_TIMES = 1 << 14 };

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

/* What is timed. `calls` of it add nanoseconds to their element of `nanoseconds`; 0: none does. */
typedef struct {
    bool (*run)(void *context);
    void *context;
    uint64_t *nanoseconds;
    uint32_t calls;
} Timed;

typedef struct {
    uint32_t count;
    double seconds[MAX_REPEAT];  /* the mean of number[i] runs */
    uint32_t number[MAX_REPEAT];
    uint32_t each, rows; /* the r-th conditions are those around samples [r * each, (r + 1) * each) */
    Conditions before[MAX_ROWS], after[MAX_ROWS];
    uint64_t layers[MAX_LAYER_TIMES]; /* [count][calls], nanoseconds, means of number[i] runs too */
    double layer_cost;                /* seconds that timing it adds to each of these */
} Samples;

/* Runs unmeasured, once and until min_repeat_ms have passed, then takes options->repeat samples. The
 * number grown for one sample does not carry over to the next, so samples stay comparable. False
 * when a run or the flushing buffer failed. */
bool time_evaluate(const TimerOptions *options, const Timed *timed, Samples *samples,
                   Failure *failure);

#endif
