/* Fuzzes the loader: reading, layout and relocation for all three machines, on any machine. Nothing
 * that is loaded here runs.
 *
 * mutate.h says how it is built and started. */
#include "mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reloc.h"

enum { PAGE = 4096 };

/* Memory of exactly the size asked for, so that the sanitizer sees a step past either end. A limit
 * keeps hostile sizes from making each run slow. */
static unsigned char *map(size_t size, uint64_t *address) {
    *address = 0x40000000;
    return size > ((size_t)1 << 22) ? NULL : calloc(size, 1);
}

static bool seal(unsigned char *base, size_t code, size_t constants) {
    return base && code % PAGE == 0 && constants % PAGE == 0;
}

static void unmap(unsigned char *base, size_t size) {
    (void)size;
    free(base);
}

/* Some functions exist, near or far. */
static uint64_t helper(const char *name) {
    switch (name[0]) {
    case 'e':
        return 0x12345678;
    case 'n':
        return 0;
    default:
        return 0x40100001;
    }
}

static volatile unsigned sink; /* what is read goes here, so that the compiler keeps the reading */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const mlc_arch *const architectures[] = {&mlc_arch_aarch64, &mlc_arch_arm,
                                                    &mlc_arch_x86_64};
    static const mlc_memory memory = {PAGE, map, seal, unmap, helper};
    char why[200];
    size_t section_size = 0, own = 0;
    uint8_t machine = size > 18 ? data[18] : 0;
    for (size_t i = 0; i < 3; i++)
        if (architectures[i]->machine == machine) own = i;

    mlc_image image;
    if (!mlc_link(&image, architectures[own], &memory, data, size, why, sizeof why)) {
        fuzz_accepted++;
        sink += mlc_image_symbol(&image, "no such kernel") != NULL; /* compares with every name */
        unmap(image.base, image.size);
    }
    const unsigned char *section =
        mlc_object_section(data, size, ".mlc", &section_size, why, sizeof why);
    for (size_t i = 0; section && i < section_size; i++) sink += section[i];
    return 0;
}
