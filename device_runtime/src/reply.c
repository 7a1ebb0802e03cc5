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

static void write_list(Writer *w, const char *name, const uint64_t *values, uint32_t count) {
    if (!values) return;
    write_str(w, name);
    write_uints(w, values, count);
}

void reply_run(Writer *w, const RunReply *r) {
    write_map(w, (uint32_t)((r->nanoseconds != NULL) + (r->turns != NULL) + (r->spans != NULL) +
                            (r->places != NULL)));
    write_list(w, "nanoseconds", r->nanoseconds, r->calls);
    write_list(w, "turns", r->turns, r->calls);
    if (r->spans) {
        write_str(w, "spans");
        write_spans(w, r->spans);
    }
    write_list(w, "places", r->places, r->place_count);
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
    if (!holds) read_fail(r, "it is not a reply");
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

static uint32_t coming(const Reader *r) { /* elements of the list that is next */
    Reader from = *r;
    return read_array(&from);
}

static void check_run(Reader *r) {
    uint32_t lists = read_map(r), calls = UINT32_MAX;
    for (uint32_t i = 0; i < lists && !r->why; i++) {
        Bytes name = read_str(r);
        uint32_t count = coming(r);
        if (bytes_are(name, "spans")) {
            expect(r, read_array(r) == count && count <= MAX_SPANS);
            for (uint32_t n = 0; n < count && !r->why; n++) check_uints(r, 4);
        } else if (bytes_are(name, "places")) {
            expect(r, count <= MLC_MAX_OPERANDS);
            check_uints(r, count);
        } else {
            expect(r, bytes_are(name, "nanoseconds") || bytes_are(name, "turns"));
            check_uints(r, calls == UINT32_MAX ? count : calls);
            calls = count;
        }
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
    check_uints(r, coming(r));
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
    if (lists > 0) layers = coming(r);
    for (uint32_t i = 0; i < lists && !r->why; i++) check_uints(r, layers);
    expect_text(r, "layer_cost_s");
    expect(r, read_number(r) >= 0);
}

bool reply_is_right(const uint8_t *reply, size_t size, uint32_t samples) {
    Reader r = reader_of(reply, size);
    if (samples > 0)
        check_samples(&r, samples);
    else
        check_run(&r);
    return !r.why && r.at == r.end;
}
