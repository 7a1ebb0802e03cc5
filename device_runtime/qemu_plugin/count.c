/* A TCG plugin for QEMU's user-mode emulators: counts the instructions that the guest executes, by
 * class, and writes the counts down whenever the guest makes a mark.
 *
 *   build   cc -std=c11 -shared -fPIC -O2 -s -fvisibility=hidden -o libmlc-count-x86_64.so *.c
 *           with cc = python -m ziglang cc -target x86_64-linux-gnu.2.28
 *                  or python -m ziglang cc -target aarch64-linux-gnu.2.28
 *   use     qemu-arm -plugin libmlc-count-x86_64.so,out=FILE program
 *   caches  ...,out=FILE,caches=32768x4:524288x16 simulates data caches as well (cache.h)
 *   mark    the guest calls syscall(4242, tag, index, stack), which is harmless ENOSYS anywhere else
 *
 * Each mark appends one record to FILE, in the host's byte order (little-endian):
 *
 *   uint32 tag | uint32 index | uint64 mac | vector | load | store | branch | scalar     (56 bytes)
 *   uint64 misses of each cache, where there are caches
 *
 * Counters run from the start of the program; what a call executed is the difference of two marks.
 * Counting is an inline addition per class at the head of each translated block. It is exact for one
 * guest thread; forked children count on in their own memory and append to the same file.
 *
 * The classes, in A64, A32 and T32:
 *   mac     vector instructions that multiply and accumulate (fmla, mla, smlal, sdot, smmla, ...)
 *   vector  every other vector or floating-point instruction, scalar fused multiply-add included
 *   load    from memory to any register, prefetches and atomics that return a value included
 *   store   from any register to memory
 *   branch  jumps, calls and returns (a return by `pop {pc}` is a load)
 *   scalar  everything else
 * Caches see what is accessed between a mark with tag 1 and the next with another tag, and keep what
 * they hold in between: what the program does to load a model and to answer evicts nothing. They do
 * not see the stack at the mark's third argument (0: none): its place depends on the environment, and
 * a core finds it in its first cache.
 * A conditional instruction counts whether or not its condition holds. SME, and SVE beyond its
 * loads, stores and common multiply-accumulates, count as vector. Of x86-64, see x86.h. */

#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"
#include "x86.h"

/* What we use of qemu-plugin.h, which distributions do not ship. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
    const char *target_name; /* "arm", "aarch64"; there is more behind it */
} qemu_info_t;
typedef void (*on_translation)(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void (*on_syscall)(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t a1,
                           uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6,
                           uint64_t a7, uint64_t a8);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, on_translation call);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id, on_syscall call);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
typedef void (*on_access)(unsigned vcpu, uint32_t info, uint64_t address, void *unused);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, on_access call, int flags,
                                      int accesses, void *unused);

#define EXPORT __attribute__((visibility("default")))

enum class { MAC, VECTOR, LOAD, STORE, BRANCH, SCALAR, CLASSES };
enum { MARK = 4242, BEGIN = 1 };

static char out[4096];
static bool is_a64, is_x86;
static bool watching; /* the guest made a mark that begins a call, and none since */
static uint64_t stack; /* where that mark said the stack is */
enum { STACK_BELOW = 1 << 20, STACK_ABOVE = 2048 }; /* bytes of it that calls and callers use */

/* Everything that depends on the version of the plugin interface, which is found out as the plugin
 * is loaded, by what there is: QEMU 4.2 to 8.2 have version 1; 9.0 has version 2, where counters are
 * on a scoreboard, one for each virtual CPU; 9.1 has 3, where an instruction's bytes are copied; 9.2
 * has 4, and later ones take it as well. */

typedef struct {
    struct qemu_plugin_scoreboard *board;
    size_t offset; /* of the counter among those of one CPU, in bytes */
} qemu_plugin_u64;

#define IF_THERE __attribute__((weak)) /* NULL where this QEMU has none */

IF_THERE void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation,
                                                       void *counter, uint64_t amount);
IF_THERE void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *block,
                                                                int operation,
                                                                qemu_plugin_u64 counter,
                                                                uint64_t amount);
IF_THERE struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
IF_THERE uint64_t qemu_plugin_u64_sum(qemu_plugin_u64 counter);
IF_THERE void qemu_plugin_register_vcpu_tb_exec_cond_cb(void); /* of version 3; not called here */
IF_THERE void qemu_plugin_read_memory_vaddr(void);             /* of version 4; not called here */

