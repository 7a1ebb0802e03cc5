/* The model that an object holds: its call table, its loops and branches, and their memory. */
#include "parser.h"

#include <string.h>

/* ---- Calls ---- */

static void parse_strides(Parser *p, Call *call, uint32_t operand, uint32_t count) {
    mlc_stride *strides = take(p, count, sizeof *strides);
    if (!strides) return;
    if (call->stride_count == 0) call->strides = strides; /* those of a call adjoin */
    for (uint32_t i = 0; i < count && !p->r.why; i++) {
        uint64_t loop = read_uint(&p->r);
        strides[i] = (mlc_stride){operand, loop < UINT32_MAX ? (uint32_t)loop : UINT32_MAX,
                                  read_int(&p->r)};
    }
    call->stride_count += count;
}

static void parse_operand(Parser *p, Call *call, uint32_t i) {
    uint32_t count = read_array(&p->r);
    if (count < 4 || count % 2 != 0) read_fail(&p->r, "an operand has four numbers, then pairs");
    uint64_t space = read_uint(&p->r), index = read_uint(&p->r), offset = read_uint(&p->r);
    call->sizes[i] = read_uint(&p->r);
    if (space > MLC_OUTPUT || index > UINT32_MAX || offset > SIZE_MAX)
        REFUSE(p, "layer '%s': operand %u is not a place in memory", call->layer, i);
    call->operands[i] = (mlc_operand){(enum mlc_space)space, (uint32_t)index, (size_t)offset};
    if (count > 4 && !p->r.why) parse_strides(p, call, i, (count - 4) / 2);
}

static void parse_call(Parser *p, Call *call) {
    uint32_t count = 0;
    *call = (Call){.layer = ""};
    if (read_array(&p->r) != 3) read_fail(&p->r, "a call has three parts");
    uint64_t kernel = read_uint(&p->r);
    call->kernel = kernel < UINT32_MAX ? (uint32_t)kernel : UINT32_MAX;
    call->layer = take_str(p);
    call->operands = take_array(p, sizeof *call->operands, &count);
    call->sizes = take(p, count, sizeof *call->sizes);
    if (!call->sizes) return;
    call->operand_count = count;
    for (uint32_t i = 0; i < count && !p->r.why; i++) parse_operand(p, call, i);
}

/* ---- Loops and branches ---- */

static uint32_t parse_number(Parser *p) {
    uint64_t number = read_uint(&p->r);
    if (number > INT32_MAX) read_fail(&p->r, "a step's number is too large");
    return (uint32_t)number;
}

/* The place of a condition (0) or of a turn's number (1), or nil; false for nil. */
static bool parse_place(Parser *p, Step *step, uint32_t which) {
    if (read_nil(&p->r)) return false;
    parse_operand(p, &step->places, which);
    return true;
}

static bool at_array(const Parser *p) { /* fixarray, array16, array32 */
    if (p->r.at == p->r.end) return false;
    return (*p->r.at & 0xf0) == 0x90 || *p->r.at == 0xdc || *p->r.at == 0xdd;
}

static void parse_step(Parser *p, Step *step) {
    *step = (Step){.kind = MLC_CALL, .places = {.layer = "a step"}};
    if (!at_array(p)) {
        step->call = parse_number(p);
        return;
    }
    uint32_t parts = read_array(&p->r), kind = parse_number(p);
    if (!(kind == 0 && parts == 6) && !(kind == 1 && parts == 4))
        read_fail(&p->r, "a step is neither a call nor a loop nor a branch");
    step->kind = kind == 0 ? MLC_LOOP : MLC_BRANCH;
    step->places.operands = take(p, 2, sizeof *step->places.operands);
    step->places.sizes = take(p, 2, sizeof *step->places.sizes);
    if (!step->places.operands || !step->places.sizes || p->r.why) return;
    step->places.operand_count = 2; /* that of a place that is not there is the arena's begin */
    if (step->kind == MLC_LOOP) {
        step->loop = parse_number(p);
        step->turns = parse_number(p);
        step->procedure = parse_number(p);
        step->conditional = parse_place(p, step, 0);
        step->numbered = parse_place(p, step, 1);
    } else {
        step->conditional = parse_place(p, step, 0);
        step->procedure = parse_number(p);
        step->otherwise = parse_number(p);
    }
}

static void parse_procedures(Parser *p) {
    Model *model = &p->module->model;
    Reader begin = p->r;
    for (uint32_t left = read_array(&begin); left > 0 && !begin.why; left--) {
        Reader steps = begin;
        model->step_count += read_array(&steps);
        read_skip(&begin);
    }
    if (begin.why) read_fail(&p->r, begin.why);
    model->procedures = take_array(p, sizeof *model->procedures, &model->procedure_count);
    model->steps = take(p, model->step_count, sizeof *model->steps);
    if (!model->steps) return;
    uint32_t first = 0;
    for (uint32_t i = 0; i < model->procedure_count && !p->r.why; i++) {
        uint32_t count = read_array(&p->r);
        model->procedures[i] = (mlc_procedure){first, count};
        for (uint32_t s = 0; s < count && !p->r.why; s++)
            parse_step(p, &model->steps[first + s]);
        first += count;
    }
}

