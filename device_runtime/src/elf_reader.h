/* Reads a relocatable ELF object (32 or 64 bits, little-endian) out of untrusted bytes.
 *
 * The first failure is kept, as a sentence in `why`; every later read gives zeros. So code may read
 * on and ask once, as long as it takes no size or offset from a failed read for checked: zeros and
 * empty names are always safe. */
#ifndef MLC_ELF_READER_H
#define MLC_ELF_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Named as in the ELF specification and its processor supplements. */
enum { EM_ARM = 40, EM_X86_64 = 62, EM_AARCH64 = 183 };
enum {
    SHT_NULL = 0,
    SHT_PROGBITS = 1,
    SHT_SYMTAB = 2,
    SHT_STRTAB = 3,
    SHT_RELA = 4,
    SHT_NOTE = 7,
    SHT_NOBITS = 8,
    SHT_REL = 9,
    SHT_SYMTAB_SHNDX = 18,
    SHT_RELR = 19,
    SHT_CREL = 0x40000014,
    SHT_UNWIND = 0x70000001, /* SHT_ARM_EXIDX and SHT_X86_64_UNWIND are one number */
    SHT_ARM_ATTRIBUTES = 0x70000003
};
enum { SHF_WRITE = 1, SHF_ALLOC = 2, SHF_EXECINSTR = 4, SHF_TLS = 0x400, SHF_COMPRESSED = 0x800 };
enum { SHN_UNDEF = 0, SHN_LORESERVE = 0xff00, SHN_ABS = 0xfff1, SHN_COMMON = 0xfff2 };
enum { STB_LOCAL = 0, STB_GLOBAL = 1, STB_WEAK = 2 };
enum { STT_FUNC = 2, STT_SECTION = 3, STT_TLS = 6, STT_GNU_IFUNC = 10 };

typedef struct {
    const unsigned char *bytes;
    size_t size;
    bool wide;             /* ELF64 */
    uint32_t machine;      /* EM_... */
    uint32_t flags;        /* e_flags */
    uint64_t headers;      /* where the section headers begin */
    uint32_t sections;     /* how many there are */
    uint32_t section_names; /* index of the string table with their names */
    char *why;
    size_t why_size;
    bool failed;
} mlc_elf;

typedef struct {
    uint32_t name, type, link, info;
    uint64_t flags, offset, size, alignment, entry_size;
} mlc_elf_section;

typedef struct {
    uint32_t name, section;
    uint8_t type, binding;
    uint64_t value;
} mlc_elf_symbol;

typedef struct {
    uint32_t type, symbol;
    uint64_t offset;
    int64_t addend; /* 0 in SHT_REL sections: there it stands in the bytes to relocate */
} mlc_elf_relocation;

/* Checks the headers; false on failure. */
bool mlc_elf_open(mlc_elf *elf, const void *bytes, size_t size, char *why, size_t why_size);

/* Records the first failure; bytes of names that are not printable ASCII become '?'. */
void mlc_elf_fail(mlc_elf *elf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Little-endian number of 1, 2, 4 or 8 bytes at an offset. `where` names what is being read. */
uint64_t mlc_elf_number(mlc_elf *elf, uint64_t offset, unsigned width, const char *where);

/* The index-th section header; its bytes [offset, offset + size) are inside the object, unless it
 * is SHT_NOBITS, which has none there, at offset 0. An SHT_NULL one is all zeros. */
mlc_elf_section mlc_elf_section_at(mlc_elf *elf, uint32_t index);

/* The index-th entry of a table that mlc_elf_section_at returned. */
mlc_elf_symbol mlc_elf_symbol_at(mlc_elf *elf, const mlc_elf_section *table, uint32_t index);
mlc_elf_relocation mlc_elf_relocation_at(mlc_elf *elf, const mlc_elf_section *table,
                                         uint32_t index);

/* Entries of a symbol or relocation table: whole ones. */
uint32_t mlc_elf_entries(const mlc_elf *elf, const mlc_elf_section *table);

/* A string of a string table, its end checked; "" on failure. */
const char *mlc_elf_string(mlc_elf *elf, const mlc_elf_section *table, uint32_t offset);
const char *mlc_elf_section_name(mlc_elf *elf, const mlc_elf_section *section);

/* "aarch64", "arm", "x86_64", or NULL for another e_machine. */
const char *mlc_elf_machine_name(uint32_t machine);

#endif
