#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "module.h"

#include "cpu.h"
#include "load.h"
#include "parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

void refuse(Parser *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!p->r.why) fail_with(p->failure, REFUSED, format, args);
    va_end(args);
    read_fail(&p->r, "refused");
}

void *take(Parser *p, size_t count, size_t size) {
    size_t bytes = (count * size + 15) / 16 * 16; /* count <= MAX_METADATA, size is a struct's */
    if (bytes > (size_t)(p->end - p->free)) {
        refuse(p, "the module's metadata is too large");
        return NULL;
    }
    void *taken = p->free;
    p->free += bytes;
    return taken;
}

/* An array's elements, zeroed; *count is 0 whenever the parse has failed. */
void *take_array(Parser *p, size_t size, uint32_t *count) {
    *count = read_array(&p->r);
    void *taken = take(p, *count, size);
    if (!taken) *count = 0;
    return taken;
}

const char *take_str(Parser *p) {
    Bytes b = read_str(&p->r);
    char *text = take(p, b.size + 1, 1);
    if (!text) return "";
    memcpy(text, b.data, b.size);
    return text;
}

/* ---- The parts of a kernel ---- */

static int32_t scalar_index(Parser *p, const Kernel *kernel) {
    const char *name = take_str(p);
    for (uint32_t i = 0; i < kernel->scalar_count; i++)
        if (strcmp(kernel->scalars[i], name) == 0) return (int32_t)i;
    refuse(p, "kernel '%s' names a dimension '%s' that is not among its scalars", kernel->name, name);
    return -1;
}

static bool at_str(const Parser *p) { /* fixstr, str8, str16, str32 */
    if (p->r.at == p->r.end) return false;
    return (*p->r.at & 0xe0) == 0xa0 || (*p->r.at >= 0xd9 && *p->r.at <= 0xdb);
}

/* An extent, or, for a kernel, the name of one of its scalars. */
static Dimension parse_dimension(Parser *p, const Kernel *kernel) {
    if (kernel && at_str(p)) return (Dimension){.scalar = scalar_index(p, kernel)};
    return (Dimension){.extent = read_uint(&p->r), .scalar = -1};
}

static Param parse_param(Parser *p, const Kernel *kernel) {
    Param param = {.name = "", .align = MLC_ALIGNMENT};
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "name")) {
            param.name = take_str(p);
        } else if (bytes_are(key, "dtype")) {
            Bytes name = read_str(&p->r);
            param.dtype = dtype_of(name);
            if (!param.dtype)
                refuse(p, "the module uses dtype '%.*s', which this runtime does not know",
                       (int)(name.size < 32 ? name.size : 32), (const char *)name.data);
        } else if (bytes_are(key, "shape")) {
            param.shape = take_array(p, sizeof *param.shape, &param.rank);
            for (uint32_t i = 0; i < param.rank; i++) param.shape[i] = parse_dimension(p, kernel);
        } else if (bytes_are(key, "output")) {
            param.output = read_bool(&p->r);
        } else if (!kernel && bytes_are(key, "state")) {
            param.state = take_str(p);
        } else if (kernel && bytes_are(key, "align")) {
            uint64_t align = read_uint(&p->r);
            if (align == 0 || MLC_ALIGNMENT % align != 0) read_fail(&p->r, "no alignment");
            param.align = (uint32_t)align;
        } else {
            read_skip(&p->r);
        }
    }
    if (param.dtype == NO_DTYPE) refuse(p, "parameter '%s' has no dtype", param.name);
    if (param.rank > MAX_RANK)
        refuse(p, "parameter '%s' has %u dimensions; this runtime takes %d", param.name, param.rank,
               MAX_RANK);
    return param;
}

Param *parse_params(Parser *p, const Kernel *kernel, uint32_t *count) {
    Param *params = take_array(p, sizeof *params, count);
    for (uint32_t i = 0; i < *count; i++) params[i] = parse_param(p, kernel);
    return params;
}

static void parse_scalars(Parser *p, Kernel *kernel) {
    kernel->scalars = take_array(p, sizeof *kernel->scalars, &kernel->scalar_count);
    for (uint32_t i = 0; i < kernel->scalar_count; i++) kernel->scalars[i] = take_str(p);
    if (kernel->scalar_count > MAX_SCALARS)
        refuse(p, "kernel '%s' has %u symbolic dimensions; this runtime takes %d", kernel->name,
               kernel->scalar_count, MAX_SCALARS);
}

