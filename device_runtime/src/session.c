#include "session.h"

#include <stdio.h>
#include <string.h>

enum { READ_STEP = 4096, SLICE = 1 << 18 };

/* ---- Responses ---- */

static bool sending(const Session *s) { return s->head_sent < s->head_size || s->body_left > 0; }

Writer response_begin(Session *s, uint32_t id) {
    Writer w = writer_to(s->head, sizeof s->head);
    write_array(&w, 4);
    write_uint(&w, 1);
    write_uint(&w, id);
    write_nil(&w);
    return w;
}

void response_end(Session *s, const Writer *w) {
    s->head_size = (size_t)(w->at - s->head);
    s->head_sent = 0;
}

void response_failure(Session *s, uint32_t id, const Failure *failure) {
    Writer w = writer_to(s->head, sizeof s->head);
    write_array(&w, 4);
    write_uint(&w, 1);
    write_uint(&w, id);
    write_failure(&w, failure);
    write_nil(&w);
    s->body_left = 0;
    response_end(s, &w);
}

/* What came is not a message: say so to whom it may concern, and end. */
static void end_session(Session *s, const char *why) {
    Failure failure = {0};
    fail(&failure, PROTOCOL, "what arrived on the stream %s; the session ends", why);
    Writer w = writer_to(s->head, sizeof s->head);
    write_array(&w, 4);
    write_uint(&w, 1);
    write_nil(&w); /* which request it was is not known */
    write_failure(&w, &failure);
    write_nil(&w);
    response_end(s, &w);
    s->ended = true;
}

bool session_output(const Session *s, struct iovec parts[2]) {
    parts[0] = (struct iovec){(void *)(uintptr_t)(s->head + s->head_sent),
                              s->head_size - s->head_sent};
    parts[1] = (struct iovec){(void *)(uintptr_t)s->body, s->body_left};
    return sending(s);
}

/* ---- Uploads ---- */

static void upload_end(Session *s) {
    Upload *u = &s->upload;
    u->active = false;
    if (!u->failure.failed && u->blob) blob_extend(u->blob, u->size, &u->failure);
    if (u->failure.failed) {
        response_failure(s, u->id, &u->failure);
        return;
    }
    Writer w = response_begin(s, u->id);
    if (u->blob)
        write_uint(&w, u->blob->have);
    else
        write_nil(&w);
    response_end(s, &w);
}

static void upload_took(Session *s, size_t size) {
    Upload *u = &s->upload;
    if (u->to) u->to += size;
    u->left -= size;
    if (u->left == 0) upload_end(s);
}

/* ---- Messages ---- */

bool understood(Request *q) {
    if (!q->params.why) return true;
    return fail(&q->failure, PROTOCOL, "%s: a parameter is not as it must be: %s", q->method,
                q->params.why);
}

void write_have(Writer *w, const uint8_t hash[HASH_BYTES]) {
    const Blob *blob = blob_find(hash);
    write_array(w, 2);
    write_uint(w, blob_have(hash));
    write_bool(w, blob && blob->complete);
}

static const Method *method_find(const Method *methods, Bytes name) {
    for (; methods->name; methods++)
        if (bytes_are(name, methods->name)) return methods;
    return NULL;
}

static bool working(const Session *s) { return s->fill.tensor || s->reading; }

/* A slice of it; false when that was the last one. */
static bool work_slice(Session *s) {
    if (!s->fill.tensor) return blob_slice(s->reading, SLICE);
    fill_slice(&s->fill, SLICE);
    return s->fill.tensor != NULL;
}

/* ... and then its answer. */
static void work(Session *s) {
    if (work_slice(s)) return;
    const Blob *blob = s->reading;
    s->reading = NULL;
    if (blob && s->uploads) {
        s->upload.id = s->work_id;
        s->upload.failure = (Failure){0};
        if (!blob->present) part_is_wrong(&s->upload.failure);
        upload_end(s);
        return;
    }
    Writer w = response_begin(s, s->work_id);
    if (blob)
        write_have(&w, s->hash);
    else
        write_nil(&w);
    response_end(s, &w);
}

/* Whether this method must wait for work in slices that is under way. If so that is finished and
 * answered, and the message stays for later. */
static bool work_first(Session *s, const Method *method) {
    if (!working(s) || (method && (method->is & AT_ANY_TIME))) return false;
    while (working(s)) work(s);
    return true;
}

static void call_method(Session *s, Request *q, const Method *method, Bytes name, uint32_t count) {
    if (!method)
        fail(&q->failure, PROTOCOL, "this runtime (wire %d.%d) has no method '%.*s'", WIRE_MAJOR,
             WIRE_MINOR, (int)(name.size < 64 ? name.size : 64), (const char *)name.data);
    else if (!s->greeted && !(method->is & GREETS))
        fail(&q->failure, PROTOCOL, "%s: hello comes first", method->name);
    else if (count != method->params)
        fail(&q->failure, PROTOCOL, "%s takes %u parameters, given %u", method->name,
             method->params, count);
    else
        method->answer(q);
}

