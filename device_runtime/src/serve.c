/* The methods of the wire: what each request does. mlc_rpc/wire.py describes them. */
#define _GNU_SOURCE /* cpu_set_t */
#include "serve.h"

#include "../include/mlc_abi.h"
#include "auth.h"
#include "box.h"
#include "cores.h"
#include "cpu.h"
#include "kernel_text.h"
#include "load.h"
#include "module.h"
#include "reply.h"
#include "run_order.h"

#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- About the board ---- */

static void hello(Request *q) {
    Hellos hellos;
    if (hello_answer(&q->params, q->method, &q->result, &hellos, &q->failure))
        q->session->greeted = true;
}

/* On TCP it was answered before there was a session. */
static void auth(Request *q) {
    fail(&q->failure, REFUSED, "auth: this stream needs no proof, or has had it");
}

static void write_cores(Writer *w, const cpu_set_t *set) {
    write_array(w, (uint32_t)CPU_COUNT(set));
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, set)) write_uint(w, i);
}

static void write_box(Writer *w) {
    uint32_t held = link_box() | (segments_sealed() ? BOX_MEMORY : 0), count = 0;
    for (unsigned i = 0; i < BOX_PARTS; i++) count += held >> i & 1;
    write_array(w, count);
    for (unsigned i = 0; i < BOX_PARTS; i++)
        if (held >> i & 1) write_str(w, box_names[i]);
}

static void describe(Request *q) {
    Writer *w = &q->result;
    struct utsname system = {0};
    uname(&system);
    Cores cores;
    cores_read(&cores);
    uint32_t features = 0;
    while (mlc_cpu_feature(features)) features++;
    write_map(w, 14);
    write_str(w, "runtime");
    write_str(w, RUNTIME_VERSION);
    write_str(w, "machine");
    write_str(w, mlc_machine());
    write_str(w, "abi");
    write_uint(w, MLC_ABI_VERSION);
    write_str(w, "features");
    write_array(w, features);
    for (uint32_t i = 0; i < features; i++) write_str(w, mlc_cpu_feature(i));
    write_str(w, "kernel");
    write_str(w, system.release);
    write_str(w, "cores");
    write_uint(w, cores.allowed_count);
    write_str(w, "fast_cores");
    write_uint(w, cores.fast_count);
    write_str(w, "slow_cores");
    write_cores(w, &cores.slow);
    write_str(w, "allowed_cores");
    write_cores(w, &cores.allowed);
    write_str(w, "memory");
    write_uint(w, memory_size());
    write_str(w, "page_size");
    write_uint(w, page_size());
    char boot[40];
    kernel_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    write_str(w, "boot");
    write_str(w, boot);
    write_str(w, "box");
    write_box(w);
    write_str(w, "cpus");
    enum { ENOUGH = 64 }; /* to see every kind of core that a board has */
    uint32_t shown = cores.allowed_count < ENOUGH ? cores.allowed_count : ENOUGH;
    write_array(w, shown);
    for (uint32_t i = 0; i < shown; i++) {
        char model[48];
        write_map(w, 2);
        write_str(w, "model");
        write_str(w, mlc_cpu_model(i, model, sizeof model));
        write_str(w, "midr");
        write_uint(w, mlc_cpu_midr(i));
    }
}

static void ping(Request *q) {
    const uint8_t *payload = q->params.at;
    read_skip(&q->params);
    if (!understood(q)) return;
    q->session->body = payload; /* sent as it came */
    q->session->body_left = (size_t)(q->params.at - payload);
}

static void heartbeat(Request *q) {
    uint64_t milliseconds = read_uint(&q->params);
    if (!understood(q)) return;
    q->session->patience_ms = milliseconds < UINT32_MAX ? (uint32_t)milliseconds : UINT32_MAX;
    write_nil(&q->result);
}

/* ---- Tensors ---- */

static Tensor *tensor_param(Request *q, uint64_t id) {
    return understood(q) ? tensor_find(id, &q->failure) : NULL;
}

/* Whether [offset, offset + size) lies within `whole` bytes. */
static bool within(Request *q, uint64_t offset, uint64_t size, size_t whole) {
    if (size > MAX_CHUNK)
        return fail(&q->failure, REFUSED, "%s: %llu bytes at once; %d are the most", q->method,
                    (unsigned long long)size, MAX_CHUNK);
    if (size <= whole && offset <= whole - size) return true;
    return fail(&q->failure, REFUSED, "%s: %llu bytes at offset %llu reach outside its %zu bytes",
                q->method, (unsigned long long)size, (unsigned long long)offset, whole);
}

