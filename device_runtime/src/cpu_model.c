/* What model each core is: ARM's MIDR, and names for the parts that boards have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "kernel_text.h"
#include "names.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <elf.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)

uint32_t mlc_cpu_midr(unsigned core) {
    (void)core;
    return 0;
}

/* The brand string: 48 characters in three leaves, padded with spaces. */
const char *mlc_cpu_model(unsigned core, char *name, size_t size) {
    (void)core;
    unsigned words[13] = {0};
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * (size_t)i;
        if (!__get_cpuid(0x80000002 + i, w, w + 1, w + 2, w + 3)) break;
    }
    char *text = (char *)words;
    text += strspn(text, " ");
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ') length--;
    snprintf(name, size, "%.*s", (int)length, length ? text : "unknown");
    return name;
}

#else

/* Implementer and part number of a MIDR, and the names of -mcpu where LLVM has one. */
#define PARTS(X)                                                                                   \
    X(0x41, 0xc05, "cortex-a5")    X(0x41, 0xc07, "cortex-a7")    X(0x41, 0xc08, "cortex-a8")      \
    X(0x41, 0xc09, "cortex-a9")    X(0x41, 0xc0d, "cortex-a17")   X(0x41, 0xc0e, "cortex-a17")     \
    X(0x41, 0xc0f, "cortex-a15")   X(0x41, 0xd01, "cortex-a32")   X(0x41, 0xd02, "cortex-a34")     \
    X(0x41, 0xd03, "cortex-a53")   X(0x41, 0xd04, "cortex-a35")   X(0x41, 0xd05, "cortex-a55")     \
    X(0x41, 0xd06, "cortex-a65")   X(0x41, 0xd07, "cortex-a57")   X(0x41, 0xd08, "cortex-a72")     \
    X(0x41, 0xd09, "cortex-a73")   X(0x41, 0xd0a, "cortex-a75")   X(0x41, 0xd0b, "cortex-a76")     \
    X(0x41, 0xd0c, "neoverse-n1")  X(0x41, 0xd0d, "cortex-a77")   X(0x41, 0xd0e, "cortex-a76ae")   \
    X(0x41, 0xd40, "neoverse-v1")  X(0x41, 0xd41, "cortex-a78")   X(0x41, 0xd42, "cortex-a78ae")   \
    X(0x41, 0xd43, "cortex-a65ae") X(0x41, 0xd44, "cortex-x1")    X(0x41, 0xd46, "cortex-a510")    \
    X(0x41, 0xd47, "cortex-a710")  X(0x41, 0xd48, "cortex-x2")    X(0x41, 0xd49, "neoverse-n2")    \
    X(0x41, 0xd4a, "neoverse-e1")  X(0x41, 0xd4b, "cortex-a78c")  X(0x41, 0xd4c, "cortex-x1c")     \
    X(0x41, 0xd4d, "cortex-a715")  X(0x41, 0xd4e, "cortex-x3")    X(0x41, 0xd4f, "neoverse-v2")    \
    X(0x41, 0xd80, "cortex-a520")  X(0x41, 0xd81, "cortex-a720")  X(0x41, 0xd82, "cortex-x4")      \
    X(0x41, 0xd84, "neoverse-v3")  X(0x41, 0xd85, "cortex-x925")  X(0x41, 0xd87, "cortex-a725")    \
    X(0x41, 0xd8e, "neoverse-n3")  X(0x43, 0x0a1, "thunderx")     X(0x43, 0x0af, "thunderx2t99")   \
    X(0x46, 0x001, "a64fx")        X(0x48, 0xd01, "tsv110")       X(0x4e, 0x004, "carmel")         \
    X(0x51, 0x04d, "krait")        X(0x51, 0x06f, "krait")        X(0x51, 0x205, "kryo")           \
    X(0x51, 0x211, "kryo")         X(0x51, 0x800, "cortex-a73")   X(0x51, 0x801, "cortex-a53")     \
    X(0x51, 0x802, "cortex-a75")   X(0x51, 0x803, "cortex-a55")   X(0x51, 0x804, "cortex-a76")     \
    X(0x51, 0x805, "cortex-a55")   X(0x51, 0x001, "oryon-1")      X(0x61, 0x022, "apple-m1")       \
    X(0x61, 0x023, "apple-m1")     X(0xc0, 0xac3, "ampere1")      X(0xc0, 0xac4, "ampere1a")

#define NAME(implementer, part, name) NUL_AFTER(name)
#define NUMBER(implementer, part, name) implementer << 12 | part,

static const char part_names[] = PARTS(NAME);
static const uint32_t part_numbers[] = {PARTS(NUMBER)};

/* A 64-bit kernel tells each core's MIDR to 32-bit programs too. */
static uint32_t midr_of_sysfs(unsigned core) {
    char path[80], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/regs/identification/midr_el1", core);
    kernel_text(path, text, sizeof text);
    return (uint32_t)strtoull(text, NULL, 16);
}

#if defined(__aarch64__)

/* The kernel lets programs read the register, and answers for the core that reads. */
static uint32_t midr_otherwise(unsigned core) {
    (void)core;
    uint64_t midr = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) __asm__("mrs %0, midr_el1" : "=r"(midr));
    return (uint32_t)midr;
}

#else

/* The number after "key : " when the line begins with that key. */
static bool line_number(const char *line, const char *key, unsigned *value) {
    size_t length = strlen(key);
    const char *colon = strchr(line, ':');
    if (strncmp(line, key, length) != 0 || !colon) return false;
    *value = (unsigned)strtoul(colon + 1, NULL, 0);
    return true;
}

/* A 32-bit kernel tells it in /proc/cpuinfo only. (Under QEMU this is the file of the machine
 * outside; if that is not an ARM, it has no such lines.) */
static uint32_t midr_otherwise(unsigned core) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return 0;
    char line[256];
    unsigned processor = 0, value = 0, implementer = 0, variant = 0, part = 0;
    uint32_t midr = 0;
    while (midr == 0 && fgets(line, sizeof line, file)) {
        if (line_number(line, "processor", &processor)) continue;
        if (line_number(line, "CPU implementer", &value))
            implementer = value;
        else if (line_number(line, "CPU variant", &value))
            variant = value;
        else if (line_number(line, "CPU part", &value))
            part = value;
        else if (line_number(line, "CPU revision", &value) && processor == core && implementer)
            midr = implementer << 24 | (variant & 15) << 20 | 15 << 16 | (part & 0xfff) << 4 |
                   (value & 15);
    }
    fclose(file);
    return midr;
}

#endif

uint32_t mlc_cpu_midr(unsigned core) {
    uint32_t midr = midr_of_sysfs(core);
    return midr ? midr : midr_otherwise(core);
}

const char *mlc_cpu_model(unsigned core, char *name, size_t size) {
    uint32_t midr = mlc_cpu_midr(core), implementer = midr >> 24, part = midr >> 4 & 0xfff;
    if (midr)
        snprintf(name, size, "arm:0x%02x:0x%03x", implementer, part);
    else
        snprintf(name, size, "unknown");
    for (size_t i = 0; i < sizeof part_numbers / sizeof *part_numbers; i++)
        if (part_numbers[i] == (implementer << 12 | part))
            snprintf(name, size, "%s", name_at(part_names, i));
    return name;
}

#endif
