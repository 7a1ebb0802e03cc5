/* The executor for a program that a model is linked into: include/mlc_runtime.h says how. This file
 * and the header, each with what it includes, are what an export writes. */
#include "../include/mlc_runtime.h"

#include "../src/execute.c"

/* Whether there is memory for `bytes`, where a kernel wants it. */
static int32_t check_pointer(const void *pointer, size_t bytes) {
    if (bytes == 0) return MLC_OK;
    if (!pointer) return MLC_NULL;
    if ((uintptr_t)pointer % MLC_ALIGNMENT != 0) return MLC_UNALIGNED;
    return MLC_OK;
}

static int32_t check_tensors(const mlc_tensor *tensors, uint32_t count, void *const *pointers) {
    int32_t status = MLC_OK;
    if (count > 0 && !pointers) return MLC_NULL;
    for (uint32_t i = 0; i < count && status == MLC_OK; i++)
        status = check_pointer(pointers[i], tensors[i].bytes);
    return status;
}

/* The dynamic sizes that inputs say. */
static int32_t check_sizes(const mlc_model *model, void *const *inputs) {
    for (uint32_t i = 0; i < model->size_count; i++) {
        const mlc_size *size = &model->sizes[i];
        int64_t said = *(const int64_t *)inputs[size->input];
        if (said < size->least || said > size->most) return MLC_BAD_SIZE - (int32_t)size->input;
    }
    return MLC_OK;
}

int32_t mlc_model_run_with(const mlc_model *model, const void *weights, void *memory,
                           void *const *inputs, void *const *outputs, mlc_invoke *invoke,
                           void *context) {
    uint32_t failed;
    int32_t status = check_pointer(weights, model->weights_bytes);
    if (status == MLC_OK) status = check_pointer(memory, model->memory_bytes);
    if (status == MLC_OK) status = check_tensors(model->inputs, model->input_count, inputs);
    if (status == MLC_OK) status = check_tensors(model->outputs, model->output_count, outputs);
    if (status == MLC_OK) status = check_sizes(model, inputs);
    if (status != MLC_OK) return status;
    mlc_run run = {.calls = model->calls,
                   .call_count = model->call_count,
                   .steps = model->steps,
                   .procedures = model->procedures,
                   .arena = memory,
                   .weights = weights,
                   .inputs = inputs,
                   .outputs = outputs,
                   .invoke = invoke,
                   .context = context};
    if (memory) run.workspace = (unsigned char *)memory + model->arena_bytes;
    return mlc_execute(&run, &failed);
}

int32_t mlc_model_run(const mlc_model *model, const void *weights, void *memory,
                      void *const *inputs, void *const *outputs) {
    return mlc_model_run_with(model, weights, memory, inputs, outputs, NULL, NULL);
}

#ifndef MLC_NO_FILES

#include "../src/blake2b.h"

#include "../src/blake2b.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *mlc_memory_new(size_t bytes) {
    size_t whole = bytes > 0 ? bytes : 1;
    if (whole > SIZE_MAX - MLC_ALIGNMENT) return NULL;
    whole = (whole + MLC_ALIGNMENT - 1) / MLC_ALIGNMENT * MLC_ALIGNMENT;
    void *memory = aligned_alloc(MLC_ALIGNMENT, whole);
    if (memory) memset(memory, 0, whole);
    return memory;
}

static int32_t read_exactly(FILE *file, const mlc_model *model, void *weights) {
    uint8_t hash[HASH_BYTES];
    Blake2b state;
    if (fread(weights, 1, model->weights_bytes, file) != model->weights_bytes ||
        fgetc(file) != EOF)
        return MLC_WRONG_FILE;
    blake2b_begin(&state);
    blake2b_add(&state, weights, model->weights_bytes);
    blake2b_end(&state, hash);
    if (memcmp(hash, model->weights_hash, HASH_BYTES) != 0) return MLC_WRONG_FILE;
    return MLC_OK;
}

int32_t mlc_weights_read(const mlc_model *model, const char *path, void **weights) {
    *weights = NULL;
    if (model->weights_bytes == 0) return MLC_OK;
    FILE *file = fopen(path, "rb");
    if (!file) return MLC_NO_FILE;
    void *memory = mlc_memory_new(model->weights_bytes);
    int32_t status = memory ? read_exactly(file, model, memory) : MLC_NO_MEMORY;
    fclose(file);
    if (status == MLC_OK)
        *weights = memory;
    else
        free(memory);
    return status;
}

#endif

const char *mlc_status_input(const mlc_model *model, int32_t status) {
    int64_t input = (int64_t)MLC_BAD_SIZE - status;
    if (input < 0 || input >= (int64_t)model->input_count) return NULL;
    return model->inputs[input].name;
}

const char *mlc_status_text(int32_t status) {
    if (status <= MLC_BAD_SIZE)
        return "an input says a size that is negative, or more than the model was compiled for";
    switch (status) {
    case MLC_OK:
        return "all is well";
    case MLC_OUT_OF_BOUNDS:
        return "a kernel's access lies outside its buffer";
    case MLC_BAD_SHAPE:
        return "sizes of a kernel's arguments do not fit each other";
    case MLC_BAD_EXTENT:
        return "a dimension is negative, or more than the model was compiled for";
    case MLC_BAD_INDEX:
        return "an index, or a number of rows, lies outside of its axis";
    case MLC_NULL:
        return "a pointer to weights, memory, an input or an output is NULL";
    case MLC_UNALIGNED:
        return "weights, memory, an input or an output is not aligned to 64 bytes";
    case MLC_NO_MEMORY:
        return "there is no memory for the weights";
    case MLC_NO_FILE:
        return "the file of weights cannot be opened";
    case MLC_WRONG_FILE:
        return "the file holds other weights than the model's";
    default:
        return "an unknown status";
    }
}