static void answer_with_bin(Request *q, const Segment *segment, uint64_t offset, uint64_t size) {
    write_bin_head(&q->result, (size_t)size);
    q->session->body = segment->data + offset;
    q->session->body_left = (size_t)size;
}

static void tensor_new_(Request *q) {
    TensorType type = {.dtype = NO_DTYPE};
    Bytes name = read_str(&q->params);
    type.dtype = dtype_of(name);
    type.rank = read_array(&q->params);
    for (uint32_t i = 0; i < type.rank && i < MAX_RANK; i++) {
        type.shape[i] = read_uint(&q->params);
        if (type.shape[i] > (uint64_t)INT64_MAX) read_fail(&q->params, "an extent is below 2^63");
    }
    if (!understood(q)) return;
    if (type.dtype == NO_DTYPE) {
        fail(&q->failure, REFUSED, "there is no dtype '%.*s'",
             (int)(name.size < 32 ? name.size : 32), (const char *)name.data);
    } else if (type.rank > MAX_RANK) {
        fail(&q->failure, REFUSED, "a tensor has at most %d dimensions, not %u", MAX_RANK,
             type.rank);
    } else {
        Tensor *tensor = tensor_new(&type, &q->failure);
        if (tensor) write_uint(&q->result, tensor->id);
    }
}

static void tensor_write(Request *q) {
    size_t size;
    uint64_t id = read_uint(&q->params), offset = read_uint(&q->params);
    q->arrived = read_partial_bin(&q->params, &size);
    Tensor *tensor = tensor_param(q, id);
    if (!tensor || !within(q, offset, size, tensor->segment.size)) return;
    q->session->upload.to = tensor->segment.data + offset;
    q->session->upload.blob = NULL;
}

static void tensor_read(Request *q) {
    uint64_t id = read_uint(&q->params), offset = read_uint(&q->params);
    uint64_t size = read_uint(&q->params);
    Tensor *tensor = tensor_param(q, id);
    if (tensor && within(q, offset, size, tensor->segment.size))
        answer_with_bin(q, &tensor->segment, offset, size);
}

static void tensor_fill(Request *q) {
    uint64_t id = read_uint(&q->params);
    Bytes kind = read_str(&q->params);
    uint64_t seed = read_uint(&q->params);
    Tensor *tensor = tensor_param(q, id);
    if (!tensor) return;
    bool random = bytes_are(kind, "random");
    if (!random && !bytes_are(kind, "zero")) {
        fail(&q->failure, REFUSED, "tensor.fill: kind is 'zero' or 'random', not '%.*s'",
             (int)(kind.size < 32 ? kind.size : 32), (const char *)kind.data);
        return;
    }
    q->session->fill = fill_begin(tensor, random, seed);
    q->session->work_id = q->id;
    q->later = true;
}

/* For a client on the same machine, which may open it as /proc/<process>/fd/<descriptor>. */
static void tensor_descriptor(Request *q) {
    Tensor *tensor = tensor_param(q, read_uint(&q->params));
    if (!tensor) return;
    write_array(&q->result, 2);
    write_uint(&q->result, (uint64_t)getpid());
    write_uint(&q->result, (uint64_t)tensor->segment.fd);
}

static void tensor_free(Request *q) {
    Tensor *tensor = tensor_param(q, read_uint(&q->params));
    if (!tensor) return;
    tensor->freed = true;
    link_tidy();
    write_nil(&q->result);
}

/* ---- Blobs ---- */

static const uint8_t *read_hash(Request *q) {
    Bytes hash = read_bin(&q->params);
    if (!q->params.why && hash.size != HASH_BYTES) read_fail(&q->params, "a hash has 32 bytes");
    return hash.data;
}

/* What the cache has is read between messages, so that pings are answered meanwhile. */
static void read_later(Request *q, Blob *blob, bool uploads) {
    q->session->reading = blob;
    memcpy(q->session->hash, blob->hash, HASH_BYTES);
    q->session->work_id = q->id;
    q->session->uploads = uploads;
    q->later = true;
}

static void blob_has(Request *q) {
    const uint8_t *hash = read_hash(q);
    Blob *blob = understood(q) ? blob_begin(hash) : NULL;
    if (q->failure.failed) return;
    if (blob && blob->reading)
        read_later(q, blob, false);
    else
        write_have(&q->result, hash);
}

static void blob_put(Request *q) {
    size_t size;
    const uint8_t *hash = read_hash(q);
    uint64_t total = read_uint(&q->params), offset = read_uint(&q->params);
    q->arrived = read_partial_bin(&q->params, &size);
    if (!understood(q) || !within(q, 0, size, MAX_CHUNK)) return;
    Blob *blob = blob_open(hash, total, offset, size, &q->failure);
    if (!blob) return;
    q->session->upload.to = blob_room(blob, offset);
    q->session->upload.blob = blob;
    q->session->upload.size = size;
    if (blob->reading) read_later(q, blob, true);
}

