/* An object made ready to run: relocated, with its kernels' addresses and its model's call table. */
#ifndef MLC_PROGRAM_H
#define MLC_PROGRAM_H

#include "load.h"
#include "module.h"

typedef struct {
    mlc_image image;
    Module about;
    mlc_kernel **entries;  /* per kernel */
    mlc_call *calls;       /* of the model */
    uint64_t *nanoseconds; /* per call of the model, or of one kernel */
    uint64_t *turns;       /* likewise: how often it ran */
    void *tables;          /* where these four live */
    size_t tables_size;
    void *workspace; /* of the first of `threads` threads */
    size_t workspace_stride; /* bytes to that of the next */
    uint32_t threads;
} Program;

/* The bytes of the object are not needed afterwards. After a failure there is nothing to free. */
bool program_load(Program *program, const void *object, size_t size, Failure *failure);
void program_free(Program *program);

/* Gives so many threads a workspace each; for one they are there from the start. */
bool program_reserve(Program *program, uint32_t threads, Failure *failure);

/* What a run of the model walks: calls, steps, weights' memory and arguments are to be added. */
void program_table(const Program *program, mlc_run *run);

/* What a status that is not MLC_OK means, and which call gave it: `kernel` where it was run alone,
 * the failed-th of the model otherwise (NULL). Returns false. */
bool program_bad_status(const Program *program, const Kernel *kernel, int32_t status,
                        uint32_t failed, Failure *failure);

/* Which call of the model that is, for messages. */
Place program_place(const Module *about, uint32_t call);

/* Zeroed memory of this process, whose pages cost nothing until they are touched; NULL when there
 * is none. */
void *fresh_memory(size_t size);

#endif
