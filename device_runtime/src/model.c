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
        refuse(p, "layer '%s': operand %u is not a place in memory", call->layer, i);
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

static bool at_array(const Parser *p) { /* fixarray, array16, array32 */
    if (p->r.at == p->r.end) return false;
    return (*p->r.at & 0xf0) == 0x90 || *p->r.at == 0xdc || *p->r.at == 0xdd;
}

static void parse_step(Parser *p, mlc_step *step) {
    *step = (mlc_step){.kind = MLC_CALL};
    if (!at_array(p)) {
        step->call = parse_number(p);
        return;
    }
    Call places = {.layer = "a step", .operand_count = MLC_STEP_PLACES};
    uint64_t sizes[MLC_STEP_PLACES]; /* what is read and written has its own */
    uint32_t parts = read_array(&p->r), kind = parse_number(p);
    if (kind > 1 || parts != (kind == 0 ? 7 : 4)) read_fail(&p->r, "a step is not a loop or branch");
    places.operands = take(p, MLC_STEP_PLACES, sizeof *places.operands);
    places.sizes = sizes;
    if (!places.operands) return;
    step->kind = kind == 0 ? MLC_LOOP : MLC_BRANCH;
    if (kind == 0) {
        step->loop = parse_number(p);
        step->turns = parse_number(p);
        step->procedure = parse_number(p);
    }
    step->conditional = !read_nil(&p->r);
    if (step->conditional) parse_operand(p, &places, 0);
    if (kind == 0) {
        step->numbered = !read_nil(&p->r);
        if (step->numbered) parse_operand(p, &places, 1);
        step->counted = !read_nil(&p->r);
        if (step->counted) parse_operand(p, &places, 2);
    } else {
        step->procedure = parse_number(p);
        step->otherwise = parse_number(p);
    }
    step->places = (mlc_call){.operands = places.operands,
                              .operand_count = MLC_STEP_PLACES, /* absent: the arena's begin */
                              .strides = places.strides,
                              .stride_count = places.stride_count};
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
                refuse(p, "the hash of the model's weights has %zu bytes, not 32", hash.size);
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

/* Whether an operand of so many bytes is within its memory, and aligned, in every iteration of every
 * loop by which it moves. */
static bool is_within(const Model *model, const mlc_operand *operand, uint64_t size, uint32_t align,
                      const mlc_stride *strides, uint32_t count, uint32_t number) {
    uint64_t room = room_of(model, operand);
    if (operand->offset % align != 0 || size > room || operand->offset > room - size) return false;
    if (count > 0 && room > INT64_MAX) return false;
    int64_t least = (int64_t)operand->offset, most = (int64_t)(room - size - operand->offset);
    for (uint32_t i = 0; i < count; i++) {
        const mlc_stride *stride = &strides[i];
        int64_t moved;
        if (stride->operand != number) continue;
        if (stride->loop >= model->loop_count || stride->bytes % (int64_t)align != 0) return false;
        uint32_t turns = model->turns[stride->loop];
        if (__builtin_mul_overflow(stride->bytes, turns > 0 ? turns - 1 : 0, &moved)) return false;
        if (moved < 0)
            least += moved;
        else if (moved <= most)
            most -= moved;
        else
            return false;
        if (least < 0) return false;
    }
    return true;
}

/* A symbolic dimension: an int64 in memory, that kernels or callers write. */
static void check_extents(Parser *p, const Model *model, Call *call, const Kernel *kernel,
                          uint32_t number) {
    for (uint32_t i = 0; i < kernel->scalar_count; i++) {
        uint32_t at = kernel->param_count + i;
        if (call->sizes[at] != 8 || !is_within(model, &call->operands[at], 8, 8, call->strides,
                                               call->stride_count, at))
            refuse(p, "call %u (layer '%s'): dimension '%s' lies outside its memory", number,
                   call->layer, kernel->scalars[i]);
    }
    call->extents = (mlc_extents){kernel->scalar_count, kernel->tasks.scalar, kernel->most, NULL};
}

static void check_call(Parser *p, const Model *model, Call *call, uint32_t number) {
    if (call->kernel >= p->module->kernel_count) {
        refuse(p, "call %u (layer '%s') names kernel %u of %u", number, call->layer, call->kernel,
               p->module->kernel_count);
        return;
    }
    const Kernel *kernel = &p->module->kernels[call->kernel];
    if (call->operand_count != (uint64_t)kernel->param_count + kernel->scalar_count ||
        call->operand_count > MLC_MAX_OPERANDS || (kernel->scalar_count > 0 && !kernel->most)) {
        refuse(p, "call %u (layer '%s'): kernel '%s' takes %u operands and %u symbolic dimensions%s, "
               "the call has %u of both",
               number, call->layer, kernel->name, kernel->param_count, kernel->scalar_count,
               kernel->scalar_count > 0 && !kernel->most ? " of any size" : "", call->operand_count);
        return;
    }
    if (kernel->scalar_count > 0) check_extents(p, model, call, kernel, number);
    for (uint32_t i = 0; i < kernel->param_count; i++) {
        const mlc_operand *operand = &call->operands[i];
        const Param *param = &kernel->params[i];
        uint64_t bytes, size = call->sizes[i], room = room_of(model, operand);
        if (operand->offset % param->align != 0)
            refuse(p, "layer '%s': operand %u is not a place in memory", call->layer, i);
        if (!param_bytes(param, &bytes) || bytes > size ||
            !is_within(model, operand, size, param->align, call->strides, call->stride_count, i))
            refuse(p, "call %u (layer '%s'): '%s' lies outside its memory (offset %zu, size %llu, "
                   "of %llu)",
                   number, call->layer, param->name, operand->offset, (unsigned long long)size,
                   (unsigned long long)room);
        if (param->output && operand->space != MLC_ARENA && operand->space != MLC_OUTPUT)
            refuse(p, "call %u (layer '%s'): '%s' would overwrite the model's %s", number,
                   call->layer, param->name, operand->space == MLC_INPUT ? "input" : "weights");
    }
}

/* What a loop or branch reads and writes by itself: a bool, an int64 of the arena, an int64. */
static void check_places(Parser *p, const Model *model, const mlc_step *step) {
    const mlc_call *at = &step->places;
    const uint32_t there[MLC_STEP_PLACES] = {step->conditional, step->numbered, step->counted};
    for (uint32_t i = 0; i < MLC_STEP_PLACES; i++) {
        const mlc_operand *operand = &at->operands[i];
        uint32_t size = i == 0 ? 1 : 8;
        if (!there[i]) continue;
        if (!is_within(model, operand, size, size, at->strides, at->stride_count, i) ||
            (i == 1 && operand->space != MLC_ARENA))
            refuse(p, "a loop's condition, iteration or count lies outside its memory");
    }
}

/* What comes next where loops, procedures and calls are numbered as the executor meets them. */
typedef struct {
    uint32_t loop, procedure, call;
} Due;

/* Walks a procedure as the executor would, each loop for one iteration, so that nothing is walked twice. */
static void check_procedure(Parser *p, Model *model, Due *due, uint32_t depth) {
    uint32_t number = due->procedure++;
    const mlc_procedure *procedure = &model->procedures[number];
    for (uint32_t i = 0; i < procedure->count && !p->r.why; i++) {
        mlc_step *step = &model->steps[procedure->first + i];
        bool fits = step->call < model->call_count;
        if (step->kind == MLC_CALL) {
            due->call = step->call + 1;
        } else {
            step->call = due->call;
            fits = depth < MLC_MAX_NESTING && due->procedure < model->procedure_count &&
                   step->procedure == due->procedure;
        }
        if (step->kind == MLC_LOOP) {
            fits = fits && step->loop == due->loop && due->loop < MLC_MAX_LOOPS &&
                   (!step->counted || step->call < model->call_count); /* who is to blame */
            if (fits) model->turns[due->loop++] = step->turns;
        }
        if (fits && step->kind != MLC_CALL) check_procedure(p, model, due, depth + 1);
        if (fits && step->kind == MLC_BRANCH) {
            fits = step->conditional && due->procedure < model->procedure_count &&
                   step->otherwise == due->procedure;
            if (fits) check_procedure(p, model, due, depth + 1);
        }
        if (!fits)
            refuse(p, "step %u of procedure %u is invalid; this runtime takes %d loops, and "
                   "%d within each other",
                   i, number, MLC_MAX_LOOPS, MLC_MAX_NESTING);
    }
}

static void check_procedures(Parser *p, Model *model) {
    Due due = {0};
    if (model->procedure_count == 0) return;
    model->turns = take(p, MLC_MAX_LOOPS, sizeof *model->turns);
    if (model->turns) check_procedure(p, model, &due, 0);
    model->loop_count = due.loop;
    for (uint32_t i = 0; i < model->step_count && !p->r.why; i++)
        if (model->steps[i].kind != MLC_CALL) check_places(p, model, &model->steps[i]);
}

void check_model(Parser *p) {
    Model *model = &p->module->model;
    if (!model->present || p->r.why) return;
    if (model->input_count + model->output_count > MLC_MAX_OPERANDS)
        refuse(p, "the model has %u inputs and outputs; this runtime takes %d",
               model->input_count + model->output_count, MLC_MAX_OPERANDS);
    check_procedures(p, model);
    for (uint32_t i = 0; i < model->call_count && !p->r.why; i++)
        check_call(p, model, &model->calls[i], i);
}
