#include "run_order.h"

#include "pool.h"

#include <string.h>

/* An option's value into *to, within [least, most]. */
static void option_uint(Request *q, const char *name, uint64_t least, uint64_t most, uint32_t *to) {
    uint64_t value = read_uint(&q->params);
    if (!q->params.why && (value < least || value > most))
        fail(&q->failure, REFUSED, "%s: %s = %llu, which must be %llu to %llu", q->method, name,
             (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
    *to = (uint32_t)value;
}

static void option_cores(Request *q, char to[MAX_CORES]) {
    Bytes text = read_str(&q->params);
    if (text.size >= MAX_CORES)
        fail(&q->failure, REFUSED, "%s: cores are named in less than %d letters", q->method,
             MAX_CORES);
    else
        memcpy(to, text.data, text.size);
}

static void option_stop(Request *q, RunOrder *run) {
    if (read_array(&q->params) != 2) read_fail(&q->params, "stop is a call and its iteration");
    option_uint(q, "stop", 0, UINT32_MAX, &run->stop_call);
    option_uint(q, "stop", 0, UINT32_MAX, &run->stop_turn);
    run->stops = true;
}

static void option_milliseconds(Request *q, const char *name, double *to) {
    *to = read_number(&q->params);
    if (!(*to >= 0 && *to <= 1e7))
        fail(&q->failure, REFUSED, "%s: %s must be 0 to 10000000 milliseconds", q->method, name);
}

static bool timer_option(Request *q, Bytes key, TimerOptions *t) {
    if (bytes_are(key, "number"))
        option_uint(q, "number", 1, UINT32_MAX, &t->number);
    else if (bytes_are(key, "repeat"))
        option_uint(q, "repeat", 1, MAX_REPEAT, &t->repeat);
    else if (bytes_are(key, "min_repeat_ms"))
        option_milliseconds(q, "min_repeat_ms", &t->min_repeat_ms);
    else if (bytes_are(key, "limit_zero_time_iterations"))
        option_uint(q, "limit_zero_time_iterations", 0, UINT32_MAX, &t->limit_zero_time_iterations);
    else if (bytes_are(key, "cooldown_interval_ms"))
        option_milliseconds(q, "cooldown_interval_ms", &t->cooldown_interval_ms);
    else if (bytes_are(key, "repeats_to_cooldown"))
        option_uint(q, "repeats_to_cooldown", 0, UINT32_MAX, &t->repeats_to_cooldown);
    else if (bytes_are(key, "cache_flush_bytes")) {
        uint32_t bytes = 0;
        option_uint(q, "cache_flush_bytes", 0, 1 << 30, &bytes);
        t->cache_flush_bytes = bytes;
    } else
        return false;
    return true;
}

static void read_options(Request *q, RunOrder *run, uint32_t *timeout_ms) {
    for (uint32_t left = read_map(&q->params); left > 0 && !q->params.why; left--) {
        Bytes key = read_str(&q->params);
        if (bytes_are(key, "timeout_ms"))
            option_uint(q, "timeout_ms", 0, UINT32_MAX, timeout_ms);
        else if (bytes_are(key, "from"))
            option_uint(q, "from", 0, UINT32_MAX, &run->from);
        else if (bytes_are(key, "until"))
            option_uint(q, "until", 0, UINT32_MAX, &run->until);
        else if (bytes_are(key, "threads"))
            option_uint(q, "threads", 1, MAX_THREADS, &run->threads);
        else if (bytes_are(key, "cores"))
            option_cores(q, run->cores);
        else if (bytes_are(key, "mark") && !run->timed)
            run->mark = read_bool(&q->params);
        else if (bytes_are(key, "spans") && !run->timed)
            run->spans = read_bool(&q->params);
        else if (bytes_are(key, "total") && !run->timed)
            run->total = read_bool(&q->params);
        else if (bytes_are(key, "quiet") && !run->timed)
            run->quiet = read_bool(&q->params);
        else if (bytes_are(key, "stop") && !run->timed)
            option_stop(q, run);
        else if (bytes_are(key, "layers") && run->timed)
            run->layers = read_bool(&q->params);
        else if (!(run->timed && timer_option(q, key, &run->timer))) {
            if (!q->params.why)
                fail(&q->failure, REFUSED, "%s has no option '%.*s'", q->method,
                     (int)(key.size < 40 ? key.size : 40), (const char *)key.data);
            return;
        }
    }
}

static bool read_kernel(Request *q, RunOrder *run) {
    run->whole_model = read_nil(&q->params);
    if (run->whole_model) return true;
    Bytes name = read_str(&q->params);
    if (name.size >= sizeof run->kernel)
        return fail(&q->failure, REFUSED, "the module has no kernel with so long a name");
    memcpy(run->kernel, name.data, name.size);
    return true;
}

static void read_args(Request *q, RunOrder *run) {
    run->arg_count = read_array(&q->params);
    if (run->arg_count > MAX_ARGS) {
        fail(&q->failure, REFUSED, "%s: %u arguments; %d are the most", q->method, run->arg_count,
             MAX_ARGS);
        return;
    }
    for (uint32_t i = 0; i < run->arg_count; i++) {
        uint64_t id = read_uint(&q->params);
        if (!q->params.why && tensor_find(id, &q->failure)) run->args[i] = (uint32_t)id;
    }
}

bool read_run_order(Request *q, RunOrder *run, uint32_t *timeout_ms) {
    if (!read_kernel(q, run)) return false;
    read_args(q, run);
    if (q->failure.failed) return false;
    read_options(q, run, timeout_ms);
    if (run->mark && run->threads > 1)
        fail(&q->failure, REFUSED, "%s: instructions are counted on 1 thread, not on %u", q->method,
             run->threads);
    if (run->stops && !run->whole_model)
        fail(&q->failure, REFUSED, "%s: a run stops after a call of a model, not within a kernel",
             q->method);
    return !q->failure.failed && understood(q);
}
