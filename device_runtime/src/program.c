#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "program.h"

#include "budget.h"
#include "segment.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

void *fresh_memory(size_t size) {
    void *data = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

static bool no_memory(Failure *failure, const char *what, uint64_t size) {
    return fail(failure, MEMORY, "no memory for %s (%llu bytes); try: free tensors and modules",
                what, (unsigned long long)size);
}

/* Addresses of the kernels, and the call table as the executor wants it. */
static bool make_tables(Program *p, Failure *failure) {
    const Model *model = &p->about.model;
    size_t calls = model->call_count, kernels = p->about.kernel_count;
    size_t times = calls > 0 ? calls : 1;
    p->tables_size = 2 * times * sizeof(uint64_t) + calls * sizeof(mlc_call) +
                     kernels * sizeof(mlc_kernel *);
    p->tables = fresh_memory(p->tables_size);
    if (!p->tables) return no_memory(failure, "the call table", p->tables_size);
    p->nanoseconds = p->tables;
    p->turns = p->nanoseconds + times;
    p->calls = (mlc_call *)(void *)(p->turns + times);
    p->entries = (mlc_kernel **)(void *)(p->calls + calls);
    for (size_t i = 0; i < kernels; i++) {
        void *symbol = mlc_image_symbol(&p->image, p->about.kernels[i].name);
        if (!symbol)
            return fail(failure, REFUSED, "the object does not define its kernel '%s'",
                        p->about.kernels[i].name);
        memcpy(&p->entries[i], &symbol, sizeof symbol); /* ISO C has no cast from data to code */
    }
    for (size_t i = 0; i < calls; i++) {
        const Call *call = &model->calls[i];
        p->calls[i] = (mlc_call){.kernel = p->entries[call->kernel],
                                 .operands = call->operands,
                                 .operand_count = call->operand_count,
                                 .tasks = (int32_t)p->about.kernels[call->kernel].tasks.extent,
                                 .extents = call->extents.count ? &call->extents : NULL,
                                 .strides = call->strides,
                                 .stride_count = call->stride_count};
    }
    return true;
}

void program_table(const Program *program, mlc_run *run) {
    const Model *model = &program->about.model;
    run->calls = program->calls;
    run->call_count = model->call_count;
    run->steps = model->steps;
    run->procedures = model->procedures;
}

static void free_workspaces(Program *p) {
    if (p->workspace) munmap(p->workspace, p->threads * p->workspace_stride);
    p->workspace = NULL;
    p->threads = 0;
}

bool program_reserve(Program *p, uint32_t threads, Failure *failure) {
    uint64_t most = budget_bytes(), size = p->about.workspace;
    if (most > SIZE_MAX / 4) most = SIZE_MAX / 4; /* a 32-bit address space is smaller */
    size_t page = page_size(); /* of its own, so that no cache line lies in two workspaces */
    if (threads <= p->threads || size == 0) return true;
    if (size > most / threads) return no_memory(failure, "a workspace per thread", size);
    free_workspaces(p);
    p->workspace_stride = ((size_t)size + page - 1) / page * page;
    p->workspace = fresh_memory(threads * p->workspace_stride);
    if (!p->workspace) return no_memory(failure, "a workspace per thread", size);
    p->threads = threads;
    return true;
}

static bool load_parts(Program *p, const void *object, size_t size, Failure *failure) {
    char why[256];
    if (!module_parse(&p->about, object, size, failure)) return false;
    const char *bad = mlc_load(&p->image, object, size, why, sizeof why);
    if (bad) return fail(failure, REFUSED, "%s", bad);
    return program_reserve(p, 1, failure) && make_tables(p, failure);
}

bool program_load(Program *program, const void *object, size_t size, Failure *failure) {
    *program = (Program){0};
    if (load_parts(program, object, size, failure)) return true;
    program_free(program);
    return false;
}

void program_free(Program *program) {
    mlc_unload(&program->image);
    if (program->tables) munmap(program->tables, program->tables_size);
    free_workspaces(program);
    module_free(&program->about);
    *program = (Program){0};
}

static Place place_of(const char *kernel, const char *layer, uint32_t call) {
    Place place = {.call = call};
    snprintf(place.kernel, sizeof place.kernel, "%s", kernel);
    snprintf(place.layer, sizeof place.layer, "%s", layer);
    return place;
}

Place program_place(const Module *about, uint32_t call) {
    const Call *at = &about->model.calls[call];
    return place_of(about->kernels[at->kernel].name, at->layer, call);
}

bool program_bad_status(const Program *program, const Kernel *kernel, int32_t status,
                        uint32_t failed, Failure *failure) {
    char where[MAX_PLACE_TEXT];
    Place place = kernel ? place_of(kernel->name, "", failed) : program_place(&program->about, failed);
    place_text(&place, !kernel, where, sizeof where);
    fail(failure, CRASHED, "%s returned status %d%s", where, (int)status,
         status == MLC_OUT_OF_BOUNDS ? ": an access outside its buffer"
         : status == MLC_BAD_SHAPE   ? ": sizes of its arguments do not fit each other"
         : status == MLC_BAD_EXTENT  ? ": a dimension is negative, or more than it may be"
         : status == MLC_BAD_INDEX   ? ": an index, or a number of rows, lies outside of its axis"
                                     : "");
    failure->placed = true;
    failure->place = place;
    return false;
}