static void blob_get(Request *q) {
    const uint8_t *hash = read_hash(q);
    uint64_t offset = read_uint(&q->params), size = read_uint(&q->params);
    const Blob *blob = understood(q) ? blob_need(hash, "wanted", &q->failure) : NULL;
    if (blob && within(q, offset, size, blob->segment.size))
        answer_with_bin(q, &blob->segment, offset, size);
}

static void blob_free_(Request *q) {
    const uint8_t *hash = read_hash(q);
    Blob *blob = understood(q) ? blob_find(hash) : NULL;
    if (blob && blob->uses > 0)
        fail(&q->failure, REFUSED, "blob.free: %u modules need this blob; try: module.free first",
             blob->uses);
    else if (blob)
        blob_free(blob);
    write_nil(&q->result);
}

/* ---- Modules ---- */

static bool idle(Request *q) {
    if (!understood(q)) return false;
    if (!link_busy()) return true;
    return fail(&q->failure, REFUSED,
                "%s: busy: the board carries out another request; try: wait for its answer",
                q->method);
}

static ModuleRecord *module_param(Request *q, uint64_t id) {
    ModuleRecord *module = &module_records[id % MAX_MODULES];
    if (module->id && module->id == id) return module;
    fail(&q->failure, REFUSED, "there is no module %llu on the board; was it freed?",
         (unsigned long long)id);
    return NULL;
}

static void module_forget(ModuleRecord *module) {
    Tensor *arena = module->arena ? tensor_find(module->arena, NULL) : NULL;
    if (arena) arena->freed = true;
    link_drop_module(module);
    link_tidy();
    module->object->uses--;
    if (module->weights) module->weights->uses--;
    *module = (ModuleRecord){0};
}

/* Of what the worker says, which a kernel may have written. */
static bool damaged(Failure *failure) {
    link_end();
    return fail(failure, CRASHED, "the worker's memory is damaged: its reply is none");
}

/* {module, arena, image_bytes, metadata} */
static void answer_load(Session *s, const Answer *answer) {
    ModuleRecord *module = s->pending.module;
    uint32_t id = s->pending.id;
    char why[160];
    size_t size = 0;
    Failure failure = answer->failure;
    const Segment *object = &module->object->segment;
    const uint8_t *metadata = NULL;
    if (!failure.failed) {
        metadata = mlc_object_section(object->data, object->size, MLC_SECTION, &size, why,
                                      sizeof why);
        if (!metadata) fail(&failure, REFUSED, "%s", why);
    }
    /* What the worker says of the module is in the object, too. */
    Module about;
    uint64_t arena = 0;
    if (!failure.failed && module_parse(&about, object->data, object->size, &failure)) {
        arena = about.model.arena;
        module_free(&about);
    }
    if (!failure.failed && (answer->arena != arena || answer->image > MLC_IMAGE_MAX))
        damaged(&failure);
    if (!failure.failed && arena > 0) {
        TensorType type = {.dtype = UINT8, .rank = 1, .shape = {arena}};
        Tensor *tensor = tensor_new(&type, &failure);
        module->arena = tensor ? tensor->id : 0;
    }
    if (failure.failed) {
        module_forget(module);
        response_failure(s, id, &failure);
        return;
    }
    Writer w = response_begin(s, id);
    write_map(&w, 4);
    write_str(&w, "module");
    write_uint(&w, module->id);
    write_str(&w, "arena");
    if (module->arena)
        write_uint(&w, module->arena);
    else
        write_nil(&w);
    write_str(&w, "image_bytes");
    write_uint(&w, answer->image);
    write_str(&w, "metadata");
    write_bin_head(&w, size);
    s->body = metadata;
    s->body_left = size;
    response_end(s, &w);
}

static void module_load(Request *q) {
    static uint32_t turn; /* in the id, above the slot's number, so that ids do not come back */
    const uint8_t *object_hash = read_hash(q);
    const uint8_t *weights_hash = read_nil(&q->params) ? NULL : read_hash(q);
    if (!idle(q)) return;
    Blob *object = blob_need(object_hash, "object", &q->failure), *weights = NULL;
    if (object && weights_hash) weights = blob_need(weights_hash, "weights", &q->failure);
    unsigned slot = 0;
    while (slot < MAX_MODULES && module_records[slot].id) slot++;
    if (slot == MAX_MODULES || turn >= UINT32_MAX / MAX_MODULES - 1)
        fail(&q->failure, REFUSED, "there are %d modules already; try: free some", MAX_MODULES);
    if (q->failure.failed) return;
    ModuleRecord *module = &module_records[slot];
    *module = (ModuleRecord){
        .id = ++turn * MAX_MODULES + slot, .object = object, .weights = weights};
    object->uses++;
    if (weights) weights->uses++;
    if (!link_load(module, &q->failure)) {
        module_forget(module);
        return;
    }
    q->later = true;
    q->session->pending.answered = answer_load;
    q->session->pending.id = q->id;
    q->session->pending.module = module;
}

