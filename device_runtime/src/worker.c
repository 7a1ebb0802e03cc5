#define _GNU_SOURCE /* recvmsg flags, CPU_SETSIZE */
#include "worker.h"

#include "box.h"
#include "clock.h"
#include "instruments.h"
#include "pool.h"
#include "program.h"
#include "reply.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    uint32_t id; /* 0: nothing mapped here */
    TensorType type;
    void *data;
    size_t size;
    bool closed; /* not given to the module at work */
} Mapped;

typedef struct {
    uint32_t id; /* 0: nothing loaded here */
    Program program;
    void *weights;
    size_t weights_size;
    Failure failure; /* why it could not be loaded */
} Loaded;

static Mapped tensors[MAX_TENSORS];
static unsigned slots; /* the highest of them that was in use, and one */
static Loaded modules[MAX_MODULES];
static Shared *shared;

static bool no_memory(Failure *failure, const char *what, uint64_t size) {
    return fail(failure, MEMORY, "no memory for %s (%llu bytes); try: free tensors and modules",
                what, (unsigned long long)size);
}

/* ---- Tensors ---- */

static void drop_tensor(uint32_t id) {
    Mapped *m = &tensors[id % MAX_TENSORS];
    if (m->id != id) return;
    segment_unmap(m->data, m->size);
    *m = (Mapped){0};
}

static void map_tensor(const Order *order, int fd) {
    Mapped *m = &tensors[order->id % MAX_TENSORS];
    drop_tensor(m->id);
    m->data = segment_map(fd, order->tensor.size, true);
    m->size = order->tensor.size;
    m->type = order->tensor.type;
    m->id = m->data ? order->id : 0;
    unsigned slot = (unsigned)(m - tensors);
    if (slot >= slots) slots = slot + 1;
}

static Mapped *tensor_at(uint32_t id, Failure *failure) {
    Mapped *m = &tensors[id % MAX_TENSORS];
    if (m->id == id) return m;
    fail(failure, MEMORY, "no room to map tensor %u next to the others; try: free some", id);
    return NULL;
}

static bool is_given(uint32_t id, const RunOrder *run) {
    bool given = run->arena == id;
    for (uint32_t i = 0; !given && i < run->arg_count; i++) given = run->args[i] == id;
    return given;
}

/* Opens what a run is given, and nothing else. */
static bool open_given(const RunOrder *run, Failure *failure) {
    for (unsigned i = 0; i < slots; i++) {
        Mapped *m = &tensors[i];
        bool closed = !is_given(m->id, run);
        if (m->id == 0 || closed == m->closed) continue;
        if (!segment_open(m->data, m->size, !closed))
            return no_memory(failure, "a tensor next to the others", m->size);
        m->closed = closed;
    }
    return true;
}

/* ---- Modules ---- */

static void drop_module(uint32_t id) {
    Loaded *m = &modules[id % MAX_MODULES];
    if (m->id != id) return;
    program_free(&m->program);
    segment_unmap(m->weights, m->weights_size);
    *m = (Loaded){0};
}

static bool weights_match(const LoadOrder *order, const Model *model, Failure *failure) {
    if (model->weights == 0) return true;
    const uint8_t *want = model->weights_hash, *got = order->weights_hash;
    if (!order->has_weights)
        return fail(failure, REFUSED,
                    "the module's model needs its weights, blob %02x%02x%02x%02x... of %llu bytes",
                    want[0], want[1], want[2], want[3], (unsigned long long)model->weights);
    if (memcmp(want, got, HASH_BYTES) != 0 || model->weights != order->weights_size)
        return fail(failure, REFUSED,
                    "the module's model needs weights %02x%02x%02x%02x... of %llu bytes, given "
                    "%02x%02x%02x%02x... of %zu bytes",
                    want[0], want[1], want[2], want[3], (unsigned long long)model->weights, got[0],
                    got[1], got[2], got[3], order->weights_size);
    return true;
}

