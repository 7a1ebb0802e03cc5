/* Sections -> layout -> symbols -> relocations -> sealed image.
 *
 * The image, one mapping:
 *
 *   code       executable sections, then one veneer per global symbol
 *   constants  read-only sections, then per global symbol its value (this is the GOT) and name
 *   data       writable sections
 *
 * Each part begins on its own page. A veneer or a GOT entry per symbol, used or not, costs
 * little memory and spares counting which are needed. */
#include "load.h"

#include <string.h>

#include "elf_reader.h"
#include "reloc.h"

const char mlc_reloc_unsupported[] = "is not supported";
const char mlc_reloc_outside[] = "runs past the end";
const char mlc_reloc_range[] = "is out of range";
const char mlc_reloc_misaligned[] = "is misaligned";
const char mlc_reloc_state[] = "branches between ARM and Thumb code without a link";
const char mlc_reloc_local[] = "needs a global symbol";

enum { MAX_SECTIONS = 4096, MAX_GLOBALS = 1 << 18, MAX_ALIGNMENT = 4096 };

typedef enum { CODE, CONSTANTS, DATA, SKIPPED } Part;
static const uint32_t NOWHERE = UINT32_MAX; /* in place of an image offset or a name */

typedef struct {
    mlc_elf elf;
    const mlc_arch *arch;
    const mlc_memory *memory;
    unsigned char *base;   /* the image's bytes */
    uint64_t address;      /* where it will run */
    uint32_t symbol_table; /* its section's index; 0 when there is none */
    mlc_elf_section symbols, strings;
    uint32_t first_global, globals;
    uint64_t end[3];                             /* of each part, in the image */
    uint64_t veneers, values, names, strings_at; /* in the image */
    uint32_t placed[MAX_SECTIONS];               /* offset in the image, or NOWHERE */
} Loader;

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static void unsupported(Loader *l, const char *noun, const char *name, const char *what) {
    mlc_elf_fail(&l->elf, "%s '%s' is %s, which is not supported", noun, name, what);
}

/* Which part of the image a section belongs to. Unwind tables are skipped: nothing unwinds. */
static Part part_of(Loader *l, const mlc_elf_section *s) {
    if (s->type == SHT_CREL || s->type == SHT_RELR || s->type == SHT_SYMTAB_SHNDX)
        mlc_elf_fail(&l->elf, "section '%s' of type %u is not supported",
                     mlc_elf_section_name(&l->elf, s), s->type);
    if (!(s->flags & SHF_ALLOC) || s->type == SHT_UNWIND || s->type == SHT_NOTE) return SKIPPED;
    const char *name = mlc_elf_section_name(&l->elf, s);
    if (starts_with(name, ".eh_frame") || starts_with(name, ".ARM.ex")) return SKIPPED;
    if (s->flags & SHF_TLS) unsupported(l, "section", name, "thread-local");
    if (s->flags & SHF_COMPRESSED) unsupported(l, "section", name, "compressed");
    if (s->type != SHT_PROGBITS && s->type != SHT_NOBITS)
        mlc_elf_fail(&l->elf, "section '%s' of type %u is not supported", name, s->type);
    if ((s->flags & SHF_WRITE) && (s->flags & SHF_EXECINSTR))
        mlc_elf_fail(&l->elf, "section '%s' is both writable and executable", name);
    if (s->alignment > MAX_ALIGNMENT || (s->alignment & (s->alignment - 1)))
        mlc_elf_fail(&l->elf, "section '%s' has alignment %llu, not a power of two up to %u", name,
                     (unsigned long long)s->alignment, (unsigned)MAX_ALIGNMENT);
    return s->flags & SHF_EXECINSTR ? CODE : s->flags & SHF_WRITE ? DATA : CONSTANTS;
}

/* Aligns *end, adds size to it and returns where that begins. The cap keeps *end small enough for
 * every sum of offsets that follows. */
static uint64_t reserve(Loader *l, uint64_t *end, uint64_t alignment, uint64_t size) {
    uint64_t mask = alignment ? alignment - 1 : 0;
    uint64_t begin = (*end + mask) & ~mask;
    if (begin > MLC_IMAGE_MAX || size > MLC_IMAGE_MAX - begin) {
        mlc_elf_fail(&l->elf, "object needs more than %u MB of memory; try: smaller modules",
                     (unsigned)(MLC_IMAGE_MAX >> 20));
        return 0;
    }
    *end = begin + size;
    return begin;
}