static void parse_most(Parser *p, Kernel *kernel) {
    uint32_t count = 0;
    kernel->most = take_array(p, sizeof *kernel->most, &count);
    for (uint32_t i = 0; i < count && !p->r.why; i++) {
        uint64_t most = read_uint(&p->r);
        if (most > INT32_MAX) read_fail(&p->r, "a symbolic dimension may be too large");
        kernel->most[i] = (int64_t)most;
    }
    if (count != kernel->scalar_count)
        refuse(p, "kernel '%s' says the most of %u of its %u symbolic dimensions", kernel->name,
               count, kernel->scalar_count);
}

/* The map is read twice: names and scalars first, since shapes and tasks refer to them. */
static void parse_kernel(Parser *p, Kernel *kernel) {
    Reader begin = p->r;
    *kernel = (Kernel){.name = "", .tasks = {.extent = 1, .scalar = -1}};
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "name"))
            kernel->name = take_str(p);
        else if (bytes_are(key, "scalars"))
            parse_scalars(p, kernel);
        else
            read_skip(&p->r);
    }
    if (p->r.why) return;
    p->r = begin;
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "params"))
            kernel->params = parse_params(p, kernel, &kernel->param_count);
        else if (bytes_are(key, "tasks"))
            kernel->tasks = parse_dimension(p, kernel);
        else if (bytes_are(key, "workspace"))
            kernel->workspace = read_uint(&p->r);
        else if (bytes_are(key, "most"))
            parse_most(p, kernel);
        else
            read_skip(&p->r);
    }
    if (kernel->param_count > MLC_MAX_OPERANDS)
        refuse(p, "kernel '%s' has %u parameters; this runtime takes %d", kernel->name,
               kernel->param_count, MLC_MAX_OPERANDS);
    if (kernel->tasks.scalar < 0 && kernel->tasks.extent > INT32_MAX)
        refuse(p, "kernel '%s' has more than 2^31 tasks", kernel->name);
    if (kernel->workspace > p->module->workspace) p->module->workspace = kernel->workspace;
}

static void parse_kernels(Parser *p) {
    Module *m = p->module;
    m->kernels = take_array(p, sizeof *m->kernels, &m->kernel_count);
    for (uint32_t i = 0; i < m->kernel_count && !p->r.why; i++) parse_kernel(p, &m->kernels[i]);
}

/* What the board's CPU has, for a message; as many names as fit. */
static const char *board_features(char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; mlc_cpu_feature(i) && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 mlc_cpu_feature(i));
    return used > 0 ? text : "none";
}

static void check_features(Parser *p) {
    char model[48], has[320];
    for (uint32_t left = read_array(&p->r); left > 0 && !p->r.why; left--) {
        Bytes b = read_str(&p->r);
        char name[40] = {0};
        memcpy(name, b.data, b.size < sizeof name - 1 ? b.size : sizeof name - 1);
        if (!p->r.why && !mlc_cpu_has(name))
            refuse(p, "the module uses the CPU feature '%s', which this board (%s) does not have; "
                   "it has: %s; try: a target for this board, or -mattr=-%s",
                   name, mlc_cpu_model(0, model, sizeof model),
                   board_features(has, sizeof has), name);
    }
}

/* ABI, machine and features come before the rest, which another ABI may write in another way. */
static void check_board(Parser *p) {
    Reader begin = p->r;
    uint64_t abi = 0;
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "abi"))
            abi = read_uint(&p->r);
        else
            read_skip(&p->r);
    }
    if (abi != MLC_ABI_VERSION && abi != MLC_PROGRAM_ABI)
        refuse(p, "the module has ABI version %llu, this runtime has version %d; try: compile and "
               "run it with the same version of mlc-deploy",
               (unsigned long long)abi, MLC_ABI_VERSION);
    if (p->r.why) return;
    p->r = begin;
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "machine")) {
            Bytes machine = read_str(&p->r);
            if (!bytes_are(machine, mlc_machine()))
                refuse(p, "the module is for %.*s, this runtime is for %s; try: another target",
                       (int)(machine.size < 32 ? machine.size : 32), (const char *)machine.data,
                       mlc_machine());
        } else if (bytes_are(key, "features")) {
            check_features(p);
        } else {
            read_skip(&p->r);
        }
    }
    if (!p->r.why) p->r = begin;
}

/* ---- Entry ---- */

static void parse(Parser *p) {
    check_board(p);
    Reader begin = p->r;
    p->module->target = "";
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "target"))
            p->module->target = take_str(p);
        else if (bytes_are(key, "kernels"))
            parse_kernels(p);
        else
            read_skip(&p->r);
    }
    if (!p->r.why) p->r = begin; /* the calls refer to kernels, wherever the map has them */
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        if (bytes_are(read_str(&p->r), "model"))
            parse_model(p);
        else
            read_skip(&p->r);
    }
    check_model(p);
    if (p->r.why) fail(p->failure, REFUSED, "the module's metadata is invalid: %s", p->r.why);
}

