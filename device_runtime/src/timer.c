#define _GNU_SOURCE /* nanosleep, MAP_ANONYMOUS */
#include "timer.h"

#include "clock.h"
#include "instruments.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

const TimerOptions TIMER_DEFAULTS = {.number = 10,
                                     .repeat = 1,
                                     .limit_zero_time_iterations = 100,
                                     .repeats_to_cooldown = 1};

static void rest(double milliseconds) {
    struct timespec left = {.tv_sec = (time_t)(milliseconds / 1e3)};
    left.tv_nsec = (long)((milliseconds - (double)left.tv_sec * 1e3) * 1e6);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* Touching more memory than the caches hold empties them on every machine; flush instructions are
 * privileged or absent on some. 32 bytes is the smallest line among them. */
static void flush_caches(volatile uint8_t *buffer, size_t size) {
    for (size_t i = 0; i < size; i += 32) buffer[i] = (uint8_t)(buffer[i] + 1);
}

/* How many runs would last min_repeat_ms, judged by a sample that did not. */
static uint32_t grown(uint32_t number, double milliseconds, double min_repeat_ms) {
    double golden = (double)number * 1.618 + 1;
    double enough = milliseconds > 0 ? min_repeat_ms / (milliseconds / (double)number) + 1 : 0;
    double most = enough > golden ? enough : golden;
    return most < (double)UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

static bool sample(const TimerOptions *options, const Timed *timed, volatile uint8_t *cache,
                   uint32_t index, Samples *samples) {
    uint32_t runs = options->number, zeros = 0, row = index / samples->each;
    bool first = index % samples->each == 0;
    bool last = (index + 1) % samples->each == 0 || index + 1 == options->repeat;
    for (;;) {
        for (uint32_t i = 0; i < timed->calls; i++) timed->nanoseconds[i] = 0;
        flush_caches(cache, (size_t)options->cache_flush_bytes);
        if (first) conditions_read(&samples->before[row], true);
        uint64_t start = mlc_nanoseconds();
        for (uint32_t i = 0; i < runs; i++)
            if (!timed->run(timed->context)) return false;
        uint64_t took = mlc_nanoseconds() - start;
        if (last) conditions_read(&samples->after[row], false);
        double milliseconds = (double)took / 1e6;
        samples->seconds[index] = milliseconds / 1e3 / (double)runs;
        samples->number[index] = runs;
        if (took == 0) zeros++;
        bool hopeless = zeros > 0 && zeros >= options->limit_zero_time_iterations;
        if (milliseconds >= options->min_repeat_ms || hopeless || runs == UINT32_MAX) break;
        runs = grown(runs, milliseconds, options->min_repeat_ms);
    }
    for (uint32_t i = 0; i < timed->calls; i++)
        samples->layers[index * timed->calls + i] = timed->nanoseconds[i] / runs;
    return true;
}

/* Faults pages in, fills caches, and lets the clock rise to where it stays. */
static bool warm_up(const TimerOptions *options, const Timed *timed) {
    uint64_t begin = mlc_nanoseconds();
    do {
        if (!timed->run(timed->context)) return false;
    } while ((double)(mlc_nanoseconds() - begin) < options->min_repeat_ms * 1e6);
    return true;
}

bool time_evaluate(const TimerOptions *options, const Timed *timed, Samples *samples,
                   Failure *failure) {
    size_t size = (size_t)options->cache_flush_bytes;
    void *cache = NULL;
    if ((uint64_t)options->repeat * timed->calls > MAX_LAYER_TIMES)
        return fail(failure, REFUSED,
                    "time: %u samples of each of %u layers; %d are the most in all",
                    options->repeat, timed->calls, MAX_LAYER_TIMES);
    if (size > 0) {
        cache = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (cache == MAP_FAILED)
            return fail(failure, MEMORY,
                        "no memory for cache_flush_bytes = %zu; try: a few times the size of the "
                        "board's last cache",
                        size);
    }
    samples->count = options->repeat;
    samples->each = (options->repeat + MAX_ROWS - 1) / MAX_ROWS;
    samples->rows = (options->repeat + samples->each - 1) / samples->each;
    samples->layer_cost = timed->calls > 0 ? instruments_cost() : 0;
    bool ok = warm_up(options, timed);
    for (uint32_t i = 0; ok && i < options->repeat; i++) {
        ok = sample(options, timed, cache, i, samples);
        uint32_t turn = options->repeats_to_cooldown;
        bool tired = turn > 0 && (i + 1) % turn == 0;
        if (ok && tired && options->cooldown_interval_ms > 0 && i + 1 < options->repeat)
            rest(options->cooldown_interval_ms);
    }
    if (cache) munmap(cache, size);
    return ok;
}
