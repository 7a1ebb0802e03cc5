/* One session: bytes of the stream in, bytes of the stream out. It finds messages, sends each to
 * its method and writes responses, but touches no descriptor, so that it runs on any stream, and
 * in a fuzzer on none.
 *
 * One response is on its way at a time; while it is, nothing is read. So a response's body may
 * point at what it shows (a tensor, a blob, the request itself) and nothing is copied. */
#ifndef MLC_SESSION_H
#define MLC_SESSION_H

#include "blob.h"
#include "failure.h"
#include "msgpack.h"
#include "tensor.h"
#include "wire.h"
#include "worker_link.h"

#include <sys/uio.h>

enum { MAX_CHUNK = 1 << 19 };

/* A bin that goes straight from the stream to where it belongs. */
typedef struct {
    bool active;
    uint32_t id;
    uint8_t *to; /* NULL: it is refused or not needed, and its bytes are discarded */
    size_t left;
    Blob *blob;  /* NULL: to a tensor */
    size_t size; /* of the whole bin */
    Failure failure;
} Upload;

typedef struct Method Method;
typedef struct Session Session;

struct Session {
    const Method *methods;
    uint8_t input[MAX_MESSAGE];
    size_t have, consumed; /* bytes that arrived; bytes of them that are done with */
    Scan scan;             /* of the message at the front */
    Upload upload;
    uint8_t head[1 << 14]; /* the response on its way, and its body, which is elsewhere */
    size_t head_size, head_sent;
    const uint8_t *body;
    size_t body_left;
    bool greeted; /* hello has been said */
    bool ended;   /* the stream is not understood any more */
    uint32_t patience_ms; /* a client that is silent for so long is dead; 0: it may be silent */
    Fill fill;        /* work in slices, */
    Blob *reading;    /* or this, while it is not NULL: what the cache has of a blob */
    uint32_t work_id; /* the request that it is for, */
    bool uploads;     /* which is a blob.put of nothing, or else blob.has, */
    uint8_t hash[HASH_BYTES]; /* of this blob */
    struct { /* what the worker was asked for */
        void (*answered)(Session *s, const Answer *answer); /* NULL: nothing */
        uint32_t id;
        uint32_t samples; /* of timing; 0: of a run */
        ModuleRecord *module;
    } pending;
    struct { /* a run that follows the pending one */
        bool waits;
        uint32_t id;
        ModuleRecord *module;
        Failure failure; /* why it did not begin */
    } next;
};

/* `methods` end with one without a name. `greeted`: preamble and hello have been exchanged already. */
void session_begin(Session *s, const Method *methods, bool greeted);

/* Where the next bytes of the stream go; false while none are wanted. Then: so many came. */
bool session_room(Session *s, uint8_t **to, size_t *size);
void session_took(Session *s, size_t size);

/* What is to be sent; false when there is nothing. Then: so many were. */
bool session_output(const Session *s, struct iovec parts[2]);
void session_sent(Session *s, size_t size);

/* A slice of work that is done between messages; false when there is none. */
bool session_work(Session *s);

/* The worker's answer to the pending request; only while there is no output. */
void session_answer(Session *s, const Answer *answer);

/* ---- For the methods ---- */

typedef struct {
    Session *session;
    const char *method;
    uint32_t id;
    Reader params; /* the elements of params */
    Writer result; /* a method writes its one result here, */
    bool later;    /* or says that the response comes later, */
    Failure failure; /* or fails */
    Bytes arrived;   /* of a bin that is uploaded: its first bytes, which came with the request */
} Request;

enum {
    UPLOADS = 1,     /* its last parameter is a bin that goes straight to its place */
    GREETS = 2,      /* it may come first */
    AT_ANY_TIME = 4, /* it does not wait for work in slices */
};

struct Method {
    const char *name;
    uint32_t params;
    void (*answer)(Request *q);
    unsigned is; /* of the above */
};

/* [1, id, nil, -- the result follows; and then it is sent. */
Writer response_begin(Session *s, uint32_t id);
void response_end(Session *s, const Writer *w);
void response_failure(Session *s, uint32_t id, const Failure *failure);

/* blob.has's result: [size, complete]. */
void write_have(Writer *w, const uint8_t hash[HASH_BYTES]);

/* After a method has read its parameters: whether they were what they must be. */
bool understood(Request *q);

#endif