/* The rest of a bin that is on its way goes to its place, or nowhere when it was refused. */
static void upload_begin(Session *s, const Request *q, size_t left) {
    Upload *u = &s->upload;
    u->active = true;
    u->id = q->id;
    u->left = left;
    u->failure = q->failure;
    if (q->failure.failed) u->to = NULL;
    if (u->to) {
        if (q->arrived.size > 0) memcpy(u->to, q->arrived.data, q->arrived.size);
        u->to += q->arrived.size;
    }
    if (left == 0) upload_end(s);
}

/* Handles the message at the front, input[0 .. scan.at); the last bytes of it, when they are a
 * bin's, may not have arrived. False: not before they have. */
static bool take_message(Session *s) {
    size_t here = s->scan.at < s->have ? s->scan.at : s->have;
    size_t missing = s->scan.at - here;
    Reader r = reader_of(s->input, here);
    uint32_t parts = read_array(&r);
    uint64_t type = read_uint(&r);
    if (!r.why && parts == 3 && type == 2) { /* a notification: none is known, so all are ignored */
        if (missing > 0) return false;
        read_str(&r);
        read_array(&r);
        if (r.why) end_session(s, "is not msgpack-rpc");
        s->consumed = here;
        return true;
    }
    uint64_t id = read_uint(&r);
    Bytes name = read_str(&r);
    uint32_t count = read_array(&r);
    if (r.why && missing > 0) return false; /* judged when it is complete */
    if (r.why || parts != 4 || type != 0 || id > UINT32_MAX) {
        end_session(s, "is not a msgpack-rpc request");
        return true;
    }
    const Method *method = method_find(s->methods, name);
    bool uploads = method && (method->is & UPLOADS);
    if (missing > 0 && !uploads) return false;
    if (work_first(s, method)) return true;
    Request q = {.session = s,
                 .method = method ? method->name : "",
                 .id = (uint32_t)id,
                 .params = r,
                 .result = response_begin(s, (uint32_t)id)};
    call_method(s, &q, method, name, count);
    s->consumed = here;
    if (uploads && !q.later && (missing > 0 || !q.failure.failed))
        upload_begin(s, &q, missing);
    else if (q.failure.failed)
        response_failure(s, q.id, &q.failure);
    else if (!q.later)
        response_end(s, &q.result);
    return true;
}

/* A run that did not begin is answered after the one that it waited for. */
static void answer_next(Session *s) {
    if (!s->next.failure.failed || sending(s)) return;
    response_failure(s, s->next.id, &s->next.failure);
    s->next.failure = (Failure){0};
}

/* Handles what has arrived, as far as it goes. */
static void process(Session *s) {
    answer_next(s);
    while (!s->ended && !sending(s) && !s->upload.active) {
        if (s->consumed > 0) {
            memmove(s->input, s->input + s->consumed, s->have - s->consumed);
            s->have -= s->consumed;
            s->consumed = 0;
            s->scan = (Scan){0};
        }
        if (s->have == 0) return;
        switch (scan_message(&s->scan, s->input, s->have)) {
        case SCAN_MORE:
            return;
        case SCAN_BAD:
            end_session(s, s->scan.why);
            return;
        case SCAN_TAIL:
        case SCAN_DONE:
            if (!take_message(s)) return;
        }
    }
}

/* ---- The stream ---- */

void session_begin(Session *s, const Method *methods, bool greeted) {
    s->methods = methods;
    s->have = s->consumed = 0;
    s->scan = (Scan){0};
    s->upload.active = s->ended = false;
    s->greeted = greeted;
    s->patience_ms = 0;
    s->fill = (Fill){0};
    s->reading = NULL;
    s->pending.answered = NULL;
    s->next.waits = false;
    s->next.failure = (Failure){0};
    s->body_left = 0;
    memcpy(s->head, PREAMBLE, sizeof PREAMBLE);
    s->head_size = greeted ? 0 : sizeof PREAMBLE;
    s->head_sent = 0;
}

bool session_room(Session *s, uint8_t **to, size_t *size) {
    if (s->ended || sending(s)) return false;
    if (s->upload.active) {
        bool discard = !s->upload.to;
        size_t most = discard ? sizeof s->input : s->upload.left;
        *to = discard ? s->input : s->upload.to;
        *size = most < s->upload.left ? most : s->upload.left;
        return true;
    }
    /* Small steps: what follows the head of an upload is then not read into this buffer. Only a
     * message that is known to be long is read faster. */
    size_t step = s->scan.at > s->have + READ_STEP ? s->scan.at - s->have : READ_STEP;
    if (step < s->have) step = s->have;
    size_t room = sizeof s->input - s->have;
    *to = s->input + s->have;
    *size = step < room ? step : room;
    return *size > 0;
}

void session_took(Session *s, size_t size) {
    if (s->upload.active)
        upload_took(s, size);
    else
        s->have += size;
    process(s);
}

void session_sent(Session *s, size_t size) {
    size_t head = s->head_size - s->head_sent;
    if (size < head) head = size;
    s->head_sent += head;
    size -= head;
    if (size > 0) s->body += size;
    s->body_left -= size;
    process(s);
}

bool session_work(Session *s) {
    if (!working(s) || sending(s)) return false;
    work(s);
    return true;
}

void session_answer(Session *s, const Answer *answer) {
    void (*answered)(Session *, const Answer *) = s->pending.answered;
    s->pending.answered = NULL;
    if (answered) answered(s, answer);
}