/* Up to version 2 it takes the instruction alone, and returns where its bytes are. */
uintptr_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t size);

EXPORT int qemu_plugin_version = 1;

__attribute__((constructor)) static void choose_version(void) {
    if (qemu_plugin_read_memory_vaddr)
        qemu_plugin_version = 4;
    else if (qemu_plugin_register_vcpu_tb_exec_cond_cb)
        qemu_plugin_version = 3;
    else if (qemu_plugin_scoreboard_new)
        qemu_plugin_version = 2;
}

static uint64_t counters[CLASSES];                /* in version 1 */
static struct qemu_plugin_scoreboard *scoreboard; /* in later ones */

static qemu_plugin_u64 counter_of(enum class class) {
    return (qemu_plugin_u64){scoreboard, class * sizeof *counters};
}

static void add_when_executed(struct qemu_plugin_tb *block, enum class class, uint64_t amount) {
    enum { ADD_U64 = 0 };
    if (scoreboard)
        qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ADD_U64, counter_of(class),
                                                          amount);
    else
        qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &counters[class], amount);
}

static uint64_t executed(enum class class) {
    return scoreboard ? qemu_plugin_u64_sum(counter_of(class)) : counters[class];
}

static uint32_t word_of(const struct qemu_plugin_insn *insn) {
    uint32_t word = 0;
    size_t size = qemu_plugin_insn_size(insn);
    if (size > sizeof word) size = sizeof word;
    uintptr_t data = qemu_plugin_insn_data(insn, &word, size);
    if (qemu_plugin_version < 3) memcpy(&word, (const void *)data, size);
    return word;
}

/* Bits high..low of a word. */
static uint32_t bits(uint32_t word, int high, int low) {
    return (word >> low) & (0xffffffffu >> (31 - (high - low)));
}

static bool bit(uint32_t word, int index) { return (word >> index) & 1; }

static bool in_set(uint32_t set, uint32_t member) { return (set >> member) & 1; }

static enum class load_if(bool is_load) { return is_load ? LOAD : STORE; }

/* A64: Arm Architecture Reference Manual, C4.1 */

static bool a64_is_mac(uint32_t w) {
    bool u = bit(w, 29);
    if (bit(w, 31)) return false;
    switch (bits(w, 28, 24)) {
    case 0x0e:
        if (bit(w, 21) && bit(w, 10)) { /* three registers of the same type */
            uint32_t op = bits(w, 15, 11);
            return op == 0x12                             /* mla, mls */
                   || (op == 0x19 && (!u || !bit(w, 22))) /* fmla, fmls; fmlal2, fmlsl2 */
                   || (op == 0x1d && !u && !bit(w, 22));  /* fmlal, fmlsl */
        }
        if (bit(w, 21) && bits(w, 11, 10) == 0) /* three registers of different types: smlal, ... */
            return in_set(0x0f00, bits(w, 15, 12));
        if (!bit(w, 21) && bit(w, 15) && bit(w, 10)) /* sdot, smmla, fcmla, ...; not fcadd */
            return !in_set(0x5000, bits(w, 14, 11));
        return bits(w, 22, 21) == 2 && bits(w, 15, 10) == 3 && !u; /* fmla, fmls .8h */
    case 0x0f:                                                     /* by element */
        return !bit(w, 10) && in_set(u ? 0xf1ff : 0xc0ff, bits(w, 15, 12));
    default: return false;
    }
}

static enum class a64_sve(uint32_t w) {
    switch (bits(w, 31, 29)) {
    case 4:
    case 5:
    case 6: return LOAD;
    case 7: return STORE;
    case 0: /* mla, mls, mad, msb */
        return bits(w, 28, 24) == 4 && !bit(w, 21) && bit(w, 14) ? MAC : VECTOR;
    case 2:
        if (bits(w, 28, 24) == 4 && bits(w, 15, 11) == 0) return MAC; /* sdot, udot */
        if (bits(w, 28, 24) == 5 && !bit(w, 21) && bits(w, 15, 10) == 0x26) return MAC; /* smmla */
        return VECTOR;
    case 3:
        if (bits(w, 28, 24) == 5 && bit(w, 21)) return MAC;                           /* fmla */
        if (bits(w, 28, 24) == 4 && bit(w, 21) && bits(w, 15, 11) == 0) return MAC;   /* indexed */
        return VECTOR;
    default: return VECTOR;
    }
}

