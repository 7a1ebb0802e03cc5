/* The record layer: what lies below msgpack on TCP once both ends have proven that they hold the
 * key. mlc_rpc/wire.py describes it.
 *
 * Each record has a tag over its number, its length and its payload, so that nothing between the
 * two ends can change, drop, repeat, reorder or insert a byte unnoticed. Only bytes of a record
 * whose tag is right are given on. Nothing is encrypted. */
#ifndef MLC_RECORD_H
#define MLC_RECORD_H

#include "blake2b.h"

#include <stdbool.h>
#include <sys/uio.h>

enum { TAG_BYTES = 16, RECORD_HEAD = 4 + TAG_BYTES, MAX_RECORD = 1 << 16 };

typedef struct {
    Blake2b keyed;    /* fed with the key of this direction and nothing else */
    uint64_t counter; /* of records so far */
} Direction;

typedef struct {
    Direction in, out;
    uint8_t received[RECORD_HEAD + MAX_RECORD];
    size_t have;
    size_t opened, taken; /* of the first record's payload: bytes, 0 before the tag was checked;
                             those that were given on */
    uint8_t sealed[RECORD_HEAD + MAX_RECORD]; /* the record on its way */
    size_t sealed_size, sealed_sent;
    const char *why; /* what ended the stream, or NULL */
} Records;

void records_begin(Records *r, const uint8_t in_key[HASH_BYTES], const uint8_t out_key[HASH_BYTES]);

/* Where bytes of the stream go, at least one; then: so many came. */
size_t records_room(Records *r, uint8_t **to);
void records_took(Records *r, size_t size);

/* Checked payload, nothing while none is there; then: so many were used. */
size_t records_payload(const Records *r, const uint8_t **data);
void records_used(Records *r, size_t size);

/* Seals the first bytes of what is to be sent, and returns how many. Only when the last record has
 * gone. They are copied: a kernel may write to a tensor while it is being sent. */
size_t records_seal(Records *r, const struct iovec parts[2]);

/* What is to be sent, nothing while none is there; then: so many were. */
size_t records_output(const Records *r, const uint8_t **data);
void records_sent(Records *r, size_t size);

/* Compares in a time that does not depend on the content. */
bool same_bytes(const uint8_t *a, const uint8_t *b, size_t size);

#endif
