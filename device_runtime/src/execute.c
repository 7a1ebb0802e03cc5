#include "../include/mlc_runtime.h"

static void *address(const mlc_run *run, const mlc_operand *operand) {
    char *base = NULL;
    switch ((enum mlc_space)operand->space) {
    case MLC_ARENA:
        base = (char *)run->arena;
        break;
    case MLC_WEIGHTS: /* kernels only read what is an input to them */
        base = (char *)(uintptr_t)run->weights;
        break;
    case MLC_INPUT:
        base = (char *)run->inputs[operand->index];
        break;
    case MLC_OUTPUT:
        base = (char *)run->outputs[operand->index];
        break;
    }
    return base + operand->offset;
}

/* All tasks of one call. How the thread computes (rounding, tiny numbers) is as the caller has it, and
 * stays so: our kernels do not change it, and a program that has chosen its own is not overruled. The
 * program on the board, which runs others' kernels, sets it anew after each (modes.h). A pool of
 * threads is invoke's affair. */
static int32_t run_tasks(const mlc_run *run, const mlc_call *call, uint32_t index) {
    void *data[MLC_MAX_OPERANDS];
    for (uint32_t i = 0; i < call->operand_count; i++) data[i] = address(run, &call->operands[i]);
    mlc_args args = {.data = data, .scalars = call->scalars, .workspace = run->workspace};
    return run->invoke ? run->invoke(run->context, call, &args, index)
                       : call->kernel(&args, 0, call->tasks);
}

int32_t mlc_execute(const mlc_run *run, uint32_t *failed) {
    for (uint32_t i = run->first_call; i < run->call_count; i++) {
        int32_t status = run_tasks(run, &run->calls[i], i);
        if (status != MLC_OK) {
            *failed = i;
            return status;
        }
    }
    return MLC_OK;
}
