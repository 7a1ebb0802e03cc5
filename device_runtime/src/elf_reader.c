/* Reading ELF out of untrusted bytes: number, header, section, string, symbol, relocation. */
#include "elf_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mlc_elf_fail(mlc_elf *elf, const char *format, ...) {
    if (elf->failed) return;
    elf->failed = true;
    if (elf->why_size == 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(elf->why, elf->why_size, format, arguments);
    va_end(arguments);
    for (char *c = elf->why; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

uint64_t mlc_elf_number(mlc_elf *elf, uint64_t offset, unsigned width, const char *where) {
    if (elf->failed) return 0;
    if (offset > elf->size || width > elf->size - offset) {
        mlc_elf_fail(elf, "object ends inside its %s; try: send it again", where);
        return 0;
    }
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++) value |= (uint64_t)elf->bytes[offset + i] << (8 * i);
    return value;
}

/* Where the fields of each structure stand, in ELF32 and in ELF64. */
typedef struct {
    uint8_t at32, width32, at64, width64;
} Field;

static uint64_t field(mlc_elf *elf, uint64_t base, Field f, const char *where) {
    return elf->wide ? mlc_elf_number(elf, base + f.at64, f.width64, where)
                     : mlc_elf_number(elf, base + f.at32, f.width32, where);
}

static uint32_t field32(mlc_elf *elf, uint64_t base, Field f, const char *where) {
    return (uint32_t)field(elf, base, f, where);
}

static unsigned section_header_size(const mlc_elf *elf) { return elf->wide ? 64 : 40; }

static unsigned entry_size(const mlc_elf *elf, uint32_t type) {
    switch (type) {
    case SHT_SYMTAB:
        return elf->wide ? 24 : 16;
    case SHT_RELA:
        return elf->wide ? 24 : 12;
    default:
        return elf->wide ? 16 : 8; /* SHT_REL */
    }
}

const char *mlc_elf_machine_name(uint32_t machine) {
    switch (machine) {
    case EM_AARCH64:
        return "aarch64";
    case EM_ARM:
        return "arm";
    case EM_X86_64:
        return "x86_64";
    default:
        return NULL;
    }
}

bool mlc_elf_open(mlc_elf *elf, const void *bytes, size_t size, char *why, size_t why_size) {
    *elf = (mlc_elf){.bytes = bytes, .size = size, .why = why, .why_size = why_size};
    static const char *const header = "file header";
    uint64_t magic = mlc_elf_number(elf, 0, 4, header);
    uint64_t kind = mlc_elf_number(elf, 4, 1, header), order = mlc_elf_number(elf, 5, 1, header);
    if (!elf->failed && magic != 0x464c457f)
        mlc_elf_fail(elf, "object is not an ELF file; try: what lib.save(\"name.o\") wrote");
    if (!elf->failed && (order != 1 || kind < 1 || kind > 2))
        mlc_elf_fail(elf, "object is not a little-endian ELF file of 32 or 64 bits");
    elf->wide = kind == 2;
    uint64_t type = mlc_elf_number(elf, 16, 2, header);
    if (!elf->failed && type != 1)
        mlc_elf_fail(elf, "object is ELF of type %u, not relocatable (1); try: an unlinked .o file",
                     (unsigned)type);
    elf->machine = (uint32_t)mlc_elf_number(elf, 18, 2, header);
    elf->headers = field(elf, 0, (Field){32, 4, 40, 8}, header);
    elf->flags = field32(elf, 0, (Field){36, 4, 48, 4}, header);
    uint32_t header_size = field32(elf, 0, (Field){46, 2, 58, 2}, header);
    elf->sections = field32(elf, 0, (Field){48, 2, 60, 2}, header);
    elf->section_names = field32(elf, 0, (Field){50, 2, 62, 2}, header);
    if (!elf->failed && header_size != section_header_size(elf))
        mlc_elf_fail(elf, "object's section headers have %u bytes, not %u", header_size,
                     section_header_size(elf));
    if (!elf->failed && elf->headers > elf->size)
        mlc_elf_fail(elf, "object ends before its section headers; try: send it again");
    if (elf->failed) elf->sections = 0;
    return !elf->failed;
}

mlc_elf_section mlc_elf_section_at(mlc_elf *elf, uint32_t index) {
    const mlc_elf_section none = {0};
    if (elf->failed) return none;
    if (index >= elf->sections) {
        mlc_elf_fail(elf, "object refers to section %u, but has %u", index, elf->sections);
        return none;
    }
    char where[32];
    snprintf(where, sizeof where, "section header %u", index);
    uint64_t base = elf->headers + (uint64_t)index * section_header_size(elf);
    mlc_elf_section section = {
        .name = field32(elf, base, (Field){0, 4, 0, 4}, where),
        .type = field32(elf, base, (Field){4, 4, 4, 4}, where),
        .flags = field(elf, base, (Field){8, 4, 8, 8}, where),
        .offset = field(elf, base, (Field){16, 4, 24, 8}, where),
        .size = field(elf, base, (Field){20, 4, 32, 8}, where),
        .link = field32(elf, base, (Field){24, 4, 40, 4}, where),
        .info = field32(elf, base, (Field){28, 4, 44, 4}, where),
        .alignment = field(elf, base, (Field){32, 4, 48, 8}, where),
        .entry_size = field(elf, base, (Field){36, 4, 56, 8}, where),
    };
    if (section.type == SHT_NULL) /* whatever its other fields say */
        return none;
    if (section.type == SHT_NOBITS)
        section.offset = 0;
    else if (section.offset > elf->size || section.size > elf->size - section.offset)
        mlc_elf_fail(elf, "object ends inside section %u; try: send it again", index);
    bool table = section.type == SHT_SYMTAB || section.type == SHT_RELA || section.type == SHT_REL;
    if (table && section.entry_size != entry_size(elf, section.type))
        mlc_elf_fail(elf, "section %u is a table with entries of %llu bytes, not %u", index,
                     (unsigned long long)section.entry_size, entry_size(elf, section.type));
    return elf->failed ? none : section;
}

const char *mlc_elf_string(mlc_elf *elf, const mlc_elf_section *table, uint32_t offset) {
    if (elf->failed) return "";
    if (table->type != SHT_STRTAB) {
        mlc_elf_fail(elf, "object keeps a name in a section that is not a string table");
        return "";
    }
    const unsigned char *strings = elf->bytes + table->offset;
    if (offset >= table->size || !memchr(strings + offset, 0, (size_t)(table->size - offset))) {
        mlc_elf_fail(elf, "object has a name at %u, beyond its string table", offset);
        return "";
    }
    return (const char *)(strings + offset);
}

const char *mlc_elf_section_name(mlc_elf *elf, const mlc_elf_section *section) {
    mlc_elf_section names = mlc_elf_section_at(elf, elf->section_names);
    return mlc_elf_string(elf, &names, section->name);
}

uint32_t mlc_elf_entries(const mlc_elf *elf, const mlc_elf_section *table) {
    uint64_t entries = table->size / entry_size(elf, table->type);
    return entries > UINT32_MAX ? UINT32_MAX : (uint32_t)entries;
}

mlc_elf_symbol mlc_elf_symbol_at(mlc_elf *elf, const mlc_elf_section *table, uint32_t index) {
    static const char *const where = "symbol table";
    if (!elf->failed && index >= mlc_elf_entries(elf, table))
        mlc_elf_fail(elf, "object refers to symbol %u, but has %u", index,
                     mlc_elf_entries(elf, table));
    uint64_t base = table->offset + (uint64_t)index * entry_size(elf, SHT_SYMTAB);
    uint32_t info = field32(elf, base, (Field){12, 1, 4, 1}, where);
    mlc_elf_symbol symbol = {
        .name = field32(elf, base, (Field){0, 4, 0, 4}, where),
        .section = field32(elf, base, (Field){14, 2, 6, 2}, where),
        .type = info & 15,
        .binding = (uint8_t)(info >> 4),
        .value = field(elf, base, (Field){4, 4, 8, 8}, where),
    };
    return symbol;
}

mlc_elf_relocation mlc_elf_relocation_at(mlc_elf *elf, const mlc_elf_section *table,
                                         uint32_t index) {
    static const char *const where = "relocations";
    uint64_t base = table->offset + (uint64_t)index * entry_size(elf, table->type);
    uint64_t offset = field(elf, base, (Field){0, 4, 0, 8}, where);
    uint64_t info = field(elf, base, (Field){4, 4, 8, 8}, where);
    uint64_t addend = 0;
    if (table->type == SHT_RELA) addend = field(elf, base, (Field){8, 4, 16, 8}, where);
    return (mlc_elf_relocation){
        .type = elf->wide ? (uint32_t)info : (uint32_t)info & 0xff,
        .symbol = (uint32_t)(info >> (elf->wide ? 32 : 8)),
        .offset = offset,
        .addend = elf->wide ? (int64_t)addend : (int32_t)(uint32_t)addend,
    };
}