static void find_symbols(Loader *l) {
    for (uint32_t i = 1; i < l->elf.sections && !l->elf.failed; i++) {
        mlc_elf_section s = mlc_elf_section_at(&l->elf, i);
        if (s.type != SHT_SYMTAB) continue;
        if (l->symbol_table)
            mlc_elf_fail(&l->elf, "object has two symbol tables");
        l->symbol_table = i;
        l->symbols = s;
        l->strings = mlc_elf_section_at(&l->elf, s.link);
    }
    if (!l->symbol_table || l->elf.failed) return;
    uint32_t count = mlc_elf_entries(&l->elf, &l->symbols);
    l->first_global = l->symbols.info;
    if (l->first_global > count || count - l->first_global > MAX_GLOBALS)
        mlc_elf_fail(&l->elf, "symbol table has %u entries, the first global one %u", count,
                     l->first_global);
    else
        l->globals = count - l->first_global;
    const mlc_elf_section *t = &l->strings;
    if (t->type != SHT_STRTAB || t->size == 0 || l->elf.bytes[t->offset + t->size - 1] != 0)
        mlc_elf_fail(&l->elf, "symbol table has no proper string table");
}

static void lay_out(Loader *l) {
    if (l->elf.sections > MAX_SECTIONS)
        mlc_elf_fail(&l->elf, "object has %u sections, more than %u", l->elf.sections,
                     (unsigned)MAX_SECTIONS);
    uint64_t end = 0;
    uint32_t loaded = 0;
    l->placed[0] = NOWHERE; /* section 0 stands for none */
    for (Part part = CODE; part <= DATA && !l->elf.failed; part++) {
        for (uint32_t i = 1; i < l->elf.sections && !l->elf.failed; i++) {
            mlc_elf_section s = mlc_elf_section_at(&l->elf, i);
            Part own = part_of(l, &s);
            if (own == part) {
                l->placed[i] = (uint32_t)reserve(l, &end, s.alignment, s.size);
                loaded++;
            } else if (part == CODE) {
                l->placed[i] = NOWHERE;
            }
        }
        if (part == CODE) {
            l->veneers = reserve(l, &end, MLC_VENEER_SIZE, (uint64_t)l->globals * MLC_VENEER_SIZE);
        } else if (part == CONSTANTS) {
            l->values = reserve(l, &end, 8, (uint64_t)l->globals * sizeof(uint64_t));
            l->names = reserve(l, &end, 4, (uint64_t)l->globals * sizeof(uint32_t));
            l->strings_at = reserve(l, &end, 1, l->strings.size);
        }
        reserve(l, &end, l->memory->page, 0);
        l->end[part] = end;
    }
    if (!l->elf.failed && loaded == 0) mlc_elf_fail(&l->elf, "object has neither code nor data");
}

static void copy_sections(Loader *l) {
    for (uint32_t i = 1; i < l->elf.sections; i++) {
        mlc_elf_section s = mlc_elf_section_at(&l->elf, i);
        if (l->placed[i] != NOWHERE && s.type != SHT_NOBITS && s.size)
            memcpy(l->base + l->placed[i], l->elf.bytes + s.offset, (size_t)s.size);
    }
    if (l->strings.size)
        memcpy(l->base + l->strings_at, l->elf.bytes + l->strings.offset, (size_t)l->strings.size);
}

/* A symbol's name for messages; a section's own symbol has none, and goes by the section's. */
static const char *symbol_name(Loader *l, const mlc_elf_symbol *symbol) {
    if (symbol->type == STT_SECTION && symbol->section < l->elf.sections) {
        mlc_elf_section section = mlc_elf_section_at(&l->elf, symbol->section);
        return mlc_elf_section_name(&l->elf, &section);
    }
    return mlc_elf_string(&l->elf, &l->strings, symbol->name);
}

/* Address of a symbol that the object defines in a loaded section. */
static uint64_t defined_address(Loader *l, const mlc_elf_symbol *symbol) {
    if (symbol->section == SHN_ABS) return symbol->value;
    if (symbol->section == SHN_COMMON)
        mlc_elf_fail(&l->elf, "symbol '%s' is common, which is not supported; try: -fno-common",
                     symbol_name(l, symbol));
    else if (symbol->section >= SHN_LORESERVE)
        mlc_elf_fail(&l->elf, "symbol '%s' is in section %u, which is reserved",
                     symbol_name(l, symbol), symbol->section);
    mlc_elf_section section = mlc_elf_section_at(&l->elf, symbol->section);
    if (l->elf.failed) return 0;
    if (l->placed[symbol->section] == NOWHERE)
        mlc_elf_fail(&l->elf, "symbol '%s' is in section '%s', which is not loaded",
                     symbol_name(l, symbol), mlc_elf_section_name(&l->elf, &section));
    if (symbol->value > section.size)
        mlc_elf_fail(&l->elf, "symbol '%s' is beyond the end of its section '%s'",
                     symbol_name(l, symbol), mlc_elf_section_name(&l->elf, &section));
    return l->address + l->placed[symbol->section] + symbol->value;
}

