/* Fuzzes what a stream can reach in the supervisor: the msgpack scanner and reader, the dispatcher
 * and every method, on a stream in memory with no worker. Every response must be one whole msgpack
 * object.
 *
 * With libFuzzer, LLVMFuzzerTestOneInput takes a stream. Alone (MLC_FUZZ_MAIN), `fuzz_wire RUNS
 * [SEED]` mutates valid requests by its own deterministic generator, which any compiler builds. */
#include "../src/module.h"
#include "../src/reply.h"
#include "../src/serve.h"

#include "../src/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

/* A board of 16 MiB, so that no tensor costs much time. The Makefile renames the system's own. */
int sysinfo(struct sysinfo *info) {
    *info = (struct sysinfo){.totalram = 16 << 20, .mem_unit = 1};
    return 0;
}

/* ---- The worker, stubbed ---- */

ModuleRecord module_records[MAX_MODULES];
static bool busy, follows;
static uint8_t reply[64];

bool link_busy(void) { return busy; }

uint32_t link_box(void) { return 0; }

static uint32_t last_module;

bool link_load(ModuleRecord *module, Failure *failure) {
    last_module = module->id;
    (void)failure;
    return busy = true;
}

bool link_run(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms, Failure *failure) {
    (void)module;
    (void)timeout_ms;
    (void)failure;
    if (run->arg_count > MAX_ARGS || run->timer.repeat > MAX_REPEAT) abort();
    return busy = true;
}

void link_follow(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms) {
    Failure failure = {0};
    if (!busy || follows) abort();
    follows = link_run(module, run, timeout_ms, &failure);
}

void link_end(void) { busy = follows = false; }

void link_drop_module(ModuleRecord *module) { module->in_worker = false; }

void link_tidy(void) {
    for (unsigned i = 0; i < MAX_TENSORS; i++)
        if (tensor_slot(i) && tensor_slot(i)->freed) tensor_remove(tensor_slot(i));
}

const uint8_t *link_reply(void) { return reply; }

const TimerOptions TIMER_DEFAULTS = {.number = 1, .repeat = 1};

/* ---- One session ---- */

static uint64_t state = 1;

static uint32_t chance(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static void expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_wire: %s\n", what);
    abort();
}

/* Takes what the session sends; responses that fit are checked to be one whole object. */
static void drain(Session *s, bool preamble) {
    static uint8_t sent[1 << 18];
    struct iovec parts[2];
    size_t size = 0;
    bool fits = true;
    while (session_output(s, parts)) {
        size_t total = parts[0].iov_len + parts[1].iov_len;
        size_t now = total > 3 && chance(4) == 0 ? total / 2 : total;
        bool last = now == total;
        for (size_t i = 0, from = 0; i < now; i++) {
            bool head = i < parts[0].iov_len;
            from = head ? i : i - parts[0].iov_len;
            uint8_t byte = ((const uint8_t *)parts[head ? 0 : 1].iov_base)[from];
            fits = fits && size < sizeof sent;
            if (fits) sent[size++] = byte;
        }
        Scan scan = {0};
        if (last && fits && !preamble)
            expect(scan_message(&scan, sent, size) == SCAN_DONE && scan.at == size,
                   "a response is not one msgpack object");
        if (last) {
            size = 0;
            fits = true;
            preamble = false;
        }
        session_sent(s, now);
    }
}

static void answer(Session *s) {
    Answer a = {.image = 4096};
    if (!busy) return;
    busy = follows && chance(4) > 0;
    follows = false;
    switch (chance(4)) {
    case 0:
        fail(&a.failure, CRASHED, "SIGSEGV in kernel '\xff\xfe'");
        a.failure.placed = true;
        memset(a.failure.place.kernel, 0xc3, sizeof a.failure.place.kernel - 1);
        break;
    case 1:
        a.arena = (uint64_t)chance(1 << 30) << chance(34);
        break;
    default:
        a.arena = chance(4096);
    }
    a.reply = chance(sizeof reply);
    for (size_t i = 0; i < sizeof reply; i++) reply[i] = (uint8_t)chance(256);
    if (chance(2) == 0) {
        static const uint64_t times[] = {1, 300, 70000};
        Writer w = writer_to(reply, sizeof reply);
        static Spans spans;
        spans.count = chance(4);
        for (uint32_t i = 0; i < spans.count; i++)
            spans.rows[i] = (Span){chance(300), chance(MAX_THREADS), times[i], times[i]};
        const RunReply told = {.nanoseconds = chance(4) > 0 ? times : NULL,
                               .turns = chance(2) == 0 ? times : NULL,
                               .calls = chance(4),
                               .spans = chance(2) == 0 ? &spans : NULL,
                               .places = chance(2) == 0 ? times : NULL,
                               .place_count = chance(4)};
        reply_run(&w, &told);
        a.reply = (size_t)(w.at - reply);
        if (chance(4) == 0) reply[chance((uint32_t)a.reply)] ^= (uint8_t)(1 << chance(8));
    }
    session_answer(s, &a);
    drain(s, false);
}

