#define _GNU_SOURCE /* syscall() */
#include "auth.h"

#include "record.h"
#include "wire.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Hello ---- */

static bool random_bytes(uint8_t *to, size_t size, Failure *failure) {
    if (syscall(SYS_getrandom, to, size, 0U) == (long)size) return true;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC); /* Linux before 3.17 */
    ssize_t got = fd < 0 ? -1 : read(fd, to, size);
    if (fd >= 0) close(fd);
    if (got == (ssize_t)size) return true;
    return fail(failure, REFUSED, "the board has no source of random numbers");
}

static void put_version(uint8_t *to, uint64_t major, uint64_t minor) {
    for (unsigned i = 0; i < 4; i++) {
        to[i] = (uint8_t)(major >> (24 - 8 * i));
        to[4 + i] = (uint8_t)(minor >> (24 - 8 * i));
    }
}

bool hello_answer(Reader *params, const char *method, Writer *result, Hellos *hellos,
                  Failure *failure) {
    uint8_t *nonce = hellos->bytes + VERSION_BYTES;
    uint64_t major = read_uint(params), minor = read_uint(params);
    Bytes theirs = read_bin(params);
    if (theirs.size != NONCE_BYTES) read_fail(params, "a nonce has 32 bytes");
    if (minor > UINT32_MAX) read_fail(params, "a version is below 2^32");
    if (params->why)
        return fail(failure, PROTOCOL, "%s: a parameter is not as it must be: %s", method,
                    params->why);
    if (major != WIRE_MAJOR)
        return fail(failure, REFUSED,
                    "the client speaks version %llu.%llu of the wire, this runtime %s speaks "
                    "%d.%d; try: the runtime that came with the client",
                    (unsigned long long)major, (unsigned long long)minor, RUNTIME_VERSION,
                    WIRE_MAJOR, WIRE_MINOR);
    put_version(hellos->bytes, major, minor);
    put_version(hellos->bytes + 8, WIRE_MAJOR, WIRE_MINOR);
    memcpy(nonce, theirs.data, NONCE_BYTES);
    if (!random_bytes(nonce + NONCE_BYTES, NONCE_BYTES, failure)) return false;
    write_array(result, 3);
    write_uint(result, WIRE_MAJOR);
    write_uint(result, WIRE_MINOR);
    write_bin(result, nonce + NONCE_BYTES, NONCE_BYTES);
    return true;
}

/* ---- Proof ---- */

/* What the key makes of the hellos for one of four purposes: never the same for two of them, so a
 * proof or a record sent back to its sender proves nothing. */
static void derive(const uint8_t key[KEY_BYTES], const char *purpose, const Hellos *hellos,
                   uint8_t out[HASH_BYTES]) {
    uint8_t label[16] = {0};
    Blake2b mac;
    memcpy(label, purpose, strlen(purpose));
    blake2b_begin_keyed(&mac, key);
    blake2b_add(&mac, label, sizeof label);
    blake2b_add(&mac, hellos->bytes, sizeof hellos->bytes);
    blake2b_end(&mac, out);
    wipe(&mac, sizeof mac);
}

static void auth_answer(Greeting *g, Reader *params, const uint8_t key[KEY_BYTES],
                        Writer *result) {
    uint8_t proof[HASH_BYTES];
    Bytes theirs = read_bin(params);
    if (theirs.size != HASH_BYTES) read_fail(params, "a proof has 32 bytes");
    if (params->why) {
        fail(&g->failure, PROTOCOL, "auth: a parameter is not as it must be: %s", params->why);
        return;
    }
    derive(key, "client proves", &g->hellos, proof);
    g->proven = same_bytes(proof, theirs.data, HASH_BYTES);
    if (g->proven) {
        derive(key, "board proves", &g->hellos, proof);
        write_bin(result, proof, HASH_BYTES);
    } else {
        fail(&g->failure, REFUSED,
             "the client's key is not the board's; try: enroll the board again");
    }
    wipe(proof, sizeof proof);
}

void greeting_keys(const Greeting *g, const uint8_t key[KEY_BYTES], uint8_t in_key[HASH_BYTES],
                   uint8_t out_key[HASH_BYTES]) {
    derive(key, "client sends", &g->hellos, in_key);
    derive(key, "board sends", &g->hellos, out_key);
}

/* ---- Messages ---- */

static void refuse(Greeting *g, bool has_id, uint64_t id) {
    Writer w = writer_to(g->output, sizeof g->output);
    write_array(&w, 4);
    write_uint(&w, 1);
    if (has_id)
        write_uint(&w, id);
    else
        write_nil(&w);
    write_failure(&w, &g->failure);
    write_nil(&w);
    g->output_size = (size_t)(w.at - g->output);
    g->output_sent = 0;
    g->proven = false;
    g->ended = true;
}

static void take_message(Greeting *g, const uint8_t key[KEY_BYTES]) {
    Reader r = reader_of(g->input, g->scan.at);
    Writer w = writer_to(g->output, sizeof g->output);
    uint32_t parts = read_array(&r);
    uint64_t type = read_uint(&r), id = read_uint(&r);
    Bytes method = read_str(&r);
    uint32_t count = read_array(&r);
    bool request = !r.why && parts == 4 && type == 0 && id <= UINT32_MAX;
    write_array(&w, 4);
    write_uint(&w, 1);
    write_uint(&w, id);
    write_nil(&w);
    if (!request)
        fail(&g->failure, PROTOCOL, "what arrived on the stream is not a msgpack-rpc request");
    else if (!g->greeted && bytes_are(method, "hello") && count == 3)
        g->greeted = hello_answer(&r, "hello", &w, &g->hellos, &g->failure);
    else if (g->greeted && bytes_are(method, "auth") && count == 1)
        auth_answer(g, &r, key, &w);
    else
        fail(&g->failure, PROTOCOL, "%s comes first, and nothing else",
             g->greeted ? "auth(proof)" : "hello(major, minor, nonce)");
    g->have -= g->scan.at;
    if (g->have > 0) /* no client can know what to send next */
        fail(&g->failure, PROTOCOL, "more arrived than a greeting");
    if (g->failure.failed) {
        refuse(g, request, id);
        return;
    }
    g->scan = (Scan){0};
    g->output_size = (size_t)(w.at - g->output);
    g->output_sent = 0;
    g->ended = g->proven;
}

/* ---- The stream ---- */

void greeting_begin(Greeting *g) {
    *g = (Greeting){.output_size = sizeof PREAMBLE};
    memcpy(g->output, PREAMBLE, sizeof PREAMBLE);
}

size_t greeting_room(Greeting *g, uint8_t **to) {
    *to = g->input + g->have;
    return g->ended || g->output_sent < g->output_size ? 0 : sizeof g->input - g->have;
}

void greeting_took(Greeting *g, size_t size, const uint8_t key[KEY_BYTES]) {
    g->have += size;
    ScanResult found = scan_message(&g->scan, g->input, g->have);
    if (found == SCAN_DONE) {
        take_message(g, key);
    } else if (found == SCAN_BAD || g->scan.at > sizeof g->input || g->have == sizeof g->input) {
        fail(&g->failure, PROTOCOL, "what arrived on the stream %s",
             found == SCAN_BAD ? g->scan.why : "is longer than 4 KiB");
        refuse(g, false, 0);
    }
}

size_t greeting_output(const Greeting *g, const uint8_t **data) {
    *data = g->output + g->output_sent;
    return g->output_size - g->output_sent;
}

void greeting_sent(Greeting *g, size_t size) { g->output_sent += size; }