static enum class a64_memory(uint32_t w) {
    bool vector = bit(w, 26), l = bit(w, 22);
    switch (bits(w, 29, 28)) {
    case 0: /* exclusive and ordered, compare and swap; structures */
        if (!vector && bit(w, 21) && (bit(w, 23) || !bit(w, 31))) return LOAD;
        return load_if(l);
    case 1: /* literal; unscaled acquire and release */
        return load_if(!bit(w, 24) || bits(w, 23, 22) != 0);
    case 2: return load_if(l); /* pairs */
    default:
        if (vector) return load_if(l);
        if (!bit(w, 24) && bit(w, 21) && bits(w, 11, 10) != 2) return LOAD; /* atomic */
        return load_if(bits(w, 23, 22) != 0);
    }
}

static enum class a64_class(uint32_t w) {
    switch (bits(w, 28, 25)) {
    case 0x0: return bit(w, 31) ? VECTOR : SCALAR; /* SME */
    case 0x2: return a64_sve(w);
    case 0x4:
    case 0x6:
    case 0xc:
    case 0xe: return a64_memory(w);
    case 0x7:
    case 0xf: return a64_is_mac(w) ? MAC : VECTOR;
    case 0xa:
    case 0xb: /* system instructions, hints and exceptions are no branches */
        return bits(w, 31, 24) == 0xd4 || bits(w, 31, 24) == 0xd5 ? SCALAR : BRANCH;
    default: return SCALAR;
    }
}

/* A32 and T32: F3 to F6. The two share the low 24 bits of vector and coprocessor instructions. */

static bool neon_is_mac(bool u, uint32_t w) {
    uint32_t op = bits(w, 11, 8);
    if (!bit(w, 23)) /* three registers of the same length */
        return bit(w, 4) ? (!u && (op == 0xc || op == 0xd)) || (u && (op == 0xb || op == 0xc))
                         : op == 9;
    if (bit(w, 4) || bits(w, 21, 20) == 3) return false;
    return bit(w, 6) ? in_set(0xc0ff, op)  /* by scalar */
                     : in_set(0x0f00, op); /* different lengths: vmlal, ... */
}

/* Bits 27..24 are 110x or 1110: coprocessors, of which 8 to 13 are vectors. `always` where the
 * condition field says 1111, the home of later extensions. */
static enum class a32_coprocessor(uint32_t w, bool always) {
    uint32_t number = bits(w, 11, 8);
    bool vectors = number >= 8 && number <= 13;
    if (always && vectors && number != 10 && number != 11) {
        /* vdot, vmmla, vcmla, vfmal; the others of this space select, round, compare */
        if (bits(w, 27, 24) == 0xe) return number == 9 ? VECTOR : MAC;
        return number == 8 && !bit(w, 21) ? VECTOR : MAC; /* vcadd */
    }
    if (bits(w, 27, 24) == 0xe) return vectors ? VECTOR : SCALAR;
    if (bits(w, 27, 21) == 0x62) return vectors ? VECTOR : SCALAR; /* moves of two registers */
    return load_if(bit(w, 20));
}

static enum class a32_unconditional(uint32_t w) {
    if (bits(w, 27, 25) == 1) return neon_is_mac(bit(w, 24), w) ? MAC : VECTOR;
    if (bits(w, 27, 24) == 4 && !bit(w, 20)) return load_if(bit(w, 21)); /* structures */
    if (bits(w, 27, 26) == 1 && bits(w, 21, 20) == 1) return LOAD; /* pld, pli */
    if (bits(w, 27, 25) == 5) return BRANCH;
    if (bits(w, 27, 25) == 6 || bits(w, 27, 24) == 0xe) return a32_coprocessor(w, true);
    return SCALAR;
}