/* Fills the GOT: where each global symbol is; 0 for one that nobody defines, or that is in a section
 * which is not loaded. */
static void resolve_globals(Loader *l) {
    uint64_t *values = (uint64_t *)(void *)(l->base + l->values);
    uint32_t *names = (uint32_t *)(void *)(l->base + l->names);
    for (uint32_t i = 0; i < l->globals && !l->elf.failed; i++) {
        mlc_elf_symbol symbol = mlc_elf_symbol_at(&l->elf, &l->symbols, l->first_global + i);
        const char *name = mlc_elf_string(&l->elf, &l->strings, symbol.name);
        names[i] = NOWHERE;
        if (l->elf.failed) return;
        if (symbol.section == SHN_UNDEF && strcmp(name, "_GLOBAL_OFFSET_TABLE_") == 0) {
            values[i] = l->address + l->values;
        } else if (symbol.section == SHN_UNDEF) {
            values[i] = l->memory->helper(name);
        } else if (symbol.section >= l->elf.sections || l->placed[symbol.section] != NOWHERE) {
            values[i] = defined_address(l, &symbol);
            names[i] = symbol.name;
        }
        if (values[i])
            l->arch->write_veneer(l->base + l->veneers + (size_t)i * MLC_VENEER_SIZE, values[i]);
    }
}

/* Sets what a relocation must know of its symbol. */
static void resolve(Loader *l, uint32_t index, mlc_relocation *r) {
    if (index == 0) /* no symbol: the addend is all */
        return;
    mlc_elf_symbol symbol = mlc_elf_symbol_at(&l->elf, &l->symbols, index);
    if (symbol.type == STT_TLS || symbol.type == STT_GNU_IFUNC)
        unsupported(l, "symbol", symbol_name(l, &symbol),
                    symbol.type == STT_TLS ? "thread-local" : "an indirect function");
    if (l->elf.failed) return;
    uint64_t value = 0;
    if (index >= l->first_global) {
        uint64_t slot = index - l->first_global;
        r->got = r->origin + slot * sizeof(uint64_t);
        r->bridge = l->address + l->veneers + slot * MLC_VENEER_SIZE;
        memcpy(&value, l->base + l->values + slot * sizeof(uint64_t), sizeof value);
        r->veneer = symbol.section == SHN_UNDEF && value != 0 && value != r->origin;
        r->symbol = r->veneer ? r->bridge : value;
    }
    if (symbol.section != SHN_UNDEF) {
        r->symbol = defined_address(l, &symbol);
        r->function = symbol.type == STT_FUNC;
    } else if (value == 0 && symbol.binding != STB_WEAK) {
        mlc_elf_fail(&l->elf, "undefined symbol '%s'", symbol_name(l, &symbol));
    }
}

static void relocate_section(Loader *l, const mlc_elf_section *table) {
    mlc_elf_section target = mlc_elf_section_at(&l->elf, table->info);
    if (l->elf.failed || l->placed[table->info] == NOWHERE) return;
    const char *name = mlc_elf_section_name(&l->elf, &target);
    if ((table->type == SHT_RELA) != l->arch->wide)
        mlc_elf_fail(&l->elf, "section '%s' has relocations of the form %s, not %s", name,
                     l->arch->wide ? "REL" : "RELA", l->arch->wide ? "RELA" : "REL");
    if (table->link != l->symbol_table)
        mlc_elf_fail(&l->elf, "section '%s' has relocations without a symbol table", name);
    uint32_t entries = mlc_elf_entries(&l->elf, table);
    for (uint32_t i = 0; i < entries && !l->elf.failed; i++) {
        mlc_elf_relocation entry = mlc_elf_relocation_at(&l->elf, table, i);
        if (entry.type == 0) /* R_..._NONE on every machine: only keeps the symbol alive */
            continue;
        if (entry.offset > target.size) {
            mlc_elf_fail(&l->elf, "relocation at 0x%llx is beyond the end of section '%s'",
                         (unsigned long long)entry.offset, name);
            return;
        }
        uint64_t offset = l->placed[table->info] + entry.offset;
        mlc_relocation r = {
            .type = entry.type,
            .place = l->base + offset,
            .room = target.size - entry.offset,
            .at = l->address + offset,
            .addend = entry.addend,
            .origin = l->address + l->values,
        };
        resolve(l, entry.symbol, &r);
        if (l->elf.failed) return;
        const char *wrong = l->arch->relocate(&r);
        if (wrong) {
            mlc_elf_symbol symbol = mlc_elf_symbol_at(&l->elf, &l->symbols, entry.symbol);
            mlc_elf_fail(&l->elf, "relocation type %u %s in section %s at 0x%llx, symbol '%s'",
                         entry.type, wrong, name, (unsigned long long)entry.offset,
                         symbol_name(l, &symbol));
        }
    }
}

