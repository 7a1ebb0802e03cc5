/* The executor: runs a compiled model by walking its call table. C11 and nothing else: no threads,
 * no files, no memory of its own, unless mlc_weights_read or mlc_memory_new is called. Compiled with
 * -DMLC_NO_FILES it has neither of these, and needs no more of C's library than <stdint.h>.
 *
 *   #include "digits.h"                  which names the model `digits`, and says its sizes
 *
 *   static _Alignas(MLC_ALIGNMENT) unsigned char memory[DIGITS_MEMORY_BYTES];
 *   static _Alignas(MLC_ALIGNMENT) float image[DIGITS_IMAGE_ELEMENTS];
 *   static _Alignas(MLC_ALIGNMENT) float probability[DIGITS_PROBABILITY_ELEMENTS];
 *
 *   void *weights;
 *   int32_t status = mlc_weights_read(&digits, "digits.weights", &weights);
 *   if (status == MLC_OK)
 *       status = mlc_model_run(&digits, weights, memory, (void *[]){image},
 *                              (void *[]){probability});
 *   if (status != MLC_OK) puts(mlc_status_text(status));
 *
 * A model is constant and may run on several threads at once, each with memory of its own. */
#ifndef MLC_RUNTIME_H
#define MLC_RUNTIME_H

#include "mlc_abi.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The call table ---- */

enum { MLC_MAX_OPERANDS = 64, MLC_MAX_LOOPS = 256, MLC_MAX_NESTING = 16, MLC_STEP_PLACES = 3,
       MLC_PROGRAM_ABI = 2 };

typedef struct {
    uint32_t space; /* an mlc_space */
    uint32_t index; /* which input or output */
    size_t offset;  /* bytes */
} mlc_operand;

/* An operand of a call moves: by so many bytes from each iteration of a loop to the next. */
typedef struct {
    uint32_t operand, loop;
    int64_t bytes;
} mlc_stride;

/* The symbolic dimensions of a call. Each is an int64, where one of its last `count` operands says. */
typedef struct {
    uint32_t count;
    int32_t tasks;         /* which of them is the number of tasks; -1: none */
    const int64_t *most;   /* the largest that each may be */
    const int64_t *values; /* what they are, where no operands say it; else NULL */
} mlc_extents;

typedef struct {
    mlc_kernel *kernel;
    const mlc_operand *operands;
    uint32_t operand_count; /* at most MLC_MAX_OPERANDS */
    int32_t tasks;
    const mlc_extents *extents; /* NULL where the kernel has no symbolic dimensions */
    const mlc_stride *strides;
    uint32_t stride_count;
} mlc_call;

/* ---- Loops and branches ---- */

enum mlc_step_kind { MLC_CALL, MLC_LOOP, MLC_BRANCH };

typedef struct {
    uint32_t kind;        /* an mlc_step_kind */
    uint32_t call;        /* the call; of a loop or branch, the first that is in it or follows it */
    uint32_t loop, turns; /* a loop's number, less than MLC_MAX_LOOPS, and how often it runs */
    uint32_t procedure;   /* that a loop runs, or a branch whose condition holds */
    uint32_t otherwise;   /* that a branch runs whose condition does not hold */
    uint32_t conditional; /* whether a loop has a condition, as every branch has */
    uint32_t numbered;    /* whether a loop writes the number of its iteration down */
    uint32_t counted;     /* whether a loop reads how often it runs; `turns` is then the most */
    mlc_call places;      /* no kernel's: operand 0 is the condition, 1 that number, 2 that count */
} mlc_step;

/* Some steps in order. What they run are procedures that come after it. */
typedef struct {
    uint32_t first, count;
} mlc_procedure;

/* Does one call, the `index`-th of the table: returns kernel(args, 0, tasks), or the status of
 * whatever does all tasks of it. What stands around that, timing or counting, is its own affair. */
typedef int32_t mlc_invoke(void *context, const mlc_call *call, const mlc_args *args,
                           uint32_t index);

typedef struct {
    const mlc_call *calls;
    uint32_t first_call, call_count; /* walk from the one up to, not including, the other; a loop or
                                        branch runs whole, or not at all */
    const mlc_step *steps;
    const mlc_procedure *procedures; /* the first is run; NULL: the calls in their order */
    void *arena;
    const void *weights;
    void *const *inputs;
    void *const *outputs;
    void *workspace;    /* as large as the largest that a kernel asks for */
    mlc_invoke *invoke; /* NULL: kernels are called, and that is all */
    void *context;      /* for invoke */
} mlc_run;

/* Returns MLC_OK, or the status of the first call that gave another one, with *failed its index. */
int32_t mlc_execute(const mlc_run *run, uint32_t *failed);

/* ---- A model that is linked into a program ---- */

enum mlc_error { /* statuses of this file's functions; those of kernels are positive */
    MLC_NULL = -1,
    MLC_UNALIGNED = -2,
    MLC_NO_MEMORY = -3,
    MLC_NO_FILE = -4,
    MLC_WRONG_FILE = -5,
    MLC_BAD_SIZE = -256 /* and below: input number MLC_BAD_SIZE - status says a size that is negative,
                           or more than the model was compiled for */
};

typedef struct {
    const char *name;
    const char *dtype;
    uint32_t rank;
    const size_t *shape;
    size_t bytes;
} mlc_tensor;

/* An input that says a dynamic size, an int64, with the least and the largest that it may be. */
typedef struct {
    uint32_t input;
    int64_t least, most;
} mlc_size;

typedef struct {
    const char *name;
    const char *target;
    uint32_t input_count, output_count, call_count;
    const mlc_tensor *inputs, *outputs;
    const mlc_call *calls;
    const char *const *layers; /* the name of each call */
    const mlc_step *steps;
    const mlc_procedure *procedures; /* NULL where there are neither loops nor branches */
    size_t arena_bytes;        /* aligned, so that the workspace begins there */
    size_t memory_bytes;       /* arena and workspace */
    size_t weights_bytes;
    const uint8_t *weights_hash; /* BLAKE2b-256; NULL where there are no weights */
    uint32_t size_count;
    const mlc_size *sizes; /* checked before a run: nothing is computed where one is wrong */
} mlc_model;

/* Runs a model once. inputs and outputs are in the model's order, `memory` is memory_bytes of
 * scratch; neither is kept. An output that is a state is read, too: its memory is to be as the last
 * run left it, and zero before the first. Every pointer is aligned to MLC_ALIGNMENT; what has no bytes may be
 * NULL. Returns MLC_OK, an mlc_error, or a kernel's status. */
int32_t mlc_model_run(const mlc_model *model, const void *weights, void *memory,
                      void *const *inputs, void *const *outputs);

/* The same, with each call done by `invoke`. */
int32_t mlc_model_run_with(const mlc_model *model, const void *weights, void *memory,
                           void *const *inputs, void *const *outputs, mlc_invoke *invoke,
                           void *context);

#ifndef MLC_NO_FILES

/* Reads a model's weights from a file and checks them against the model. free() them. */
int32_t mlc_weights_read(const mlc_model *model, const char *path, void **weights);

/* Aligned memory, zeroed; free() it. NULL when there is none. */
void *mlc_memory_new(size_t bytes);

#endif

const char *mlc_status_text(int32_t status);

/* The name of the input that a status of MLC_BAD_SIZE or below is about; NULL of other statuses. */
const char *mlc_status_input(const mlc_model *model, int32_t status);

#ifdef __cplusplus
}
#endif

#endif
