/* BLAKE2b-256 (RFC 7693, 32-byte digest), fed piece by piece; with a key, a MAC. */
#ifndef MLC_BLAKE2B_H
#define MLC_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

enum { HASH_BYTES = 32 };

typedef struct {
    uint64_t state[8];
    uint64_t counted; /* bytes compressed; 2^64 of them are out of reach */
    uint8_t block[128];
    size_t filled; /* bytes waiting in block */
} Blake2b;

void blake2b_begin(Blake2b *b);
void blake2b_begin_keyed(Blake2b *b, const uint8_t key[HASH_BYTES]);
void blake2b_add(Blake2b *b, const void *data, size_t size);
void blake2b_end(Blake2b *b, uint8_t hash[HASH_BYTES]);

#endif