static void relocate_all(Loader *l) {
    for (uint32_t i = 1; i < l->elf.sections && !l->elf.failed; i++) {
        mlc_elf_section s = mlc_elf_section_at(&l->elf, i);
        if (s.type == SHT_REL || s.type == SHT_RELA) relocate_section(l, &s);
    }
}

static void check_machine(Loader *l) {
    const char *name = mlc_elf_machine_name(l->elf.machine);
    const char *own = mlc_elf_machine_name(l->arch->machine);
    if (l->elf.machine != l->arch->machine && name)
        mlc_elf_fail(&l->elf, "object is for %s, this board runs %s; try: a target for %s", name,
                     own, own);
    else if (l->elf.machine != l->arch->machine)
        mlc_elf_fail(&l->elf,
                     "object is for ELF machine %u, this board runs %s; try: a target for %s",
                     l->elf.machine, own, own);
    else if (l->elf.wide != l->arch->wide)
        mlc_elf_fail(&l->elf, "object is ELF%u, but %s has ELF%u", l->elf.wide ? 64U : 32U, own,
                     l->arch->wide ? 64U : 32U);
    else if (l->arch->check)
        l->arch->check(&l->elf);
}

const char *mlc_link(mlc_image *image, const mlc_arch *arch, const mlc_memory *memory,
                     const void *object, size_t size, char *why, size_t why_size) {
    *image = (mlc_image){0};
    Loader l = {.arch = arch, .memory = memory};
    if (mlc_elf_open(&l.elf, object, size, why, why_size)) check_machine(&l);
    find_symbols(&l);
    lay_out(&l);
    if (l.elf.failed) return why;

    size_t total = (size_t)l.end[DATA];
    l.base = memory->map(total, &l.address);
    if (!l.base) {
        mlc_elf_fail(&l.elf, "no memory for an object of %zu bytes", total);
        return why;
    }
    copy_sections(&l);
    resolve_globals(&l);
    relocate_all(&l);
    size_t code = (size_t)l.end[CODE], constants = (size_t)(l.end[CONSTANTS] - l.end[CODE]);
    if (!l.elf.failed && !memory->seal(l.base, code, constants))
        mlc_elf_fail(&l.elf, "this system does not let memory become executable");
    if (l.elf.failed) {
        memory->unmap(l.base, total);
        return why;
    }
    *image = (mlc_image){
        .base = l.base,
        .size = total,
        .values = (const uint64_t *)(const void *)(l.base + l.values),
        .names = (const uint32_t *)(const void *)(l.base + l.names),
        .strings = (const char *)l.base + l.strings_at,
        .symbols = l.globals,
    };
    return NULL;
}

void *mlc_image_symbol(const mlc_image *image, const char *name) {
    for (size_t i = 0; i < image->symbols; i++)
        if (image->names[i] != NOWHERE && strcmp(image->strings + image->names[i], name) == 0)
            return (void *)(uintptr_t)image->values[i];
    return NULL;
}

const unsigned char *mlc_object_section(const void *object, size_t size, const char *name,
                                        size_t *found_size, char *why, size_t why_size) {
    mlc_elf elf;
    mlc_elf_open(&elf, object, size, why, why_size);
    for (uint32_t i = 1; i < elf.sections && !elf.failed; i++) {
        mlc_elf_section s = mlc_elf_section_at(&elf, i);
        if (s.type != SHT_NOBITS && strcmp(mlc_elf_section_name(&elf, &s), name) == 0 &&
            !elf.failed) {
            *found_size = (size_t)s.size;
            return elf.bytes + s.offset;
        }
    }
    mlc_elf_fail(&elf, "object has no section '%s'", name);
    return NULL;
}
