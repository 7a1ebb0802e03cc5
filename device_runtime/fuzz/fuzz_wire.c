/* Fuzzes what a stream can reach in the supervisor: the msgpack scanner and reader, the dispatcher
 * and every method, on a stream in memory with no worker; and the parser of a module's metadata.
 * Every response must be one whole msgpack object.
 *
 * With libFuzzer, LLVMFuzzerTestOneInput takes a stream. Alone, `fuzz_wire RUNS [SEED]` mutates
 * valid requests and metadata by its own deterministic generator, which any compiler builds. */
#include "../src/module.h"
#include "../src/session.h"

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
static bool busy;
static uint8_t reply[64];

bool link_busy(void) { return busy; }

bool link_load(ModuleRecord *module, Failure *failure) {
    (void)module;
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
    busy = false;
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
    session_answer(s, &a);
    drain(s, false);
}

static void clean_up(void) {
    busy = false;
    for (unsigned i = 0; i < MAX_TENSORS; i++)
        if (tensor_slot(i)) tensor_remove(tensor_slot(i));
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blob_slot(i)) blob_free(blob_slot(i));
    memset(module_records, 0, sizeof module_records);
}

static void begin(Session *s) {
    clean_up();
    session_begin(s, false);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    state = 0x9e3779b97f4a7c15 ^ size;
    begin(&session);
    play(&session, data, size);
    return 0;
}

#ifndef LIBFUZZER

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
        write_map(w, 4);
        write_str(w, "timeout_ms");
        write_uint(w, 100);
        write_str(w, "from");
        write_uint(w, 1);
        write_str(w, "threads");
        write_uint(w, 1);
        write_str(w, method[0] == 't' ? "min_repeat_ms" : "until");
        write_uint(w, 3);
    }
}

