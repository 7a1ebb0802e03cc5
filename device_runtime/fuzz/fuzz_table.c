/* Fuzzes the parser of what an object says of itself: its kernels, its model and the call table. An
 * input is the content of the section ".mlc". What is accepted must be in bounds.
 *
 * mutate.h says how it is built and started. */
#include "mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

static volatile uint64_t sink; /* what is read goes here, so that the compiler keeps the reading */

static void expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_table: %s\n", what);
    abort();
}

static void put_number(uint8_t *at, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* The smallest ELF64 object that has a section ".mlc": no code, no symbols. */
static size_t wrap_in_elf(uint8_t *object, const uint8_t *metadata, size_t size) {
    static const char names[] = "\0.mlc\0.shstrtab";
    size_t names_at = 64 + size, headers_at = (names_at + sizeof names + 7) / 8 * 8;
    memset(object, 0, headers_at + (size_t)3 * 64);
    memcpy(object, "\177ELF\2\1\1", 7);
    put_number(object + 16, 1, 2);  /* relocatable */
    put_number(object + 18, 62, 2); /* for any machine */
    put_number(object + 20, 1, 4);
    put_number(object + 40, headers_at, 8);
    put_number(object + 52, 64, 2);
    put_number(object + 58, 64, 2);
    put_number(object + 60, 3, 2); /* sections */
    put_number(object + 62, 2, 2); /* the one with their names */
    memcpy(object + 64, metadata, size);
    memcpy(object + names_at, names, sizeof names);
    uint8_t *mlc = object + headers_at + 64, *strings = mlc + 64;
    put_number(mlc, 1, 4);
    put_number(mlc + 4, 1, 4); /* PROGBITS */
    put_number(mlc + 24, 64, 8);
    put_number(mlc + 32, size, 8);
    put_number(strings, 6, 4);
    put_number(strings + 4, 3, 4); /* STRTAB */
    put_number(strings + 24, names_at, 8);
    put_number(strings + 32, sizeof names, 8);
    return headers_at + (size_t)3 * 64;
}

/* Goes where the executor would, each loop for one turn. */
static uint64_t touch_steps(const Model *model, uint32_t number, uint32_t depth) {
    uint64_t sum = depth;
    if (model->procedure_count == 0) return 0;
    expect(number < model->procedure_count, "a step runs no procedure");
    expect(depth <= MLC_MAX_NESTING, "procedures are nested too deep");
    const mlc_procedure *procedure = &model->procedures[number];
    for (uint32_t i = 0; i < procedure->count; i++) {
        const mlc_step *step = &model->steps[procedure->first + i];
        if (step->kind == MLC_CALL) {
            expect(step->call < model->call_count, "a step is no call");
            continue;
        }
        const mlc_call *places = &step->places;
        bool in_arena = step->conditional && places->operands[0].space == MLC_ARENA;
        expect(!in_arena || places->operands[0].offset < model->arena, "a condition is nowhere");
        expect(step->kind == MLC_BRANCH || step->loop < model->loop_count, "a loop has no number");
        sum += touch_steps(model, step->procedure, depth + 1);
        if (step->kind == MLC_BRANCH) sum += touch_steps(model, step->otherwise, depth + 1);
    }
    return sum;
}

/* Uses all that a parse promises to be in bounds; returns a sum so that nothing is left out. */
static uint64_t touch(const Module *m) {
    uint64_t sum = strlen(m->target);
    int64_t scalars[MAX_SCALARS];
    for (uint32_t i = 0; i < m->kernel_count; i++) {
        const Kernel *k = &m->kernels[i];
        TensorType types[MLC_MAX_OPERANDS] = {{0}};
        const TensorType *pointers[MLC_MAX_OPERANDS];
        sum += strlen(k->name);
        for (uint32_t p = 0; p < k->param_count; p++) {
            types[p] = (TensorType){.dtype = k->params[p].dtype, .rank = k->params[p].rank};
            for (uint32_t d = 0; d < types[p].rank; d++) types[p].shape[d] = d % 2 ? 16 : 4;
            pointers[p] = &types[p];
        }
        Failure failure = {0};
        params_accept(k->params, k->param_count, k->scalars, scalars, k->scalar_count, pointers,
                      "kernel", &failure);
        sum += strlen(failure.text);
    }
    for (uint32_t i = 0; i < m->model.call_count; i++) {
        const Call *call = &m->model.calls[i];
        expect(call->kernel < m->kernel_count, "a call names no kernel");
        sum += strlen(call->layer) + m->kernels[call->kernel].param_count;
        for (uint32_t o = 0; o < call->operand_count; o++) {
            uint64_t end = call->operands[o].offset + call->sizes[o];
            bool in_arena = call->operands[o].space == MLC_ARENA;
            expect(!in_arena || end <= m->model.arena, "a call leaves the arena");
            sum += end;
        }
        const mlc_extents *extents = &call->extents;
        expect(extents->count == m->kernels[call->kernel].scalar_count, "a scalar is nowhere");
        expect(extents->count == 0 || extents->tasks < (int32_t)extents->count,
               "tasks are counted by no scalar");
        for (uint32_t e = 0; e < extents->count; e++) sum += (uint64_t)extents->most[e];
        for (uint32_t k = 0; k < call->stride_count; k++) {
            const mlc_stride *stride = &call->strides[k];
            expect(stride->loop < m->model.loop_count, "a place moves by no loop");
            uint32_t turns = m->model.turns[stride->loop];
            int64_t most = stride->bytes * (int64_t)(turns > 0 ? turns - 1 : 0);
            int64_t begin = (int64_t)call->operands[stride->operand].offset + most;
            bool in_arena = call->operands[stride->operand].space == MLC_ARENA;
            expect(!in_arena || (begin >= 0 && (uint64_t)begin <= m->model.arena),
                   "a call leaves the arena in its last turn");
        }
    }
    return sum + touch_steps(&m->model, 0, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 1 << 16 };
    Module module;
    Failure failure = {0};
    if (size > MOST) return 0;
    uint8_t *room = malloc(size + 512);
    expect(room != NULL, "no memory");
    size_t whole = wrap_in_elf(room, data, size);
    uint8_t *exact = realloc(room, whole); /* so that the sanitizer sees a read past the end */
    expect(exact != NULL, "no memory");
    bool accepted = module_parse(&module, exact, whole, &failure);
    free(exact);
    if (accepted) {
        fuzz_accepted++;
        sink += touch(&module);
        module_free(&module);
    } else {
        expect(failure.failed && failure.text[0], "a refusal without a reason");
    }
    return 0;
}
