#include "../include/mlc_runtime.h"

#include <stdbool.h>

/* A walk over the table. `turns` has the number of the turn that each loop is in, `fewer` how many
 * turns less than at most a loop has. */
typedef struct {
    const mlc_run *run;
    uint32_t *failed;
    uint32_t turns[MLC_MAX_LOOPS], fewer[MLC_MAX_LOOPS];
} Walk;

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

/* Where the operands are in this iteration. */
static void locate(const Walk *walk, const mlc_call *call, void **data) {
    for (uint32_t i = 0; i < call->operand_count; i++)
        data[i] = address(walk->run, &call->operands[i]);
    for (uint32_t i = 0; i < call->stride_count; i++) {
        const mlc_stride *stride = &call->strides[i];
        uint32_t turn = walk->turns[stride->loop];
        if (stride->bytes < 0) turn += walk->fewer[stride->loop]; /* from the last iteration on */
        int64_t moved = stride->bytes * (int64_t)turn;
        data[stride->operand] = (char *)data[stride->operand] + (ptrdiff_t)moved;
    }
}

/* The symbolic dimensions of a call, and its tasks where one of them says how many. */
static int32_t measure(mlc_call *call, void *const *data, int64_t *scalars) {
    const mlc_extents *extents = call->extents;
    for (uint32_t i = 0; i < extents->count; i++) {
        scalars[i] = *(const int64_t *)data[call->operand_count - extents->count + i];
        if (scalars[i] < 0 || scalars[i] > extents->most[i]) return MLC_BAD_EXTENT;
    }
    if (extents->tasks >= 0) call->tasks = (int32_t)scalars[extents->tasks];
    return MLC_OK;
}

/* All tasks of one call. How the thread computes (rounding, tiny numbers) is as the caller has it, and
 * stays so: our kernels do not change it, and a program that has chosen its own is not overruled. The
 * program on the board, which runs others' kernels, sets it anew after each (modes.h). A pool of
 * threads is invoke's affair. */
static int32_t run_tasks(const Walk *walk, uint32_t index) {
    const mlc_run *run = walk->run;
    const mlc_call *call = &run->calls[index];
    void *data[MLC_MAX_OPERANDS];
    int64_t scalars[MLC_MAX_OPERANDS];
    mlc_call sized = *call;
    locate(walk, call, data);
    mlc_args args = {.data = data, .scalars = scalars, .workspace = run->workspace};
    int32_t status = MLC_OK;
    if (call->extents && call->extents->values)
        args.scalars = call->extents->values;
    else if (call->extents)
        status = measure(&sized, data, scalars);
    if (status == MLC_OK)
        status = run->invoke ? run->invoke(run->context, &sized, &args, index)
                             : call->kernel(&args, 0, sized.tasks);
    if (status != MLC_OK) *walk->failed = index;
    return status;
}

static int32_t run_steps(Walk *walk, uint32_t procedure);

static int32_t run_loop(Walk *walk, const mlc_step *step) {
    int32_t status = MLC_OK;
    uint32_t turns = step->turns;
    void *data[MLC_STEP_PLACES];
    if (step->counted) {
        locate(walk, &step->places, data);
        int64_t count = *(const int64_t *)data[2];
        *walk->failed = step->call;
        if (count < 0 || count > step->turns) return MLC_BAD_EXTENT;
        turns = (uint32_t)count;
    }
    walk->turns[step->loop] = 0;
    walk->fewer[step->loop] = turns > 0 ? step->turns - turns : 0;
    for (uint32_t turn = 0; turn < turns && status == MLC_OK; turn++) {
        walk->turns[step->loop] = turn;
        locate(walk, &step->places, data);
        if (step->conditional && *(const uint8_t *)data[0] == 0) break;
        if (step->numbered) *(int64_t *)data[1] = (int64_t)turn;
        status = run_steps(walk, step->procedure);
    }
    return status;
}

static int32_t run_branch(Walk *walk, const mlc_step *step) {
    void *data[MLC_STEP_PLACES];
    locate(walk, &step->places, data);
    bool holds = *(const uint8_t *)data[0] != 0;
    return run_steps(walk, holds ? step->procedure : step->otherwise);
}

static int32_t run_step(Walk *walk, const mlc_step *step) {
    switch ((enum mlc_step_kind)step->kind) {
    case MLC_CALL:
        return run_tasks(walk, step->call);
    case MLC_LOOP:
        return run_loop(walk, step);
    case MLC_BRANCH:
        return run_branch(walk, step);
    }
    return MLC_OK;
}

static int32_t run_steps(Walk *walk, uint32_t number) {
    const mlc_run *run = walk->run;
    const mlc_procedure *procedure = &run->procedures[number];
    int32_t status = MLC_OK;
    for (uint32_t i = 0; i < procedure->count && status == MLC_OK; i++) {
        const mlc_step *step = &run->steps[procedure->first + i];
        bool asked = step->call >= run->first_call && step->call < run->call_count;
        if (number > 0 || asked) status = run_step(walk, step);
    }
    return status;
}

int32_t mlc_execute(const mlc_run *run, uint32_t *failed) {
    Walk walk = {.run = run, .failed = failed};
    int32_t status = MLC_OK;
    if (run->procedures) return run_steps(&walk, 0);
    for (uint32_t i = run->first_call; i < run->call_count && status == MLC_OK; i++)
        status = run_tasks(&walk, i);
    return status;
}