/* ---- The model ---- */

void parse_model(Parser *p) {
    Model *model = &p->module->model;
    *model = (Model){.present = true};
    for (uint32_t left = read_map(&p->r); left > 0 && !p->r.why; left--) {
        Bytes key = read_str(&p->r);
        if (bytes_are(key, "inputs")) {
            model->inputs = parse_params(p, NULL, &model->input_count);
        } else if (bytes_are(key, "outputs")) {
            model->outputs = parse_params(p, NULL, &model->output_count);
        } else if (bytes_are(key, "arena")) {
            model->arena = read_uint(&p->r);
        } else if (bytes_are(key, "weights")) {
            model->weights = read_uint(&p->r);
        } else if (bytes_are(key, "weights_hash")) {
            Bytes hash = read_bin(&p->r);
            if (hash.size == HASH_BYTES)
                memcpy(model->weights_hash, hash.data, HASH_BYTES);
            else if (hash.size != 0)
                REFUSE(p, "the hash of the model's weights has %zu bytes, not 32", hash.size);
        } else if (bytes_are(key, "calls")) {
            model->calls = take_array(p, sizeof *model->calls, &model->call_count);
            for (uint32_t i = 0; i < model->call_count && !p->r.why; i++)
                parse_call(p, &model->calls[i]);
        } else if (bytes_are(key, "procedures")) {
            parse_procedures(p);
        } else {
            read_skip(&p->r);
        }
    }
}

/* ---- Checks ---- */

static bool param_bytes(const Param *param, uint64_t *bytes) {
    TensorType type = {.dtype = param->dtype, .rank = param->rank};
    for (uint32_t i = 0; i < param->rank; i++) type.shape[i] = param->shape[i].extent;
    return tensor_bytes(&type, bytes);
}

/* Bytes of the memory that an operand lies in; 0 when there is no such memory. */
static uint64_t room_of(const Model *model, const mlc_operand *operand) {
    uint64_t bytes = 0;
    switch (operand->space) {
    case MLC_ARENA:
        return model->arena;
    case MLC_WEIGHTS:
        return model->weights;
    case MLC_INPUT:
        if (operand->index < model->input_count)
            param_bytes(&model->inputs[operand->index], &bytes);
        return bytes;
    case MLC_OUTPUT:
        if (operand->index < model->output_count)
            param_bytes(&model->outputs[operand->index], &bytes);
        return bytes;
    }
    return 0;
}

/* How far an operand moves at most, down and up, and whether by steps that keep its alignment. */
static bool reach(const Model *model, const Call *call, uint32_t operand, uint32_t align,
                  int64_t *down, int64_t *up) {
    *down = *up = 0;
    for (uint32_t i = 0; i < call->stride_count; i++) {
        const mlc_stride *stride = &call->strides[i];
        if (stride->operand != operand) continue;
        uint32_t turns = stride->loop < model->loop_count ? model->turns[stride->loop] : 0;
        int64_t *way = stride->bytes < 0 ? down : up, most;
        if (stride->loop >= model->loop_count || stride->bytes % (int64_t)align != 0 ||
            __builtin_mul_overflow(stride->bytes, turns > 0 ? turns - 1 : 0, &most) ||
            __builtin_add_overflow(*way, most, way))
            return false;
    }
    return true;
}

/* Whether an operand is within its memory, and aligned, in every turn of every loop. */
static bool is_within(const Model *model, const Call *call, uint32_t i, uint64_t bytes,
                      uint32_t align) {
    const mlc_operand *operand = &call->operands[i];
    uint64_t size = call->sizes[i], room = room_of(model, operand), offset = operand->offset;
    int64_t down, up;
    if (offset % align != 0 || !reach(model, call, i, align, &down, &up)) return false;
    uint64_t below = (uint64_t)-down, above = (uint64_t)up;
    return bytes <= size && size <= room && offset <= room - size && below <= offset &&
           above <= room - size - offset;
}

