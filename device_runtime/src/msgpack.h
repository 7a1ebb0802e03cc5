/* msgpack: a reader and a writer whose first error stays, so that code using them is straight-line
 * and checks once, at the end; and a scanner that finds where a message on a stream ends.
 *
 * Nothing here allocates. Every length is checked against the bytes that are there. */
#ifndef MLC_MSGPACK_H
#define MLC_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_MESSAGE = 1 << 20, MAX_DEPTH = 8 };

/* ---- Reading a complete object ---- */

typedef struct {
    const uint8_t *at, *end;
    const char *why; /* NULL while all is well; the first failure stays */
} Reader;

typedef struct {
    const uint8_t *data; /* points into the bytes that are read; not NUL-terminated */
    size_t size;
} Bytes;

Reader reader_of(const void *data, size_t size);

/* Each takes one object off the front. On a failure it returns zero or nothing, and every later
 * read fails too, so a value read before the check is still safe as a size or a count. */
uint64_t read_uint(Reader *r);
int64_t read_int(Reader *r);
double read_number(Reader *r); /* an integer or a float, not NaN */
bool read_bool(Reader *r);
Bytes read_str(Reader *r);
Bytes read_bin(Reader *r);
bool read_nil(Reader *r); /* takes a nil and returns true; leaves anything else where it is */
/* Counts are never larger than the bytes left, since an element takes at least one. */
uint32_t read_array(Reader *r);
uint32_t read_map(Reader *r);
void read_skip(Reader *r); /* an object of any type, with all that it contains */
/* A bin whose bytes may not all be there yet: returns those that are, and the whole size. */
Bytes read_partial_bin(Reader *r, size_t *whole);
void read_fail(Reader *r, const char *why);
bool bytes_are(Bytes b, const char *text);

/* ---- Finding the end of a message ---- */

typedef struct {
    size_t at;                    /* bytes understood so far; past those that have arrived when the
                                     last token's body is not complete */
    uint32_t left[MAX_DEPTH + 1]; /* elements still to come in each open container */
    unsigned depth;
    const char *why; /* what makes it no message */
} Scan;

typedef enum {
    SCAN_MORE, /* the message goes on */
    SCAN_TAIL, /* all that is missing is the rest of its last token, up to `at` */
    SCAN_DONE, /* the message is data[0 .. at) */
    SCAN_BAD   /* not msgpack, or over the limits: see why */
} ScanResult;

/* Starts from a zeroed Scan; called again with the same data and a larger `have`, goes on. */
ScanResult scan_message(Scan *scan, const uint8_t *data, size_t have);

/* ---- Writing ---- */

typedef struct {
    uint8_t *at, *end;
    bool full; /* something did not fit; nothing is written from then on */
} Writer;

Writer writer_to(void *data, size_t size);

void write_nil(Writer *w);
void write_bool(Writer *w, bool value);
void write_uint(Writer *w, uint64_t value);
void write_double(Writer *w, double value);
void write_str(Writer *w, const char *text); /* bytes that are not UTF-8 become '?' */
void write_bin(Writer *w, const void *data, size_t size);
void write_bin_head(Writer *w, size_t size); /* the body follows by other ways */
void write_array(Writer *w, uint32_t count);
void write_map(Writer *w, uint32_t count);

#endif
