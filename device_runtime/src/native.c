/* mlc_load: the loader's link step with this machine's architecture, memory and helpers. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>
#include <unistd.h>

#include "load.h"
#include "reloc.h"

#if defined(__aarch64__)
#define NATIVE mlc_arch_aarch64
#elif defined(__arm__)
#define NATIVE mlc_arch_arm
#elif defined(__x86_64__)
#define NATIVE mlc_arch_x86_64
#else
#error "the runtime is for aarch64, arm and x86_64"
#endif

static unsigned char *map(size_t size, uint64_t *address) {
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = MAP_FAILED;
#ifdef MAP_32BIT /* x86-64: code of the small model may hold absolute addresses of 31 bits */
    base = mmap(NULL, size, protection, flags | MAP_32BIT, -1, 0);
#endif
    if (base == MAP_FAILED) base = mmap(NULL, size, protection, flags, -1, 0);
    *address = (uintptr_t)base;
    return base == MAP_FAILED ? NULL : base;
}

static bool seal(unsigned char *base, size_t code, size_t constants) {
    /* What was written lies in the data cache; instructions are fetched through another one. */
    __builtin___clear_cache((char *)base, (char *)base + code);
    /* QEMU refuses nothing to protect: a model may have no kernels, or no constants. */
    return (!code || mprotect(base, code, PROT_READ | PROT_EXEC) == 0) &&
           (!constants || mprotect(base + code, constants, PROT_READ) == 0);
}

static void unmap(unsigned char *base, size_t size) { munmap(base, size); }

const char *mlc_load(mlc_image *image, const void *object, size_t size, char *why,
                     size_t why_size) {
    mlc_memory memory = {(size_t)getpagesize(), map, seal, unmap, mlc_helper};
    return mlc_link(image, &NATIVE, &memory, object, size, why, why_size);
}

void mlc_unload(mlc_image *image) {
    if (image->base) unmap(image->base, image->size);
    *image = (mlc_image){0};
}