static const char *const METHODS[] = {
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

/* A few valid requests, so that there is something to ask for, and mutated ones. */
static void mutated_session(void) {
    static const char *const first[] = {"hello", "tensor.new", "blob.put", "module.load"};
    static uint8_t stream[1 << 14];
    uint32_t valid = chance(12), requests = valid + 1 + chance(3);
    begin(&session);
    for (uint32_t i = 0; i < requests; i++) {
        Writer w = writer_to(stream, sizeof stream);
        bool opening = i < 4 && chance(20) > 0;
        write_request(&w, opening ? first[i] : METHODS[chance(sizeof METHODS / sizeof *METHODS)]);
        expect(!w.full, "the stream is too long");
        size_t size = (size_t)(w.at - stream);
        if (i >= valid) size = mutate(stream, size, sizeof stream);
        play(&session, stream, size);
    }
}

/* ---- Metadata ---- */

static void write_param(Writer *w, const char *name, bool symbolic) {
    write_map(w, 4);
    write_str(w, "name");
    write_str(w, name);
    write_str(w, "dtype");
    write_str(w, "float32");
    write_str(w, "shape");
    write_array(w, 2);
    write_uint(w, 4);
    if (symbolic)
        write_str(w, "n");
    else
        write_uint(w, 16);
    write_str(w, "output");
    write_bool(w, name[0] == 'y');
}

static void write_kernel(Writer *w, const char *name, bool symbolic) {
    write_map(w, 5);
    write_str(w, "name");
    write_str(w, name);
    write_str(w, "params");
    write_array(w, 2);
    write_param(w, "x", symbolic);
    write_param(w, "y", symbolic);
    write_str(w, "scalars");
    write_array(w, symbolic);
    if (symbolic) write_str(w, "n");
    write_str(w, "tasks");
    if (symbolic)
        write_str(w, "n");
    else
        write_uint(w, 1);
    write_str(w, "workspace");
    write_uint(w, 100);
}

static void write_call(Writer *w, const char *layer, unsigned from, unsigned to) {
    write_array(w, 3);
    write_uint(w, 1);
    write_str(w, layer);
    write_array(w, 2);
    for (unsigned i = 0; i < 2; i++) {
        write_array(w, 4);
        write_uint(w, i ? to : from);
        write_uint(w, 0);
        write_uint(w, 0);
        write_uint(w, 256);
    }
}

static void write_metadata(Writer *w) {
    write_map(w, 5);
    write_str(w, "abi");
    write_uint(w, MLC_ABI_VERSION);
    write_str(w, "machine");
    write_str(w, mlc_machine());
    write_str(w, "features");
    write_array(w, 1);
    write_str(w, mlc_cpu_feature(0));
    write_str(w, "kernels");
    write_array(w, 2);
    write_kernel(w, "symbolic", true);
    write_kernel(w, "fixed", false);
    write_str(w, "model");
    write_map(w, 6);
    write_str(w, "inputs");
    write_array(w, 1);
    write_param(w, "x", false);
    write_str(w, "outputs");
    write_array(w, 1);
    write_param(w, "y", false);
    write_str(w, "arena");
    write_uint(w, 512);
    write_str(w, "weights");
    write_uint(w, 256);
    write_str(w, "weights_hash");
    write_bin(w, blob_hash, HASH_BYTES);
    write_str(w, "calls");
    write_array(w, 3);
    write_call(w, "first", MLC_INPUT, MLC_ARENA);
    write_call(w, "second", MLC_WEIGHTS, MLC_ARENA);
    write_call(w, "third", MLC_ARENA, MLC_OUTPUT);
}

static void put_number(uint8_t *at, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* The smallest ELF64 object that has a section ".mlc": no code, no symbols. */
static size_t wrap_in_elf(uint8_t *object, const uint8_t *metadata, size_t size) {
    static const char names[] = "\0.mlc\0.shstrtab";
    size_t names_at = 64 + size, headers_at = (names_at + sizeof names + 7) / 8 * 8;
    memset(object, 0, headers_at + (size_t)3 * 64);
    memcpy(object, "\177ELF\2\1\1", 7);
    put_number(object + 16, 1, 2);  /* relocatable */
    put_number(object + 18, 62, 2); /* for any machine */
    put_number(object + 20, 1, 4);
    put_number(object + 40, headers_at, 8);
    put_number(object + 52, 64, 2);
    put_number(object + 58, 64, 2);
    put_number(object + 60, 3, 2); /* sections */
    put_number(object + 62, 2, 2); /* the one with their names */
    memcpy(object + 64, metadata, size);
    memcpy(object + names_at, names, sizeof names);
    uint8_t *mlc = object + headers_at + 64, *strings = mlc + 64;
    put_number(mlc, 1, 4);
    put_number(mlc + 4, 1, 4); /* PROGBITS */
    put_number(mlc + 24, 64, 8);
    put_number(mlc + 32, size, 8);
    put_number(strings, 6, 4);
    put_number(strings + 4, 3, 4); /* STRTAB */
    put_number(strings + 24, names_at, 8);
    put_number(strings + 32, sizeof names, 8);
    return headers_at + (size_t)3 * 64;
}

/* Uses all that a parse promises to be in bounds; returns a sum so that nothing is left out. */
static uint64_t touch(const Module *m) {
    uint64_t sum = strlen(m->target);
    int64_t scalars[MAX_SCALARS];
    for (uint32_t i = 0; i < m->kernel_count; i++) {
        const Kernel *k = &m->kernels[i];
        TensorType types[MLC_MAX_OPERANDS] = {{0}};
        const TensorType *pointers[MLC_MAX_OPERANDS];
        sum += strlen(k->name);
        for (uint32_t p = 0; p < k->param_count; p++) {
            types[p] = (TensorType){.dtype = k->params[p].dtype, .rank = k->params[p].rank};
            for (uint32_t d = 0; d < types[p].rank; d++) types[p].shape[d] = chance(2) ? 16 : 4;
            pointers[p] = &types[p];
        }
        Failure failure = {0};
        params_accept(k->params, k->param_count, k->scalars, scalars, k->scalar_count, pointers,
                      "kernel", &failure);
        sum += strlen(failure.text);
    }
    for (uint32_t i = 0; i < m->model.call_count; i++) {
        const Call *call = &m->model.calls[i];
        expect(call->kernel < m->kernel_count, "a call names no kernel");
        sum += strlen(call->layer) + m->kernels[call->kernel].param_count;
        for (uint32_t o = 0; o < call->operand_count; o++) {
            uint64_t end = call->operands[o].offset + call->sizes[o];
            bool in_arena = call->operands[o].space == MLC_ARENA;
            expect(!in_arena || end <= m->model.arena, "a call leaves the arena");
            sum += end;
        }
    }
    return sum;
}

/* Returns whether the mutated metadata was still accepted. */
static bool mutated_metadata(void) {
    static uint8_t metadata[1 << 14], object[1 << 15];
    Writer w = writer_to(metadata, sizeof metadata);
    Module module;
    Failure failure = {0};
    write_metadata(&w);
    expect(!w.full, "the metadata is too long");
    size_t size = (size_t)(w.at - metadata);
    if (chance(50)) size = mutate(metadata, size, sizeof metadata);
    size = wrap_in_elf(object, metadata, size);
    if (chance(10) == 0) size = mutate(object, size, sizeof object);
    uint8_t *exact = malloc(size); /* so that the sanitizer sees a read past the end */
    expect(exact != NULL, "no memory");
    memcpy(exact, object, size);
    bool accepted = module_parse(&module, exact, size, &failure);
    free(exact);
    if (accepted) {
        touch(&module);
        module_free(&module);
    } else {
        expect(failure.failed && failure.text[0], "a refusal without a reason");
    }
    return accepted;
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 10000, accepted = 0;
    Blake2b b;
    if (argc > 2) state = strtoull(argv[2], NULL, 10) | 1;
    blake2b_begin(&b);
    blake2b_add(&b, blob_text, sizeof blob_text);
    blake2b_end(&b, blob_hash);
    for (long i = 0; i < runs; i++) {
        mutated_session();
        accepted += mutated_metadata();
    }
    expect(accepted > runs / 100 || runs < 1000, "unmutated metadata is not accepted");
    printf("%ld sessions and %ld objects with mutated content, %ld of them accepted: no finding\n",
           runs, runs, accepted);
    return 0;
}

#endif