bool module_parse(Module *module, const void *object, size_t size, Failure *failure) {
    char why[160];
    size_t found = 0;
    *module = (Module){0};
    const uint8_t *section =
        mlc_object_section(object, size, MLC_SECTION, &found, why, sizeof why);
    if (!section) return fail(failure, REFUSED, "%s", why);
    if (found > MAX_METADATA)
        return fail(failure, REFUSED, "the module's metadata has %zu bytes; %d are the most", found,
                    MAX_METADATA);
    size_t room = found * 64 + 4096; /* an encoded byte becomes at most one struct's share */
    void *memory = mmap(NULL, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return fail(failure, MEMORY, "no memory for the module's metadata (%zu bytes)", found);
    module->memory = memory;
    module->memory_size = room;
    Parser p = {.r = reader_of(section, found),
                .free = memory,
                .end = (uint8_t *)memory + room,
                .module = module,
                .failure = failure};
    parse(&p);
    if (failure->failed) module_free(module);
    return !failure->failed;
}

void module_free(Module *module) {
    if (module->memory) munmap(module->memory, module->memory_size);
    *module = (Module){0};
}

const Kernel *module_kernel(const Module *module, const char *name, Failure *failure) {
    for (uint32_t i = 0; i < module->kernel_count; i++)
        if (strcmp(module->kernels[i].name, name) == 0) return &module->kernels[i];
    fail(failure, REFUSED, "the module has no kernel '%s'; it has %u, the first is '%s'", name,
         module->kernel_count, module->kernel_count ? module->kernels[0].name : "");
    return NULL;
}

/* ---- Arguments ---- */

static const char *shape_text(const TensorType *type, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s (", dtype_name(type->dtype));
    for (uint32_t i = 0; i < type->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)type->shape[i]);
    if (used < size) snprintf(text + used, size - used, ")");
    return text;
}

static const char *param_text(const Param *param, const char *const *scalar_names, char *text,
                              size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s (", dtype_name(param->dtype));
    for (uint32_t i = 0; i < param->rank && used < size; i++) {
        const Dimension *d = &param->shape[i];
        const char *comma = i ? ", " : "";
        used += (size_t)(d->scalar < 0
                             ? snprintf(text + used, size - used, "%s%llu", comma,
                                        (unsigned long long)d->extent)
                             : snprintf(text + used, size - used, "%s%s", comma,
                                        scalar_names[d->scalar]));
    }
    if (used < size) snprintf(text + used, size - used, ")");
    return text;
}

bool params_accept(const Param *params, uint32_t count, const char *const *scalar_names,
                   int64_t *scalars, uint32_t scalar_count, const TensorType *const *arguments,
                   const char *what, Failure *failure) {
    for (uint32_t i = 0; i < scalar_count; i++) scalars[i] = -1; /* not bound yet */
    for (uint32_t i = 0; i < count; i++) {
        const Param *param = &params[i];
        const TensorType *given = arguments[i];
        char expected[96], got[96];
        bool same = param->dtype == given->dtype && param->rank == given->rank;
        for (uint32_t d = 0; same && d < param->rank; d++) {
            int32_t scalar = param->shape[d].scalar;
            if (scalar < 0) {
                same = param->shape[d].extent == given->shape[d];
            } else if (scalars[scalar] < 0) {
                scalars[scalar] = (int64_t)given->shape[d];
            } else if ((uint64_t)scalars[scalar] != given->shape[d]) {
                return fail(failure, REFUSED,
                            "%s: '%s' is %s with %s = %lld, but dimension %u of the given one is "
                            "%llu",
                            what, param->name,
                            param_text(param, scalar_names, expected, sizeof expected),
                            scalar_names[scalar], (long long)scalars[scalar], d,
                            (unsigned long long)given->shape[d]);
            }
        }
        if (!same)
            return fail(failure, REFUSED, "%s: '%s' is %s, given %s", what, param->name,
                        param_text(param, scalar_names, expected, sizeof expected),
                        shape_text(given, got, sizeof got));
    }
    for (uint32_t i = 0; i < scalar_count; i++)
        if (scalars[i] < 0)
            return fail(failure, REFUSED, "%s: no parameter defines dimension '%s'", what,
                        scalar_names[i]);
    return true;
}
