/* Memory with guard bytes on both sides, and bytes from stdin. Where AddressSanitizer is on, an
 * access beyond the guard bytes ends the program; a store into them is found by `intact`. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

/* Aligned to GUARD; filled with 0x55. */
static unsigned char *guarded(size_t bytes) {
    size_t whole = (bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    unsigned char *memory = aligned_alloc(GUARD, whole);
    if (!memory) exit(3);
    memset(memory, GUARD_BYTE, whole);
    memset(memory + GUARD, 0x55, bytes);
    return memory + GUARD;
}

static int intact(const unsigned char *memory, size_t bytes) {
    const unsigned char *before = memory - GUARD;
    size_t end = (bytes + GUARD - 1) / GUARD * GUARD + GUARD;
    for (size_t i = 0; i < GUARD; i++)
        if (before[i] != GUARD_BYTE) return 0;
    for (size_t i = bytes; i < end; i++)
        if (memory[i] != GUARD_BYTE) return 0;
    return 1;
}

static void freed(unsigned char *memory) {
    free(memory - GUARD);
}

static void read_exactly(unsigned char *to, size_t bytes) {
    if (bytes > 0 && fread(to, 1, bytes, stdin) != bytes) exit(4);
}

static void answer(int32_t status, int32_t whole) {
    int32_t words[2] = {status, whole};
    fwrite(words, sizeof words, 1, stdout);
}