/* Bits 27..26 are 00: data processing, and what was fitted between. */
static enum class a32_data(uint32_t w) {
    bool immediate = bit(w, 25);
    if (!immediate && bit(w, 7) && bit(w, 4)) {
        uint32_t kind = bits(w, 6, 5);
        if (kind == 0) { /* multiplies; swap, exclusive, acquire and release */
            if (!bit(w, 24)) return SCALAR;
            return load_if(bit(w, 20) || !bit(w, 23));
        }
        return load_if(bit(w, 20) || kind == 2); /* halfwords, signed bytes, doublewords */
    }
    bool compares = bits(w, 24, 23) == 2;
    if (compares && !bit(w, 20)) { /* no compare without flags: miscellaneous */
        if (immediate || bits(w, 22, 21) != 1) return SCALAR;
        return in_set(0x000e, bits(w, 7, 4)) ? BRANCH : SCALAR; /* bx, bxj, blx */
    }
    return !compares && bits(w, 15, 12) == 15 ? BRANCH : SCALAR;
}

static enum class a32_class(uint32_t w) {
    if (bits(w, 31, 28) == 15) return a32_unconditional(w);
    switch (bits(w, 27, 25)) {
    case 0:
    case 1: return a32_data(w);
    case 3:
        if (bit(w, 4)) return SCALAR; /* media instructions, divisions */
        return load_if(bit(w, 20));
    case 2:
    case 4: return load_if(bit(w, 20));
    case 5: return BRANCH;
    case 6: return a32_coprocessor(w, false);
    default: return bit(w, 24) ? SCALAR : a32_coprocessor(w, false);
    }
}

static enum class t16_class(uint32_t h) {
    switch (bits(h, 15, 12)) {
    case 0x4:
        if (bit(h, 11)) return LOAD; /* literal */
        if (bits(h, 11, 8) == 7) return BRANCH;
        return bits(h, 11, 10) == 1 && bits(h, 9, 8) != 1 && (h & 0x87) == 0x87 ? BRANCH : SCALAR;
    case 0x5: return load_if(bits(h, 11, 9) > 2);
    case 0x6:
    case 0x7:
    case 0x8:
    case 0x9:
    case 0xc: return load_if(bit(h, 11));
    case 0xb:
        if (bits(h, 10, 9) == 2) return load_if(bit(h, 11)); /* pop, push */
        return !bit(h, 10) && bit(h, 8) ? BRANCH : SCALAR;   /* cbz, cbnz */
    case 0xd: return bits(h, 11, 9) == 7 ? SCALAR : BRANCH;  /* udf, svc */
    case 0xe: return BRANCH;
    default: return SCALAR;
    }
}

/* `w` is the first halfword above the second. */
static enum class t32_class(uint32_t w) {
    switch (bits(w, 31, 24)) {
    case 0xe8:
    case 0xe9:
        if (bits(w, 31, 20) == 0xe8d && bits(w, 7, 5) == 0) return BRANCH; /* tbb, tbh */
        return load_if(bit(w, 20));
    case 0xec:
    case 0xed:
    case 0xee: return a32_coprocessor(w, false);
    case 0xfc:
    case 0xfd:
    case 0xfe: return a32_coprocessor(w, true);
    case 0xef:
    case 0xff: return neon_is_mac(bit(w, 28), w) ? MAC : VECTOR;
    case 0xf8: return load_if(bit(w, 20));
    case 0xf9: return load_if(bit(w, 20) || bit(w, 21));
    case 0xf0:
    case 0xf1:
    case 0xf2:
    case 0xf3:
    case 0xf4:
    case 0xf5:
    case 0xf6:
    case 0xf7:
        if (!bit(w, 15)) return SCALAR;
        return bit(w, 14) || bit(w, 12) || bits(w, 25, 23) != 7 ? BRANCH : SCALAR;
    default: return SCALAR;
    }
}

/* The first halfword of a T32 instruction of four bytes is 0xe800 or more. */
static bool is_wide(uint32_t halfword) { return halfword >= 0xe800; }

/* Nothing tells a plugin whether a block is Thumb. Two-byte instructions and odd halfwords are;
 * words that begin no T32 instruction are not; a block that could be either is what the last one
 * that could not was, since a program seldom changes. The sum of all classes is exact regardless.
 * At the end of a page QEMU peeks at the halfword that follows in Thumb, and gives it out as part of
 * the instruction before: a word there is evidence of nothing. */
