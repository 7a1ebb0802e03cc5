/* What the loader must know of each architecture: one mlc_arch, in one file, per architecture.
 *
 * Every architecture's file also builds on every other machine: it turns bytes into bytes, for code
 * at a given address, and runs nothing. That is how all of them are fuzzed on a laptop. */
#ifndef MLC_RELOC_H
#define MLC_RELOC_H

#include "elf_reader.h"
#include "load.h"

/* One relocation, in the specifications' letters. Addresses are those on the board. */
typedef struct {
    uint32_t type;
    unsigned char *place; /* the bytes to change */
    uint64_t room;        /* how many there are before their section ends */
    uint64_t at;          /* P: their address */
    uint64_t symbol;      /* S; Thumb functions have bit 0 set */
    int64_t addend;       /* A; 0 where it stands in the bytes */
    uint64_t got;         /* address of an 8-byte word that holds S; 0 for a local symbol */
    uint64_t origin;      /* GOT_ORG: where the words of all global symbols begin */
    uint64_t bridge;      /* address of code that jumps to S; 0 for a local symbol */
    bool function;        /* the symbol is a function */
    bool veneer;          /* S is the symbol's veneer: the function itself is outside the image */
} mlc_relocation;

/* Bytes of one veneer, on every architecture; aligned likewise. */
#define MLC_VENEER_SIZE 16

typedef struct {
    uint32_t machine; /* EM_... */
    bool wide;        /* ELF64 with RELA relocations, otherwise ELF32 with REL */

    /* Refuses an object whose conventions are not the runtime's (mlc_elf_fail); may be NULL. */
    void (*check)(mlc_elf *elf);

    /* Applies a relocation; returns NULL, or what is wrong, to follow "relocation type N ". */
    const char *(*relocate)(const mlc_relocation *relocation);

    /* Writes code that jumps to any address, for calls out of the image: a board's kernel may map
     * the image and the runtime farther apart than branches reach. */
    void (*write_veneer)(unsigned char *place, uint64_t target);
} mlc_arch;

extern const mlc_arch mlc_arch_aarch64, mlc_arch_arm, mlc_arch_x86_64;

/* What relocate() may answer. */
extern const char mlc_reloc_unsupported[], mlc_reloc_outside[], mlc_reloc_range[],
    mlc_reloc_misaligned[], mlc_reloc_state[], mlc_reloc_local[];

static inline bool mlc_fits_signed(int64_t value, unsigned bits) {
    return value >= -((int64_t)1 << (bits - 1)) && value < (int64_t)1 << (bits - 1);
}

/* Memory and helpers of the place that the code will run in. */
typedef struct {
    size_t page; /* a power of two, at least 4096 */

    /* Zeroed, writable, page-aligned memory, or NULL; *address is where code will find it. */
    unsigned char *(*map)(size_t size, uint64_t *address);

    /* Makes the first `code` bytes read+execute and the next `constants` read-only. */
    bool (*seal)(unsigned char *base, size_t code, size_t constants);
    void (*unmap)(unsigned char *base, size_t size);
    uint64_t (*helper)(const char *name); /* address of an exported function; 0 for none */
} mlc_memory;

/* mlc_load for any architecture and memory. */
const char *mlc_link(mlc_image *image, const mlc_arch *arch, const mlc_memory *memory,
                     const void *object, size_t size, char *why, size_t why_size);

/* Address of a function of the C library, libm or the compiler's runtime that generated code may
 * call; 0 when none has that name. */
uint64_t mlc_helper(const char *name);

#endif