static bool load_parts(Loaded *m, const LoadOrder *order, const void *object, int weights_fd,
                       Failure *failure) {
    if (!program_load(&m->program, object, order->object_size, failure)) return false;
    if (!weights_match(order, &m->program.about.model, failure)) return false;
    if (order->has_weights) { /* read-only, so that a stray write faults and the blob stays true */
        m->weights_size = order->weights_size;
        m->weights = segment_map(weights_fd, m->weights_size, false);
        if (!m->weights) return no_memory(failure, "the weights", m->weights_size);
    }
    return true;
}

static void load_module(const Order *order, int object_fd, int weights_fd, Answer *answer) {
    Loaded *m = &modules[order->id % MAX_MODULES];
    drop_module(m->id);
    void *object = segment_map(object_fd, order->load.object_size, false);
    if (!object) {
        no_memory(&answer->failure, "the object", order->load.object_size);
    } else {
        load_parts(m, &order->load, object, weights_fd, &answer->failure);
        segment_unmap(object, order->load.object_size);
    }
    m->id = order->id;
    if (answer->failure.failed) {
        drop_module(order->id);
        m->id = order->id;
        m->failure = answer->failure;
        return;
    }
    answer->arena = m->program.about.model.arena;
    answer->image = m->program.image.size;
}

/* ---- Running ---- */

/* One run, ready to be repeated. A single kernel is a call table of one, with its arguments in the
 * place of a model's inputs. */
typedef struct {
    Loaded *module;
    mlc_run run;
    Instruments instruments;
    Stop stop;
    mlc_call single;
    mlc_operand operands[MAX_ARGS];
    int64_t scalars[MAX_SCALARS];
    mlc_extents extents;
    const Kernel *kernel; /* NULL: the whole model */
    void *args[MAX_ARGS];
    const TensorType *types[MAX_ARGS];
    Failure *failure;
} Job;

static bool count_is(const char *what, uint32_t want, uint32_t given, Failure *failure) {
    if (want == given) return true;
    return fail(failure, REFUSED, "%s takes %u arguments, given %u", what, want, given);
}

static bool prepare_model(Job *job, const RunOrder *order) {
    const Model *model = &job->module->program.about.model;
    Failure *failure = job->failure;
    if (!model->present)
        return fail(failure, REFUSED, "the module holds no model; try: name one of its kernels");
    uint32_t inputs = model->input_count;
    if (!count_is("the model", inputs + model->output_count, order->arg_count, failure) ||
        !params_accept(model->inputs, inputs, NULL, NULL, 0, job->types, "the model", failure) ||
        !params_accept(model->outputs, model->output_count, NULL, NULL, 0, job->types + inputs,
                       "the model", failure))
        return false;
    program_table(&job->module->program, &job->run);
    if (order->until < model->call_count) job->run.call_count = order->until;
    job->run.first_call = order->from < job->run.call_count ? order->from : job->run.call_count;
    if (order->stops && order->stop_call >= model->call_count)
        return fail(failure, REFUSED, "the model has no call %u to stop after: it has %u",
                    order->stop_call, model->call_count);
    job->stop = (Stop){.call = order->stop_call, .turn = order->stop_turn};
    job->instruments.stop = order->stops ? &job->stop : NULL;
    job->run.inputs = job->args;
    job->run.outputs = job->args + inputs;
    if (model->arena > 0) {
        Mapped *arena = order->arena ? tensor_at(order->arena, failure) : NULL;
        if (!arena || arena->size < model->arena)
            return fail(failure, REFUSED, "the model has no arena; was its tensor freed?");
        job->run.arena = arena->data;
    }
    return true;
}

static bool prepare_kernel(Job *job, const RunOrder *order) {
    char what[MAX_NAME + 16];
    const Kernel *k = job->kernel;
    Failure *failure = job->failure;
    snprintf(what, sizeof what, "kernel '%s'", k->name);
    if (!count_is(what, k->param_count, order->arg_count, failure) ||
        !params_accept(k->params, k->param_count, k->scalars, job->scalars, k->scalar_count,
                       job->types, what, failure))
        return false;
    int32_t scalar = k->tasks.scalar;
    uint64_t tasks = scalar < 0 ? k->tasks.extent : (uint64_t)job->scalars[scalar];
    if (tasks > INT32_MAX) return fail(failure, REFUSED, "%s: more than 2^31 tasks", what);
    for (uint32_t i = 0; i < k->param_count; i++)
        job->operands[i] = (mlc_operand){.space = MLC_INPUT, .index = i};
    const Program *program = &job->module->program;
    job->extents = (mlc_extents){.tasks = -1, .values = job->scalars};
    job->single = (mlc_call){.kernel = program->entries[k - program->about.kernels],
                             .operands = job->operands,
                             .operand_count = k->param_count,
                             .tasks = (int32_t)tasks,
                             .extents = &job->extents};
    job->run.calls = &job->single;
    job->run.call_count = 1;
    job->run.inputs = job->args;
    return true;
}