static bool is_thumb(const struct qemu_plugin_tb *block, size_t count) {
    static bool last;
    for (size_t i = 0; i < count; i++) {
        const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint64_t address = qemu_plugin_insn_vaddr(insn);
        if ((address & 2) || qemu_plugin_insn_size(insn) != 4) return last = true;
        if ((address & 0xfff) != 0xffc && !is_wide(word_of(insn) & 0xffff)) return last = false;
    }
    return last;
}

static enum class classify(const struct qemu_plugin_insn *insn, bool thumb) {
    uint32_t word = word_of(insn), first = word & 0xffff;
    if (is_a64) return a64_class(word);
    if (!thumb) return a32_class(word);
    return is_wide(first) ? t32_class(first << 16 | word >> 16) : t16_class(first);
}

/* The classes of an instruction, a bit each: one of Arm's has one. */
static unsigned classes_of(const struct qemu_plugin_insn *insn, bool thumb) {
    if (!is_x86) return 1u << classify(insn, thumb);
    uint8_t bytes[16] = {0};
    size_t size = qemu_plugin_insn_size(insn);
    if (size > sizeof bytes) size = sizeof bytes;
    uintptr_t data = qemu_plugin_insn_data(insn, bytes, size);
    if (qemu_plugin_version < 3) memcpy(bytes, (const void *)data, size);
    return x86_classes(bytes, size);
}

static void accessed(unsigned vcpu, uint32_t info, uint64_t address, void *unused) {
    (void)vcpu, (void)info, (void)unused;
    if (!watching || (stack && address - (stack - STACK_BELOW) < STACK_BELOW + STACK_ABOVE)) return;
    caches_access(address);
}

static void watch(struct qemu_plugin_insn *insn) {
    enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };
    qemu_plugin_register_vcpu_mem_cb(insn, accessed, NO_REGISTERS, READS_AND_WRITES, NULL);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    uint64_t amounts[CLASSES] = {0};
    size_t count = qemu_plugin_tb_n_insns(block);
    bool thumb = !is_a64 && !is_x86 && is_thumb(block, count);
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        unsigned classes = classes_of(insn, thumb);
        for (int class = 0; class < CLASSES; class++) amounts[class] += classes >> class & 1;
        if (caches_count() && classes & (1u << LOAD | 1u << STORE)) watch(insn);
    }
    for (int class = 0; class < CLASSES; class++)
        if (amounts[class]) add_when_executed(block, (enum class)class, amounts[class]);
}

/* Opened anew for each mark, since the guest may close descriptors that it does not know. */
static void marked(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t tag, uint64_t index,
                   uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)vcpu, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number != MARK) return;
    struct {
        uint32_t tag, index;
        uint64_t counters[CLASSES + MOST_CACHES];
    } record = {.tag = (uint32_t)tag, .index = (uint32_t)index};
    for (int class = 0; class < CLASSES; class++)
        record.counters[class] = executed((enum class)class);
    for (int cache = 0; cache < caches_count(); cache++)
        record.counters[CLASSES + cache] = caches_misses(cache);
    watching = tag == BEGIN, stack = a3;
    size_t size = sizeof record - sizeof(uint64_t[MOST_CACHES]) +
                  (size_t)caches_count() * sizeof(uint64_t);
    int file = open(out, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, &record, size) != (ssize_t)size)
        perror("mlc-count: cannot append to the file of counts");
    if (file >= 0) close(file);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                               char **argv) {
    is_a64 = strcmp(info->target_name, "aarch64") == 0;
    is_x86 = strcmp(info->target_name, "x86_64") == 0;
    if (!is_a64 && !is_x86 && strcmp(info->target_name, "arm") != 0) {
        fprintf(stderr, "mlc-count: counts arm, aarch64 and x86_64 only, not %s\n",
                info->target_name);
        return 1;
    }
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0 && strlen(argv[i] + 4) < sizeof out)
            strcpy(out, argv[i] + 4);
        if (strncmp(argv[i], "caches=", 7) == 0 && !caches_configure(argv[i] + 7)) {
            fprintf(stderr, "mlc-count: %s describes no caches; try caches=32768x4:524288x16\n",
                    argv[i]);
            return 1;
        }
    }
    if (!out[0]) {
        fprintf(stderr, "mlc-count: option out=FILE is missing or too long\n");
        return 1;
    }
    if (qemu_plugin_version >= 2) scoreboard = qemu_plugin_scoreboard_new(sizeof counters);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, marked);
    return 0;
}
