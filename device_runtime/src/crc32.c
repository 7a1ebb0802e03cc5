#include "crc32.h"

#include "cpu.h"

#include <stdbool.h>
#include <string.h>

enum { STEP = 8 }; /* bytes at a time */

static const uint32_t POLYNOMIAL = 0xedb88320; /* bit-reversed */

#ifdef __aarch64__
static bool has_instruction(void) { return mlc_cpu_has("crc"); }

static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t steps) {
    for (; steps > 0; steps--, at += STEP) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    return crc;
}
#else
static bool has_instruction(void) { return false; }

static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t steps) {
    (void)at, (void)steps;
    return crc;
}
#endif

/* tables[n][b]: what byte b does to the remainder with n bytes after it (Kounavis and Berry 2005). */
static uint32_t tables[STEP][256];

static void make_tables(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][b] = crc;
    }
    for (int n = 1; n < STEP; n++)
        for (uint32_t b = 0; b < 256; b++)
            tables[n][b] = tables[n - 1][b] >> 8 ^ tables[0][tables[n - 1][b] & 255];
}

static uint32_t by_tables(uint32_t crc, const uint8_t *at, size_t steps) {
    for (; steps > 0; steps--, at += STEP) {
        uint32_t low, high;
        memcpy(&low, at, sizeof low); /* little-endian, as those of every machine of ours are */
        memcpy(&high, at + sizeof low, sizeof high);
        low ^= crc;
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^
              tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    return crc;
}

uint32_t crc32_of(const void *data, size_t size) {
    const uint8_t *at = data;
    size_t steps = size / STEP;
    if (!tables[0][1]) make_tables();
    uint32_t crc = has_instruction() ? by_instruction(~0u, at, steps) : by_tables(~0u, at, steps);
    for (size_t i = steps * STEP; i < size; i++) crc = crc >> 8 ^ tables[0][(crc ^ at[i]) & 255];
    return ~crc;
}
