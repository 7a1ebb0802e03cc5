/* Stands in for a QEMU of one version of the plugin interface (VERSION, 1 to 4): it has the functions
 * of that version and no others, translates one block, executes it, and makes marks.
 *
 *   plugin_host PLUGIN COUNTS      prints the version that the plugin chose */

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS = 2, INSNS = 4, BEGIN = 1, END = 2, MARK = 4242 };

struct qemu_plugin_insn {
    uint64_t address;
    uint32_t word;
};

/* A64: fmla v0.4s, v0.4s, v0.4s; ldr x0, [x0]; add x0, x0, #1; b . */
static struct qemu_plugin_insn insns[INSNS] = {
    {0x1000, 0x4e20cc00}, {0x1004, 0xf9400000}, {0x1008, 0x91000400}, {0x100c, 0x14000000}};
struct qemu_plugin_tb;

typedef void (*on_translation)(uint64_t id, struct qemu_plugin_tb *block);
typedef void (*on_syscall)(uint64_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2,
                           uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7,
                           uint64_t a8);
static on_translation translation;
static on_syscall syscall_;

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, on_translation call) {
    (void)id;
    translation = call;
}

void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, on_syscall call) {
    (void)id;
    syscall_ = call;
}

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block) {
    (void)block;
    return INSNS;
}

struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index) {
    (void)block;
    assert(index < INSNS);
    return &insns[index];
}

uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn) { return insn->address; }

size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn) {
    (void)insn;
    return 4;
}

void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, void *call, int flags,
                                      int accesses, void *unused) {
    (void)insn, (void)call, (void)flags, (void)accesses, (void)unused;
    abort(); /* only with caches */
}

/* What the block does to counters when it is executed. */
static struct {
    uint64_t *at[CPUS]; /* of each virtual CPU */
    uint64_t amount;
} additions[INSNS];
static size_t addition_count;

static void add(uint64_t *first, uint64_t *second, uint64_t amount) {
    assert(addition_count < INSNS);
    additions[addition_count].at[0] = first;
    additions[addition_count].at[1] = second;
    additions[addition_count++].amount = amount;
}

#if VERSION == 1
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation,
                                              void *counter, uint64_t amount) {
    (void)block;
    assert(operation == 0);
    add(counter, counter, amount);
}
#else
struct qemu_plugin_scoreboard {
    size_t size;
    char *of[CPUS];
};
typedef struct {
    struct qemu_plugin_scoreboard *board;
    size_t offset;
} Counter;

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size) {
    struct qemu_plugin_scoreboard *board = malloc(sizeof *board);
    board->size = size;
    for (int cpu = 0; cpu < CPUS; cpu++) board->of[cpu] = calloc(1, size);
    return board;
}

static uint64_t *counter_of(Counter counter, int cpu) {
    assert(counter.offset + sizeof(uint64_t) <= counter.board->size);
    return (uint64_t *)(void *)(counter.board->of[cpu] + counter.offset);
}

uint64_t qemu_plugin_u64_sum(Counter counter) {
    uint64_t sum = 0;
    for (int cpu = 0; cpu < CPUS; cpu++) sum += *counter_of(counter, cpu);
    return sum;
}

void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *block, int operation,
                                                       Counter counter, uint64_t amount) {
    (void)block;
    assert(operation == 0);
    add(counter_of(counter, 0), counter_of(counter, 1), amount);
}
#endif

#if VERSION < 3
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn) { return &insn->word; }
#else
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t size) {
    assert(size <= 4);
    memcpy(to, &insn->word, size);
    return size;
}

void qemu_plugin_register_vcpu_tb_exec_cond_cb(void) { abort(); }
#endif

#if VERSION > 3
void qemu_plugin_read_memory_vaddr(void) { abort(); }
#endif

static void execute(int cpu, int times) {
    while (times-- > 0)
        for (size_t i = 0; i < addition_count; i++) *additions[i].at[cpu] += additions[i].amount;
}

static void mark(uint64_t tag, uint64_t index) {
    syscall_(1, 0, MARK, tag, index, 0, 0, 0, 0, 0, 0);
}

typedef struct {
    const char *target;
    struct {
        int least, current;
    } version;
    bool system;
    int cpus[2];
} Info;

int main(int argc, char **argv) {
    assert(argc == 3);
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return fprintf(stderr, "%s\n", dlerror()), 1;
    int *version = dlsym(plugin, "qemu_plugin_version");
    int (*install)(uint64_t, const Info *, int, char **);
    *(void **)&install = dlsym(plugin, "qemu_plugin_install");
    assert(version && install);
    char option[4096];
    char *options[] = {option};
    snprintf(option, sizeof option, "out=%s", argv[2]);
    Info info = {.target = "aarch64", .version = {0, VERSION}, .cpus = {CPUS, CPUS}};
    assert(install(1, &info, 1, options) == 0);
    translation(1, NULL);
    mark(BEGIN, UINT32_MAX);
    mark(END, UINT32_MAX);
    mark(BEGIN, 0);
    execute(0, 5);
    execute(1, VERSION > 1 ? 2 : 0);
    syscall_(1, 0, 64, 1, 2, 3, 0, 0, 0, 0, 0); /* another one */
    mark(END, 0);
    printf("%d\n", *version);
    return 0;
}