static bool prepare(Job *job, const Order *order) {
    const RunOrder *run = &order->run;
    Loaded *m = &modules[order->id % MAX_MODULES];
    if (m->id != order->id) return fail(job->failure, REFUSED, "module %u is not here", order->id);
    if (m->failure.failed) {
        *job->failure = m->failure;
        return false;
    }
    if (!open_given(run, job->failure)) return false;
    for (uint32_t i = 0; i < run->arg_count; i++) {
        Mapped *tensor = tensor_at(run->args[i], job->failure);
        if (!tensor) return false;
        job->args[i] = tensor->data;
        job->types[i] = &tensor->type;
    }
    if (!program_reserve(&m->program, run->threads, job->failure) ||
        !pool_prepare(run->threads, run->cores, job->failure))
        return false;
    job->module = m;
    job->run.weights = m->weights;
    job->run.workspace = m->program.workspace;
    job->instruments = (Instruments){.progress = &shared->call,
                                     .mark = run->mark,
                                     .threads = run->threads,
                                     .workspace_stride = m->program.workspace_stride};
    job->run.invoke = instruments_invoke;
    job->run.context = &job->instruments;
    if (run->whole_model) return prepare_model(job, run);
    job->kernel = module_kernel(&m->program.about, run->kernel, job->failure);
    return job->kernel && prepare_kernel(job, run);
}

static bool run_once(void *context) {
    Job *job = context;
    uint32_t failed = 0;
    instruments_begin(&job->instruments);
    int32_t status = mlc_execute(&job->run, &failed);
    return status == MLC_OK || job->stop.reached ||
           program_bad_status(&job->module->program, job->kernel, status, failed, job->failure);
}

/* Offsets of the operands of the call that the run stopped after, each in its own memory. */
static uint32_t find_places(const Job *job, uint64_t places[MLC_MAX_OPERANDS]) {
    const mlc_call *call = &job->run.calls[job->stop.call];
    for (uint32_t i = 0; i < call->operand_count; i++) {
        const mlc_operand *operand = &call->operands[i];
        const void *base = operand->space == MLC_ARENA     ? job->run.arena
                           : operand->space == MLC_WEIGHTS ? job->run.weights
                           : operand->space == MLC_INPUT   ? job->run.inputs[operand->index]
                                                           : job->run.outputs[operand->index];
        places[i] = (uint64_t)((const char *)job->stop.data[i] - (const char *)base);
    }
    return call->operand_count;
}

static bool run_and_report(Job *job, const RunOrder *order, Writer *w) {
    const Program *program = &job->module->program;
    uint64_t *nanoseconds = program->nanoseconds, *turns = program->turns;
    uint64_t places[MLC_MAX_OPERANDS];
    uint32_t first = job->run.first_call;
    RunReply reply = {.calls = job->run.call_count - first};
    static Spans spans; /* too large for the stack */
    if (!order->quiet && !order->total) {
        memset(nanoseconds, 0, (size_t)((char *)program->calls - (char *)nanoseconds)); /* both */
        job->instruments.nanoseconds = nanoseconds;
        job->instruments.turns = turns;
        reply.nanoseconds = nanoseconds + first;
        reply.turns = job->run.procedures ? turns + first : NULL;
    }
    if (order->spans) reply.spans = job->instruments.spans = &spans;
    shared->phase = RUNNING;
    uint64_t whole = order->total ? mlc_nanoseconds() : 0;
    if (!run_once(job)) return false;
    if (order->total && !order->quiet) {
        whole = mlc_nanoseconds() - whole;
        reply.calls = 1;
        reply.nanoseconds = &whole;
    }
    if (job->stop.reached) {
        reply.place_count = find_places(job, places);
        reply.places = places;
    }
    reply_run(w, &reply);
    return true;
}

