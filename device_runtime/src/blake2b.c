#include "blake2b.h"

#include <string.h>

static const uint64_t IV[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

/* Order in which each round takes the message's words; rounds 10 and 11 repeat 0 and 1. */
static const uint8_t SIGMA[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                      {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                      {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                      {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                      {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                      {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

/* Calls of these would cost a release, which is compiled for size, a third of its speed. */
#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t rotate(uint64_t x, unsigned by) { return x >> by | x << (64 - by); }

INLINE void mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y) {
    *a += *b + x;
    *d = rotate(*d ^ *a, 32);
    *c += *d;
    *b = rotate(*b ^ *c, 24);
    *a += *b + y;
    *d = rotate(*d ^ *a, 16);
    *c += *d;
    *b = rotate(*b ^ *c, 63);
}

static void compress(Blake2b *b, const uint8_t *block, int last) {
    uint64_t m[16], v[16];
    for (int i = 0; i < 16; i++) /* little-endian words, as those of every machine of ours are */
        memcpy(&m[i], block + 8 * i, sizeof m[i]);
    memcpy(v, b->state, sizeof b->state);
    memcpy(v + 8, IV, sizeof IV);
    v[12] ^= b->counted;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = SIGMA[round % 10];
        mix(&v[0], &v[4], &v[8], &v[12], m[s[0]], m[s[1]]);
        mix(&v[1], &v[5], &v[9], &v[13], m[s[2]], m[s[3]]);
        mix(&v[2], &v[6], &v[10], &v[14], m[s[4]], m[s[5]]);
        mix(&v[3], &v[7], &v[11], &v[15], m[s[6]], m[s[7]]);
        mix(&v[0], &v[5], &v[10], &v[15], m[s[8]], m[s[9]]);
        mix(&v[1], &v[6], &v[11], &v[12], m[s[10]], m[s[11]]);
        mix(&v[2], &v[7], &v[8], &v[13], m[s[12]], m[s[13]]);
        mix(&v[3], &v[4], &v[9], &v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) b->state[i] ^= v[i] ^ v[i + 8];
}

void blake2b_begin(Blake2b *b) {
    *b = (Blake2b){0};
    memcpy(b->state, IV, sizeof IV);
    b->state[0] ^= 0x01010000 ^ HASH_BYTES; /* sequential, no key, digest length */
}

void blake2b_begin_keyed(Blake2b *b, const uint8_t key[HASH_BYTES]) {
    blake2b_begin(b);
    b->state[0] ^= HASH_BYTES << 8;
    memcpy(b->block, key, HASH_BYTES); /* the first block is the key, and zeros */
    b->filled = sizeof b->block;
}

void blake2b_add(Blake2b *b, const void *data, size_t size) {
    const uint8_t *at = data;
    while (size > 0) {
        if (b->filled == sizeof b->block) { /* only when more follows: the last block is marked */
            b->counted += sizeof b->block;
            compress(b, b->block, 0);
            b->filled = 0;
        }
        while (b->filled == 0 && size > sizeof b->block) { /* whole blocks need no copy */
            b->counted += sizeof b->block;
            compress(b, at, 0);
            at += sizeof b->block;
            size -= sizeof b->block;
        }
        size_t room = sizeof b->block - b->filled;
        size_t part = size < room ? size : room;
        memcpy(b->block + b->filled, at, part);
        b->filled += part;
        at += part;
        size -= part;
    }
}

void blake2b_end(Blake2b *b, uint8_t hash[HASH_BYTES]) {
    b->counted += b->filled;
    memset(b->block + b->filled, 0, sizeof b->block - b->filled);
    compress(b, b->block, 1);
    for (int i = 0; i < HASH_BYTES; i++) hash[i] = (uint8_t)(b->state[i / 8] >> (8 * (i % 8)));
}
