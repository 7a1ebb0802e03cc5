#include "mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned long fuzz_accepted;

#ifdef MLC_FUZZ_MAIN

enum { MAX_SIZE = 1 << 20 };

static uint64_t state = 0x9e3779b97f4a7c15;

/* A number below `limit` (xorshift*). */
static size_t draw(size_t limit) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % limit;
}

static const uint64_t edges[] = {
    0, 1, 2, 3, 4, 7, 8, 0x7f, 0x80, 0xff, 0x1000, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000,
    0xfffffff0, 0xffffffff, UINT64_MAX / 2, UINT64_MAX / 2 + 1, UINT64_MAX - 7, UINT64_MAX,
};

/* Where something decisive stands: half of the time the headers at the end or at the beginning. */
static size_t place(size_t size) {
    size_t headers = size < 2048 ? size : 2048;
    switch (draw(4)) {
    case 0: return size - 1 - draw(headers);
    case 1: return draw(size < 64 ? size : 64);
    default: return draw(size);
    }
}

static size_t mutate(unsigned char *data, size_t size) {
    for (size_t rounds = 1 + draw(6); rounds && size > 1; rounds--) {
        size_t at = place(size), width = (size_t)1 << draw(4);
        uint64_t value = edges[draw(sizeof edges / sizeof edges[0])];
        if (width > size - at) width = size - at;
        switch (draw(8)) {
        case 0: data[at] ^= (unsigned char)(1 << draw(8)); break;
        case 1: data[at] = (unsigned char)draw(256); break;
        case 2: data[at] = (unsigned char)(data[at] + draw(9) - 4); break;
        case 3: memmove(data + at, data + draw(size - width + 1), width); break;
        case 4: /* an entry of a table in place of another one */
            width = size - at < 24 ? size - at : 24;
            memmove(data + at, data + draw(size - width + 1), width);
            break;
        case 5:
            if (draw(4) == 0) size = 1 + draw(size);
            break;
        default: memcpy(data + at, &value, width); break;
        }
    }
    return size;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: %s COUNT SEED_FILE...\n", arguments[0]);
        return 2;
    }
    unsigned long runs = strtoul(arguments[1], NULL, 10);
    static unsigned char seed[MAX_SIZE];
    size_t files = (size_t)count - 2;
    for (size_t f = 0; f < files; f++) {
        FILE *file = fopen(arguments[2 + f], "rb");
        if (!file) {
            perror(arguments[2 + f]);
            return 2;
        }
        size_t size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        for (unsigned long i = f; i < runs; i += files) {
            unsigned char *data = malloc(size ? size : 1); /* of its size, for the sanitizer */
            if (!data) return 2;
            memcpy(data, seed, size);
            size_t mutated = mutate(data, size);
            unsigned char *exact = realloc(data, mutated ? mutated : 1);
            LLVMFuzzerTestOneInput(exact, mutated);
            free(exact);
        }
    }
    printf("%lu mutants, %lu of them accepted: no finding\n", runs, fuzz_accepted);
    return 0;
}

#endif
