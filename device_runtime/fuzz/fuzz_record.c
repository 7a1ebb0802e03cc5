/* Fuzzes what a stranger on TCP can reach: the greetings before a proof; and, with the tags not
 * checked, the record layer below a session. Built with MLC_FUZZ_WITHOUT_TAGS.
 *
 * With libFuzzer, LLVMFuzzerTestOneInput takes a stream: its first byte chooses which of the two.
 * Alone (MLC_FUZZ_MAIN), `fuzz_record RUNS [SEED]` mutates valid streams by its own deterministic
 * generator. */
#include "../src/auth.h"
#include "../src/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

static uint32_t chance(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static void expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_record: %s\n", what);
    abort();
}

/* ---- Greetings ---- */

static const uint8_t KEY[KEY_BYTES] = {1, 2, 3};

/* Returns whether hello was accepted. A proof never is: no mutation knows the key. */
static bool greet(const uint8_t *data, size_t size) {
    static Greeting g;
    uint8_t *to;
    const uint8_t *out;
    greeting_begin(&g);
    for (bool preamble = true;; preamble = false) {
        size_t room = greeting_output(&g, &out);
        Scan scan = {0};
        if (room > 0 && !preamble)
            expect(scan_message(&scan, out, room) == SCAN_DONE && scan.at == room,
                   "an answer is not one msgpack object");
        while (room > 0) {
            greeting_sent(&g, 1 + chance((uint32_t)room));
            room = greeting_output(&g, &out);
        }
        room = greeting_room(&g, &to);
        if (room == 0 || size == 0) break;
        size_t step = 1 + chance(64) * chance(64);
        if (step > room) step = room;
        if (step > size) step = size;
        memcpy(to, data, step);
        data += step;
        size -= step;
        greeting_took(&g, step, KEY);
    }
    expect(!g.proven, "a proof without the key");
    expect(size == 0 || g.ended, "greetings stopped without an end");
    expect(!g.ended || g.failure.failed, "an end without a reason");
    return g.greeted;
}

/* ---- Records ---- */

/* Returns the payload's bytes; what went in must come out, in order. */
static size_t open_records(const uint8_t *data, size_t size) {
    static Records r;
    uint8_t *to;
    const uint8_t *payload;
    size_t total = 0, part;
    records_begin(&r, KEY, KEY);
    while (size > 0 && !r.why) {
        size_t room = records_room(&r, &to);
        expect(room > 0, "no room for the rest of a record");
        size_t step = 1 + chance(1 << chance(18));
        if (step > room) step = room;
        if (step > size) step = size;
        memcpy(to, data, step);
        data += step;
        size -= step;
        records_took(&r, step);
        while ((part = records_payload(&r, &payload)) > 0) {
            uint64_t sum = 0;
            expect(part <= MAX_RECORD, "a payload larger than a record");
            for (size_t i = 0; i < part; i++) sum += payload[i];
            state += sum;
            size_t some = 1 + chance((uint32_t)part);
            records_used(&r, some);
            total += some;
        }
    }
    return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    state = 0x9e3779b97f4a7c15 ^ size;
    if (size == 0) return 0;
    if (data[0] & 1)
        greet(data + 1, size - 1);
    else
        open_records(data + 1, size - 1);
    return 0;
}

#ifdef MLC_FUZZ_MAIN

static size_t mutate(uint8_t *data, size_t size) {
    for (uint32_t times = chance(4); times > 0; times--) {
        size_t at = chance((uint32_t)size), length = chance(9);
        if (length > size - at) length = size - at;
        switch (chance(3)) {
        case 0:
            data[at] = (uint8_t)chance(256);
            break;
        case 1:
            memset(data + at, chance(2) ? 0xff : 0, length);
            break;
        default:
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
        }
    }
    return size;
}

static bool mutated_greeting(void) {
    static uint8_t stream[6000];
    const uint8_t proof[NONCE_BYTES] = {0};
    Writer w = writer_to(stream, sizeof stream);
    size_t hello = 0;
    for (int i = 0; i < 2; i++) {
        write_array(&w, 4);
        write_uint(&w, 0);
        write_uint(&w, chance(1000));
        write_str(&w, i == 0 ? "hello" : "auth");
        write_array(&w, i == 0 ? 3 : 1);
        if (i == 0) {
            write_uint(&w, 1);
            write_uint(&w, chance(9));
        }
        write_bin(&w, proof, sizeof proof);
        if (i == 0) hello = (size_t)(w.at - stream);
    }
    if (chance(10) == 0) w.at += chance((uint32_t)(w.end - w.at));
    size_t size = mutate(stream, (size_t)(w.at - stream));
    /* A hello alone is what a client sends first: both together are one too many. */
    if (chance(2) == 0 && size > hello) size = hello;
    return greet(stream, size);
}

static bool mutated_records(void) {
    static uint8_t stream[1 << 18], body[1 << 17];
    static Records sealer;
    size_t size = 0;
    records_begin(&sealer, KEY, KEY);
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t *out;
        size_t some = chance(1 << chance(18)) % (MAX_RECORD / 2) + 1;
        struct iovec parts[2] = {{body, some}, {body + some, chance(2) ? some : 0}};
        expect(records_seal(&sealer, parts) == parts[0].iov_len + parts[1].iov_len,
               "not all of it was sealed");
        size_t part = records_output(&sealer, &out);
        memcpy(stream + size, out, part);
        records_sent(&sealer, part);
        expect(records_output(&sealer, &out) == 0, "a record is left");
        size += part;
    }
    size_t total = size - (size_t)3 * RECORD_HEAD;
    if (chance(4) == 0) return open_records(stream, size) == total;
    return open_records(stream, mutate(stream, size)) == total;
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 10000, greeted = 0, whole = 0;
    if (argc > 2) state = strtoull(argv[2], NULL, 10) | 1;
    for (long i = 0; i < runs; i++) {
        greeted += mutated_greeting();
        whole += mutated_records();
    }
    expect(whole > runs / 5 || runs < 1000, "whole streams do not come through");
    printf("%ld greetings and %ld streams of records, %ld of them accepted: no finding\n", runs,
           runs, greeted);
    return 0;
}

#endif