static void module_free_(Request *q) {
    uint64_t id = read_uint(&q->params);
    ModuleRecord *module = idle(q) ? module_param(q, id) : NULL;
    if (!module) return;
    module_forget(module);
    write_nil(&q->result);
}

/* ---- Running ---- */

static void answer_run(Session *s, const Answer *answer);

static void expect_run(Session *s, uint32_t id, ModuleRecord *module, uint32_t samples) {
    s->pending.answered = answer_run;
    s->pending.id = id;
    s->pending.module = module;
    s->pending.samples = samples;
}

/* Who goes step by step asks for a run while the one before it is under way, so that the board need
 * not wait for its client in between. Of another module, the worker might be given more orders than
 * its socket has room for while it is at work. */
static bool can_follow(const Session *s, const ModuleRecord *module, const RunOrder *run) {
    return !run->timed && s->pending.answered == answer_run && s->pending.samples == 0 &&
           s->pending.module == module && !s->next.waits;
}

/* The run that follows, if there is one, is the pending one now. */
static void expect_next(Session *s) {
    if (!s->next.waits) return;
    s->next.waits = false;
    if (link_busy())
        expect_run(s, s->next.id, s->next.module, 0);
    else
        fail(&s->next.failure, REFUSED, "run: it did not begin, since the run before it failed");
}

static void answer_run(Session *s, const Answer *answer) {
    uint32_t id = s->pending.id;
    Failure failure = answer->failure;
    /* A kernel may have written over the reply, by mistake or not. */
    if (!failure.failed && !reply_is_right(link_reply(), answer->reply, s->pending.samples))
        damaged(&failure);
    expect_next(s);
    if (failure.failed) {
        response_failure(s, id, &failure);
        return;
    }
    Writer w = response_begin(s, id);
    s->body = link_reply();
    s->body_left = answer->reply;
    response_end(s, &w);
}

static void execute(Request *q, bool timed) {
    RunOrder run = {.timed = timed, .timer = TIMER_DEFAULTS, .until = UINT32_MAX, .threads = 1};
    uint32_t timeout_ms = 0;
    uint64_t id = read_uint(&q->params);
    if (!read_run_order(q, &run, &timeout_ms)) return;
    Session *s = q->session;
    ModuleRecord *module = module_param(q, id);
    bool follows = module && can_follow(s, module, &run);
    if (!module || (!follows && !idle(q))) return;
    if (run.whole_model && module->arena && !tensor_find(module->arena, &q->failure)) return;
    run.arena = run.whole_model ? module->arena : 0;
    if (follows) {
        link_follow(module, &run, timeout_ms);
        s->next.waits = true;
        s->next.id = q->id;
        s->next.module = module;
    } else if (link_run(module, &run, timeout_ms, &q->failure)) {
        expect_run(s, q->id, module, timed ? run.timer.repeat : 0);
    } else {
        return;
    }
    q->later = true;
}

static void run(Request *q) { execute(q, false); }

static void time_(Request *q) { execute(q, true); }

/* ---- The table, as in mlc_rpc/wire.py ---- */

const Method METHODS[] = {
    {"hello", 3, hello, GREETS},
    {"auth", 1, auth, 0},
    {"describe", 0, describe, 0},
    {"ping", 1, ping, AT_ANY_TIME},
    {"heartbeat", 1, heartbeat, 0},
    {"tensor.new", 2, tensor_new_, 0},
    {"tensor.write", 3, tensor_write, UPLOADS},
    {"tensor.read", 3, tensor_read, 0},
    {"tensor.fill", 3, tensor_fill, 0},
    {"tensor.descriptor", 1, tensor_descriptor, 0},
    {"tensor.free", 1, tensor_free, 0},
    {"blob.has", 1, blob_has, 0},
    {"blob.put", 4, blob_put, UPLOADS},
    {"blob.get", 3, blob_get, 0},
    {"blob.free", 1, blob_free_, 0},
    {"module.load", 2, module_load, 0},
    {"module.free", 1, module_free_, 0},
    {"run", 4, run, 0},
    {"time", 4, time_, 0},
    {0},
};
