/* What an object says of itself: its ".mlc" section (mlc_abi.h), checked and taken apart. */
#ifndef MLC_MODULE_H
#define MLC_MODULE_H

#include "../include/mlc_runtime.h"
#include "blake2b.h"
#include "failure.h"
#include "tensor.h"

enum { MAX_METADATA = 1 << 19, MAX_SCALARS = 64 };

typedef struct {
    uint64_t extent;
    int32_t scalar; /* which symbolic dimension it is, or -1 */
} Dimension;

typedef struct {
    const char *name;
    DType dtype;
    uint32_t rank;
    Dimension *shape;
    bool output;
    uint32_t align;    /* bytes that its address is a multiple of */
    const char *state; /* of a model's output that a run finds as the last left it: that input's name */
} Param;

typedef struct {
    const char *name;
    uint32_t param_count;
    Param *params;
    uint32_t scalar_count;
    const char **scalars;
    int64_t *most; /* of each scalar; NULL: whatever the arguments' sizes say */
    Dimension tasks;
    uint64_t workspace;
} Kernel;

typedef struct {
    uint32_t kernel;
    const char *layer;
    uint32_t operand_count;
    mlc_operand *operands;
    uint64_t *sizes; /* bytes that each operand says it has */
    uint32_t stride_count;
    mlc_stride *strides;
    mlc_extents extents;
} Call;

typedef struct {
    bool present;
    uint32_t input_count, output_count;
    Param *inputs, *outputs; /* without symbolic dimensions */
    uint64_t arena, weights;
    uint8_t weights_hash[HASH_BYTES];
    uint32_t call_count;
    Call *calls;
    uint32_t procedure_count, step_count; /* none where there are neither loops nor branches */
    mlc_procedure *procedures;
    mlc_step *steps;
    uint32_t loop_count;
    uint32_t *turns; /* of each loop, at most */
} Model;

typedef struct {
    const char *target;
    uint32_t kernel_count;
    Kernel *kernels;
    Model model;
    uint64_t workspace; /* the largest that a kernel asks for */
    void *memory;       /* all of the above lives here */
    size_t memory_size;
} Module;

/* Takes an object's metadata apart and checks it: ABI, machine and features against this board, and
 * that no call reaches outside the arena, the weights, an input or an output. The bytes of `object`
 * are not needed afterwards. The module must be freed after a success. */
bool module_parse(Module *module, const void *object, size_t size, Failure *failure);
void module_free(Module *module);

const Kernel *module_kernel(const Module *module, const char *name, Failure *failure);

/* Checks arguments against parameters and binds symbolic dimensions: scalars[i] is the extent that
 * the arguments give kernel's i-th (none for a model: pass NULL). `what` is "kernel 'add'" or the
 * like, for messages. */
bool params_accept(const Param *params, uint32_t count, const char *const *scalar_names,
                   int64_t *scalars, uint32_t scalar_count, const TensorType *const *arguments,
                   const char *what, Failure *failure);

#endif