static void check_call(Parser *p, const Model *model, const Call *call, uint32_t number) {
    if (call->kernel >= p->module->kernel_count) {
        REFUSE(p, "call %u (layer '%s') names kernel %u of %u", number, call->layer, call->kernel,
               p->module->kernel_count);
        return;
    }
    const Kernel *kernel = &p->module->kernels[call->kernel];
    if (call->operand_count != kernel->param_count || kernel->scalar_count > 0) {
        REFUSE(p, "call %u (layer '%s'): kernel '%s' takes %u operands and %u symbolic dimensions, "
               "the call has %u and none",
               number, call->layer, kernel->name, kernel->param_count, kernel->scalar_count,
               call->operand_count);
        return;
    }
    for (uint32_t i = 0; i < call->operand_count; i++) {
        const mlc_operand *operand = &call->operands[i];
        const Param *param = &kernel->params[i];
        uint64_t bytes, size = call->sizes[i], room = room_of(model, operand);
        if (!param_bytes(param, &bytes) || !is_within(model, call, i, bytes, param->align))
            REFUSE(p, "call %u (layer '%s'): '%s' lies outside its memory (offset %zu, size %llu, "
                   "of %llu)",
                   number, call->layer, param->name, operand->offset, (unsigned long long)size,
                   (unsigned long long)room);
        if (param->output && operand->space != MLC_ARENA && operand->space != MLC_OUTPUT)
            REFUSE(p, "call %u (layer '%s'): '%s' would overwrite the model's %s", number,
                   call->layer, param->name, operand->space == MLC_INPUT ? "input" : "weights");
    }
}

/* What a loop or branch reads and writes by itself. */
static void check_places(Parser *p, const Model *model, const Step *step) {
    const mlc_operand *turn = &step->places.operands[1];
    if (step->conditional && !is_within(model, &step->places, 0, 1, 1))
        REFUSE(p, "a condition lies outside its memory");
    if (step->numbered && (!is_within(model, &step->places, 1, 8, 8) || turn->space != MLC_ARENA))
        REFUSE(p, "the number of a loop's turn lies outside the arena");
}

/* Whether a step may run a procedure: one that comes later, and that no other step runs. */
static bool claim(bool *claimed, const Model *model, uint32_t within, uint32_t procedure) {
    if (procedure <= within || procedure >= model->procedure_count || claimed[procedure])
        return false;
    claimed[procedure] = true;
    return true;
}

static void check_step(Parser *p, Model *model, uint32_t within, Step *step, bool *claimed) {
    bool fits = step->kind == MLC_CALL ? step->call < model->call_count
                                       : claim(claimed, model, within, step->procedure);
    if (step->kind == MLC_BRANCH)
        fits = fits && step->conditional && claim(claimed, model, within, step->otherwise);
    if (!fits) REFUSE(p, "a step of procedure %u runs what is not there, or runs already", within);
    if (step->kind != MLC_LOOP) return;
    if (step->loop >= MLC_MAX_LOOPS || model->loop_count == MLC_MAX_LOOPS)
        REFUSE(p, "the model has more than the %d loops that this runtime takes", MLC_MAX_LOOPS);
    else if (step->loop != model->loop_count)
        REFUSE(p, "loop %u has the number %u", model->loop_count, step->loop);
    else
        model->turns[model->loop_count++] = step->turns;
}

/* Holds the procedures to be a tree that is no deeper than the executor goes. Returns the number of
 * the call that follows those of a procedure, of which `next` is the first. */
static uint32_t check_procedure(Parser *p, Model *model, uint32_t number, uint32_t next,
                                bool *claimed, uint32_t depth) {
    const mlc_procedure *procedure = &model->procedures[number];
    if (depth > MLC_MAX_NESTING)
        REFUSE(p, "loops and branches are nested more than the %d deep that this runtime takes",
               MLC_MAX_NESTING);
    for (uint32_t i = 0; i < procedure->count && !p->r.why; i++) {
        Step *step = &model->steps[procedure->first + i];
        check_step(p, model, number, step, claimed);
        if (p->r.why) break;
        if (step->kind == MLC_CALL) {
            next = step->call + 1;
            continue;
        }
        step->call = next;
        next = check_procedure(p, model, step->procedure, next, claimed, depth + 1);
        if (step->kind == MLC_BRANCH && !p->r.why)
            next = check_procedure(p, model, step->otherwise, next, claimed, depth + 1);
    }
    return next;
}

static void check_procedures(Parser *p, Model *model) {
    bool *claimed = take(p, model->procedure_count, sizeof *claimed);
    model->turns = take(p, MLC_MAX_LOOPS, sizeof *model->turns);
    if (!claimed || !model->turns || model->procedure_count == 0) return;
    check_procedure(p, model, 0, 0, claimed, 0);
    for (uint32_t i = 0; i < model->step_count && !p->r.why; i++)
        if (model->steps[i].kind != MLC_CALL) check_places(p, model, &model->steps[i]);
}

void check_model(Parser *p) {
    Model *model = &p->module->model;
    if (!model->present || p->r.why) return;
    if (model->input_count + model->output_count > MLC_MAX_OPERANDS)
        REFUSE(p, "the model has %u inputs and outputs; this runtime takes %d",
               model->input_count + model->output_count, MLC_MAX_OPERANDS);
    check_procedures(p, model);
    for (uint32_t i = 0; i < model->call_count && !p->r.why; i++)
        check_call(p, model, &model->calls[i], i);
}
