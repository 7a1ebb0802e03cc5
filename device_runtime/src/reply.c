#define _GNU_SOURCE /* CPU_SETSIZE */
#include "reply.h"

#include "pool.h"

#include <sched.h>

/* ---- Writing ---- */

static void write_uints(Writer *w, const uint64_t *values, uint32_t count) {
    write_array(w, count);
    for (uint32_t i = 0; i < count; i++) write_uint(w, values[i]);
}

static void write_spans(Writer *w, const Spans *spans) {
    write_array(w, spans->count);
    for (uint32_t i = 0; i < spans->count; i++) {
        const Span *span = &spans->rows[i];
        const uint64_t row[4] = {span->call, span->thread, span->begin, span->took};
        write_uints(w, row, 4);
    }
}

void reply_times(Writer *w, const uint64_t *nanoseconds, const uint64_t *turns, uint32_t count,
                 const Spans *spans) {
    uint32_t lists = 1;
    if (turns) lists++;
    if (spans) lists++;
    write_map(w, lists);
    write_str(w, "nanoseconds");
    write_uints(w, nanoseconds, count);
    if (turns) {
        write_str(w, "turns");
        write_uints(w, turns, count);
    }
    if (spans) {
        write_str(w, "spans");
        write_spans(w, spans);
    }
}

static void write_conditions(Writer *w, const Conditions *conditions, uint32_t rows) {
    write_array(w, rows);
    for (uint32_t r = 0; r < rows; r++) {
        write_array(w, FACTS);
        for (uint32_t i = 0; i < FACTS; i++) {
            int64_t fact = conditions[r].facts[i];
            if (fact < 0)
                write_nil(w);
            else
                write_uint(w, (uint64_t)fact);
        }
    }
}

static void write_cores(Writer *w) {
    uint32_t count = 0;
    for (unsigned i = 0; i < CPU_SETSIZE; i++) count += pool_uses(i);
    write_array(w, count);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (pool_uses(i)) write_uint(w, i);
}

void reply_samples(Writer *w, const Samples *s, uint32_t layers) {
    write_map(w, 9);
    write_str(w, "samples");
    write_array(w, s->count);
    for (uint32_t i = 0; i < s->count; i++) write_double(w, s->seconds[i]);
    write_str(w, "number");
    write_array(w, s->count);
    for (uint32_t i = 0; i < s->count; i++) write_uint(w, s->number[i]);
    write_str(w, "cores");
    write_cores(w);
    write_str(w, "facts");
    write_array(w, FACTS);
    for (uint32_t i = 0; i < FACTS; i++) write_str(w, conditions_name(i));
    write_str(w, "each");
    write_uint(w, s->each);
    write_str(w, "before");
    write_conditions(w, s->before, s->rows);
    write_str(w, "after");
    write_conditions(w, s->after, s->rows);
    write_str(w, "layers");
    write_array(w, layers > 0 ? s->count : 0);
    for (uint32_t i = 0; layers > 0 && i < s->count; i++)
        write_uints(w, s->layers + i * layers, layers);
    write_str(w, "layer_cost_s");
    write_double(w, s->layer_cost);
}

/* ---- Checking, in the same order ---- */

static void expect(Reader *r, bool holds) {
    if (!holds) read_fail(r, "it is no reply");
}

static void expect_text(Reader *r, const char *text) { expect(r, bytes_are(read_str(r), text)); }

static void check_uints(Reader *r, uint32_t count) {
    expect(r, read_array(r) == count);
    for (uint32_t i = 0; i < count && !r->why; i++) read_uint(r);
}

static void check_conditions(Reader *r, const char *name, uint32_t rows) {
    expect_text(r, name);
    expect(r, read_array(r) == rows);
    for (uint32_t row = 0; row < rows && !r->why; row++) {
        expect(r, read_array(r) == FACTS);
        for (uint32_t i = 0; i < FACTS && !r->why; i++)
            if (!read_nil(r)) read_uint(r);
    }
}

static void check_times(Reader *r) {
    uint32_t lists = read_map(r);
    expect(r, lists >= 1 && lists <= 3);
    expect_text(r, "nanoseconds");
    Reader from = *r;
    uint32_t calls = read_array(&from);
    check_uints(r, calls);
    for (uint32_t i = 1; i < lists && !r->why; i++) {
        Bytes name = read_str(r);
        if (bytes_are(name, "turns")) {
            check_uints(r, calls);
            continue;
        }
        expect(r, bytes_are(name, "spans"));
        uint32_t spans = read_array(r);
        expect(r, spans <= MAX_SPANS);
        for (uint32_t n = 0; n < spans && !r->why; n++) check_uints(r, 4);
    }
}

static void check_samples(Reader *r, uint32_t samples) {
    expect(r, read_map(r) == 9);
    expect_text(r, "samples");
    expect(r, read_array(r) == samples);
    for (uint32_t i = 0; i < samples && !r->why; i++) expect(r, read_number(r) >= 0);
    expect_text(r, "number");
    check_uints(r, samples);
    expect_text(r, "cores");
    Reader from = *r;
    check_uints(r, read_array(&from));
    expect_text(r, "facts");
    expect(r, read_array(r) == FACTS);
    for (uint32_t i = 0; i < FACTS; i++) expect_text(r, conditions_name(i));
    expect_text(r, "each");
    uint64_t each = read_uint(r);
    expect(r, each > 0 && each <= samples);
    uint32_t rows = r->why ? 0 : (uint32_t)((samples + each - 1) / each);
    check_conditions(r, "before", rows);
    check_conditions(r, "after", rows);
    expect_text(r, "layers");
    uint32_t lists = read_array(r), layers = 0;
    expect(r, lists == 0 || lists == samples);
    from = *r;
    if (lists > 0) layers = read_array(&from);
    for (uint32_t i = 0; i < lists && !r->why; i++) check_uints(r, layers);
    expect_text(r, "layer_cost_s");
    expect(r, read_number(r) >= 0);
}

bool reply_is_right(const uint8_t *reply, size_t size, uint32_t samples) {
    Reader r = reader_of(reply, size);
    if (samples > 0)
        check_samples(&r, samples);
    else
        check_times(&r);
    return !r.why && r.at == r.end;
}