static void clean_up(void) {
    busy = follows = false;
    for (unsigned i = 0; i < MAX_TENSORS; i++)
        if (tensor_slot(i)) tensor_remove(tensor_slot(i));
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blob_slot(i)) blob_free(blob_slot(i));
    memset(module_records, 0, sizeof module_records);
}

static void begin(Session *s) {
    clean_up();
    session_begin(s, METHODS, false);
    drain(s, true);
}

static void play(Session *s, const uint8_t *data, size_t size) {
    uint8_t *to;
    size_t room;
    while (size > 0 && session_room(s, &to, &room)) {
        size_t step = chance(3) == 0 ? 1 + chance(16) : room;
        if (step > room) step = room;
        if (step > size) step = size;
        memcpy(to, data, step);
        data += step;
        size -= step;
        session_took(s, step);
        drain(s, false);
        if (chance(2) == 0) answer(s);
        if (chance(2) == 0 && session_work(s)) drain(s, false);
    }
    expect(size == 0 || s->ended, "a session stopped reading");
}

static Session session;

/* Ids do not come back within a process, so an input cannot know them: "TEN" and "MOD" in a uint32,
 * and then the number of the tensor or module in its session, stand for them. */
static void set_ids(uint8_t *data, size_t size) {
    const TensorType type = {.dtype = UINT8};
    Failure failure = {0};
    Tensor *probe = tensor_new(&type, &failure);
    expect(probe != NULL, "no tensor");
    uint32_t tensor = probe->id;
    tensor_remove(probe);
    for (size_t at = 0; at + 5 <= size; at++) {
        bool is_tensor = memcmp(data + at, "\xceTEN", 4) == 0;
        if (!is_tensor && memcmp(data + at, "\xceMOD", 4) != 0) continue;
        uint32_t number = data[at + 4] % 8u; /* its slot too: nothing was freed before */
        uint32_t first = is_tensor ? tensor : last_module / MAX_MODULES * MAX_MODULES;
        uint32_t id = first + (number + 1) * (is_tensor ? MAX_TENSORS : MAX_MODULES) + number;
        for (unsigned i = 0; i < 4; i++) data[at + 1 + i] = (uint8_t)(id >> (24 - 8 * i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t stream[1 << 16];
    if (size > sizeof stream) return 0;
    state = 0x9e3779b97f4a7c15 ^ size;
    begin(&session);
    if (size > 0) memcpy(stream, data, size);
    set_ids(stream, size);
    play(&session, stream, size);
    return 0;
}

#ifdef MLC_FUZZ_MAIN

/* ---- Valid requests ---- */

static uint8_t blob_hash[HASH_BYTES];
static const char blob_text[] = "not an object, but a blob like any other";

/* Ids that exist, most of the time. */
static uint32_t some_tensor(void) {
    for (unsigned i = chance(3); i < 3; i++)
        if (tensor_slot(i)) return tensor_slot(i)->id;
    return 1024 + chance(2);
}

static uint32_t some_module(void) {
    for (unsigned i = chance(2); i < 2; i++)
        if (module_records[i].id) return module_records[i].id;
    return 256 + chance(2);
}

static void write_params(Writer *w, const char *method) {
    static uint8_t bulk[4096];
    uint32_t tensor = some_tensor(), module = some_module();
    bool random = chance(2) == 0;
    if (strcmp(method, "hello") == 0) {
        write_array(w, 3);
        write_uint(w, WIRE_MAJOR);
        write_uint(w, 0);
        write_bin(w, bulk, 32);
    } else if (strcmp(method, "auth") == 0) {
        write_array(w, 1);
        write_bin(w, bulk, 32);
    } else if (strcmp(method, "heartbeat") == 0) {
        write_array(w, 1);
        write_uint(w, chance(1 << 20));
    } else if (strcmp(method, "describe") == 0) {
        write_array(w, 0);
    } else if (strcmp(method, "ping") == 0) {
        write_array(w, 1);
        write_map(w, 1);
        write_str(w, "payload");
        write_array(w, 3);
        write_double(w, 1.5);
        write_bool(w, true);
        write_bin(w, bulk, chance(300));
    } else if (strcmp(method, "tensor.new") == 0) {
        write_array(w, 2);
        write_str(w, random ? "float32" : "bfloat16");
        write_array(w, 2);
        write_uint(w, chance(100));
        write_uint(w, random ? 3 : 100000);
    } else if (strcmp(method, "tensor.write") == 0) {
        write_array(w, 3);
        write_uint(w, tensor);
        write_uint(w, chance(100));
        write_bin(w, bulk, chance(sizeof bulk));
    } else if (strcmp(method, "tensor.read") == 0) {
        write_array(w, 3);
        write_uint(w, tensor);
        write_uint(w, chance(100));
        write_uint(w, chance(1000));
    } else if (strcmp(method, "tensor.fill") == 0) {
        write_array(w, 3);
        write_uint(w, tensor);
        write_str(w, random ? "random" : "zero");
        write_uint(w, chance(1000));
    } else if (strcmp(method, "tensor.free") == 0 || strcmp(method, "module.free") == 0) {
        write_array(w, 1);
        write_uint(w, method[0] == 't' ? tensor : module);
    } else if (strcmp(method, "blob.has") == 0 || strcmp(method, "blob.free") == 0) {
        write_array(w, 1);
        write_bin(w, blob_hash, HASH_BYTES);
    } else if (strcmp(method, "blob.put") == 0) {
        write_array(w, 4);
        write_bin(w, blob_hash, HASH_BYTES);
        write_uint(w, sizeof blob_text);
        write_uint(w, 0);
        write_bin(w, blob_text, sizeof blob_text);
    } else if (strcmp(method, "blob.get") == 0) {
        write_array(w, 3);
        write_bin(w, blob_hash, HASH_BYTES);
        write_uint(w, chance(10));
        write_uint(w, 10);
    } else if (strcmp(method, "module.load") == 0) {
        write_array(w, 2);
        write_bin(w, blob_hash, HASH_BYTES);
        if (random)
            write_nil(w);
        else
            write_bin(w, blob_hash, HASH_BYTES);
    } else { /* run, time */
        write_array(w, 4);
        write_uint(w, module);
        if (random)
            write_nil(w);
        else
            write_str(w, "kernel");
        write_array(w, 1);
        write_uint(w, tensor);
        bool timed = method[0] == 't';
        write_map(w, timed ? 4 : 6);
        if (!timed) {
            write_str(w, "quiet");
            write_bool(w, chance(2) == 0);
            write_str(w, "stop");
            write_array(w, 2);
            write_uint(w, chance(4));
            write_uint(w, chance(4));
        }
        write_str(w, "timeout_ms");
        write_uint(w, 100);
        write_str(w, "from");
        write_uint(w, 1);
        write_str(w, "threads");
        write_uint(w, 1);
        write_str(w, timed ? "min_repeat_ms" : "until");
        write_uint(w, 3);
    }
}

static const char *const CALLS[] = {
    "hello",       "auth",      "heartbeat", "describe", "ping",     "tensor.new", "tensor.write", "tensor.read",
    "tensor.fill", "blob.put",  "blob.has", "blob.get",   "module.load",  "run",
    "time",        "blob.free", "tensor.free", "module.free", "tensor.descriptor"};

static void write_request(Writer *w, const char *method) {
    if (chance(20) == 0) { /* a notification */
        write_array(w, 3);
        write_uint(w, 2);
    } else {
        write_array(w, 4);
        write_uint(w, 0);
        write_uint(w, chance(1000));
    }
    write_str(w, method);
    write_params(w, method);
}

/* ---- Mutation ---- */

static size_t mutate(uint8_t *data, size_t size, size_t room) {
    static const uint8_t odd[] = {0x00, 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xc4, 0xc6, 0xc7, 0xc9,
                                  0xcb, 0xcd, 0xcf, 0xd3, 0xd8, 0xdb, 0xdc, 0xdd, 0xdf, 0xff};
    for (uint32_t times = 1 + chance(4); times > 0 && size > 8; times--) {
        size_t at = chance((uint32_t)size), length = 1 + chance(8);
        if (length > size - at) length = size - at;
        switch (chance(6)) {
        case 0:
            data[at] ^= (uint8_t)(1 << chance(8));
            break;
        case 1:
            data[at] = odd[chance(sizeof odd)];
            break;
        case 2: /* a number, or a length, of all ones */
            memset(data + at, chance(2) ? 0xff : 0x00, length);
            break;
        case 3:
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        case 4: /* repeat */
            if (size + length > room) break;
            memmove(data + at + length, data + at, size - at);
            size += length;
            break;
        default:
            memmove(data + chance((uint32_t)(size - length)), data + at, length);
        }
    }
    return size;
}

/* A few valid requests, so that there is something to ask for, and mutated ones. Returns whether the
 * session goes on. */
static bool mutated_session(void) {
    static const char *const first[] = {"hello", "tensor.new", "blob.put", "module.load"};
    static uint8_t stream[1 << 14];
    uint32_t valid = chance(12), requests = valid + 1 + chance(3);
    begin(&session);
    for (uint32_t i = 0; i < requests; i++) {
        Writer w = writer_to(stream, sizeof stream);
        bool opening = i < 4 && chance(20) > 0;
        write_request(&w, opening ? first[i] : CALLS[chance(sizeof CALLS / sizeof *CALLS)]);
        expect(!w.full, "the stream is too long");
        size_t size = (size_t)(w.at - stream);
        if (i >= valid) size = mutate(stream, size, sizeof stream);
        play(&session, stream, size);
    }
    return !session.ended;
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 10000, accepted = 0;
    Blake2b b;
    if (argc > 2) state = strtoull(argv[2], NULL, 10) | 1;
    blake2b_begin(&b);
    blake2b_add(&b, blob_text, sizeof blob_text);
    blake2b_end(&b, blob_hash);
    for (long i = 0; i < runs; i++) accepted += mutated_session();
    printf("%ld mutated sessions, %ld of them accepted: no finding\n", runs, accepted);
    return 0;
}

#endif
