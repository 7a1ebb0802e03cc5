#include "record.h"

#include <string.h>

static void put_number(uint8_t *to, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

bool same_bytes(const uint8_t *a, const uint8_t *b, size_t size) {
    unsigned difference = 0;
    for (size_t i = 0; i < size; i++) difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

/* The tag of the direction's next record. `record` has its length and its payload in place. */
static void next_tag(Direction *d, const uint8_t *record, size_t size, uint8_t tag[HASH_BYTES]) {
    uint8_t number[8];
    Blake2b mac = d->keyed;
    put_number(number, d->counter++, sizeof number);
    blake2b_add(&mac, number, sizeof number);
    blake2b_add(&mac, record, 4);
    blake2b_add(&mac, record + RECORD_HEAD, size);
    blake2b_end(&mac, tag);
}

/* Checks the record at the front, as soon as it is there. */
static void open_next(Records *r) {
    uint8_t tag[HASH_BYTES];
    if (r->why || r->have < RECORD_HEAD) return;
    const uint8_t *head = r->received;
    size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (size == 0 || size > MAX_RECORD) {
        r->why = "a record has no allowed length";
        return;
    }
    if (r->have < RECORD_HEAD + size) return;
    next_tag(&r->in, head, size, tag);
#ifndef MLC_FUZZ_WITHOUT_TAGS /* else hardly any input would come further than this */
    if (!same_bytes(tag, head + 4, TAG_BYTES)) {
        r->why = "a record is not as it was sent";
        return;
    }
#endif
    r->opened = size;
    r->taken = 0;
}

void records_begin(Records *r, const uint8_t in_key[HASH_BYTES],
                   const uint8_t out_key[HASH_BYTES]) {
    *r = (Records){.why = NULL};
    blake2b_begin_keyed(&r->in.keyed, in_key);
    blake2b_begin_keyed(&r->out.keyed, out_key);
}

size_t records_room(Records *r, uint8_t **to) {
    *to = r->received + r->have;
    return sizeof r->received - r->have;
}

void records_took(Records *r, size_t size) {
    r->have += size;
    if (r->opened == 0) open_next(r);
}

size_t records_payload(const Records *r, const uint8_t **data) {
    *data = r->received + RECORD_HEAD + r->taken;
    return r->opened - r->taken;
}

void records_used(Records *r, size_t size) {
    r->taken += size;
    if (r->taken < r->opened) return;
    size_t whole = RECORD_HEAD + r->opened;
    r->have -= whole;
    memmove(r->received, r->received + whole, r->have);
    r->opened = r->taken = 0;
    open_next(r);
}

size_t records_seal(Records *r, const struct iovec parts[2]) {
    uint8_t tag[HASH_BYTES];
    size_t size = 0;
    for (int i = 0; i < 2; i++) {
        size_t room = MAX_RECORD - size;
        size_t part = parts[i].iov_len < room ? parts[i].iov_len : room;
        if (part > 0) memcpy(r->sealed + RECORD_HEAD + size, parts[i].iov_base, part);
        size += part;
    }
    put_number(r->sealed, size, 4);
    next_tag(&r->out, r->sealed, size, tag);
    memcpy(r->sealed + 4, tag, TAG_BYTES);
    r->sealed_size = RECORD_HEAD + size;
    r->sealed_sent = 0;
    return size;
}

size_t records_output(const Records *r, const uint8_t **data) {
    *data = r->sealed + r->sealed_sent;
    return r->sealed_size - r->sealed_sent;
}

void records_sent(Records *r, size_t size) { r->sealed_sent += size; }