static bool time_and_report(Job *job, const RunOrder *order, Writer *w) {
    uint64_t *nanoseconds = job->module->program.nanoseconds;
    uint32_t first = job->run.first_call;
    uint32_t layers = order->layers ? job->run.call_count - first : 0;
    Timed timed = {run_once, job, nanoseconds + first, layers};
    if (layers > 0) job->instruments.nanoseconds = nanoseconds;
    shared->phase = TIMING;
    static Samples samples; /* too large for the stack */
    if (!time_evaluate(&order->timer, &timed, &samples, job->failure)) return false;
    reply_samples(w, &samples, layers);
    return true;
}

static void run(const Order *order, Answer *answer) {
    Job job = {.failure = &answer->failure};
    uint8_t *reply = shared->replies[order->run.turn % 2];
    Writer w = writer_to(reply, MAX_REPLY);
    shared->call = 0;
    if (!prepare(&job, order)) return;
    bool ok = order->run.timed ? time_and_report(&job, &order->run, &w)
                               : run_and_report(&job, &order->run, &w);
    if (ok && w.full) fail(&answer->failure, REFUSED, "the answer is too long for one message");
    answer->reply = (size_t)(w.at - reply);
}

/* ---- The process ---- */

/* A message to the worker. A client that goes step by step sends its next order soon, and falling
 * asleep and waking up would take longer than many a step: the worker looks out for it first. */
static ssize_t await_message(int socket, struct msghdr *message) {
    enum { LOOK_OUT_NANOSECONDS = 400000 }; /* a token of scripts/bench/decoders.py */
    uint64_t begin = mlc_nanoseconds();
    ssize_t got;
    do got = recvmsg(socket, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EAGAIN && mlc_nanoseconds() - begin < LOOK_OUT_NANOSECONDS);
    return got < 0 && errno == EAGAIN ? recvmsg(socket, message, MSG_CMSG_CLOEXEC) : got;
}

/* One order with its descriptors (-1: none); false when the supervisor has gone. */
static bool receive(int socket, Order *order, int fds[2]) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = order, .iov_len = sizeof *order};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    fds[0] = fds[1] = -1;
    memset(order, 0, sizeof *order);
    if (await_message(socket, &message) <= 0) return false;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
    return true;
}

static void carry_out(const Order *order, const int fds[2], Answer *answer) {
    switch (order->kind) {
    case MAP_TENSOR:
        map_tensor(order, fds[0]);
        break;
    case DROP_TENSOR:
        drop_tensor(order->id);
        break;
    case LOAD_MODULE:
        shared->phase = LOADING;
        load_module(order, fds[0], fds[1], answer);
        break;
    case DROP_MODULE:
        drop_module(order->id);
        break;
    case RUN:
        run(order, answer);
        break;
    }
}

/* Where no filter forbids it, a kernel can make copies of its worker. They answer nothing, and
 * nobody waits for them. */
static pid_t alone(uint32_t box) {
    if (box & BOX_SYSCALLS) return 0; /* it cannot even ask who it is */
    signal(SIGCHLD, SIG_IGN);
    return getpid();
}

_Noreturn void worker_main(int socket, uint32_t held, Shared *memory) {
    static Order order;
    int fds[2];
    Answer answer = {.number = 0};
    shared = memory;
    answer.box = box_enter(socket, held, &shared->forbidden, &answer.failure);
    pid_t self = alone(answer.box);
    bool sent = send(BOX_SOCKET, &answer, sizeof answer, MSG_NOSIGNAL) >= 0;
    while (sent && receive(BOX_SOCKET, &order, fds)) {
        answer = (Answer){.number = order.number};
        carry_out(&order, fds, &answer);
        if (self != 0 && getpid() != self) _exit(0);
        shared->phase = IDLE;
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0) close(fds[i]); /* the mapping is enough */
        if (order.answer) sent = send(BOX_SOCKET, &answer, sizeof answer, MSG_NOSIGNAL) >= 0;
    }
    _exit(0);
}
