#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "worker_link.h"

#include "instruments.h"
#include "module.h"
#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

ModuleRecord module_records[MAX_MODULES];

static struct {
    pid_t pid; /* 0: no worker */
    int socket;
    bool busy;
    uint32_t module;     /* what it is busy with */
    RunOrder run;        /* what it runs, when that is what it does */
    uint64_t deadline;   /* nanoseconds; 0: none */
    uint32_t timeout_ms; /* that led to it */
    bool late;           /* killed for it */
    bool loading;        /* it is busy with loading a module, not with running one */
    bool again;          /* the order was given to an earlier worker, which died before it began */
    Shared *shared;
} worker;

/* ---- Life and death ---- */

/* In the child: the stream, tensors and blobs of the supervisor are not the worker's. */
static void let_go_of_everything(void) {
    for (unsigned i = 0; i < MAX_TENSORS; i++)
        if (tensor_slot(i)) tensor_remove(tensor_slot(i));
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blob_slot(i)) blob_free(blob_slot(i));
}

static bool start(Failure *failure) {
    int ends[2];
    if (!worker.shared) {
        void *memory = mmap(NULL, sizeof *worker.shared, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return fail(failure, MEMORY, "no memory for a worker process");
        worker.shared = memory;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return fail(failure, MEMORY, "no socket for a worker process: %s", strerror(errno));
    pid_t supervisor = getpid();
    worker.shared->phase = IDLE;
    pid_t pid = fork();
    if (pid < 0) {
        close(ends[0]);
        close(ends[1]);
        return fail(failure, MEMORY, "no worker process: %s", strerror(errno));
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != supervisor) _exit(1); /* it died before the line above */
        close(ends[0]);
        let_go_of_everything();
        worker_main(ends[1], worker.shared);
    }
    close(ends[1]);
    worker.pid = pid;
    worker.socket = ends[0];
    return true;
}

static int reap(void) {
    int status = 0;
    /* It closed its socket, so it is ending, unless something in it is astray. */
    for (int wait = 0; wait < 1000; wait++) {
        struct timespec moment = {.tv_nsec = 1000000};
        pid_t ended = waitpid(worker.pid, &status, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR)) return status;
        nanosleep(&moment, NULL);
    }
    kill(worker.pid, SIGKILL);
    while (waitpid(worker.pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

/* What it had mapped and loaded is gone with it. */
static void forget_worker(void) {
    close(worker.socket);
    worker.pid = 0;
    worker.busy = worker.late = false;
    for (unsigned i = 0; i < MAX_TENSORS; i++)
        if (tensor_slot(i)) tensor_slot(i)->in_worker = false;
    for (unsigned i = 0; i < MAX_MODULES; i++) module_records[i].in_worker = false;
    link_tidy();
}

void link_end(void) {
    if (worker.pid == 0) return;
    kill(worker.pid, SIGKILL);
    while (waitpid(worker.pid, NULL, 0) < 0 && errno == EINTR) continue;
    forget_worker();
}

/* ---- Orders ---- */

/* A worker that dies meanwhile is noticed when the answer is collected. */
static void send_order(const Order *order, const int *fds, unsigned fd_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)order, .iov_len = sizeof *order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        size_t bytes = fd_count * sizeof(int);
        message.msg_control = &control;
        message.msg_controllen = (socklen_t)CMSG_SPACE(bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = (socklen_t)CMSG_LEN(bytes);
        memcpy(CMSG_DATA(head), fds, bytes);
    }
    while (sendmsg(worker.socket, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
}

static bool ready(Failure *failure) {
    if (worker.late) link_end(); /* its answer came just before it was killed */
    if (worker.pid != 0 && waitpid(worker.pid, NULL, WNOHANG) != 0) forget_worker();
    return worker.pid != 0 || start(failure);
}

static void send_tensor(Tensor *tensor) {
    if (!tensor || tensor->in_worker) return;
    Order order = {.kind = MAP_TENSOR, .id = tensor->id};
    order.tensor.type = tensor->type;
    order.tensor.size = tensor->segment.size;
    send_order(&order, &tensor->segment.fd, 1);
    tensor->in_worker = true;
}

static void send_module(ModuleRecord *module, bool answer) {
    if (module->in_worker) return;
    int fds[2] = {module->object->segment.fd, -1};
    Order order = {.kind = LOAD_MODULE, .id = module->id, .answer = answer};
    order.load.object_size = module->object->segment.size;
    order.load.has_weights = module->weights != NULL;
    if (module->weights) {
        fds[1] = module->weights->segment.fd;
        order.load.weights_size = module->weights->segment.size;
        memcpy(order.load.weights_hash, module->weights->hash, HASH_BYTES);
    }
    send_order(&order, fds, module->weights ? 2 : 1);
    module->in_worker = true;
}

static void begin(const ModuleRecord *module, uint32_t timeout_ms) {
    worker.busy = true;
    worker.late = worker.again = worker.loading = false;
    worker.module = module->id;
    worker.timeout_ms = timeout_ms;
    worker.deadline = timeout_ms ? mlc_nanoseconds() + (uint64_t)timeout_ms * 1000000 : 0;
}

bool link_busy(void) { return worker.busy; }

bool link_load(ModuleRecord *module, Failure *failure) {
    if (!ready(failure)) return false;
    begin(module, 0);
    worker.loading = true;
    send_module(module, true);
    return true;
}

bool link_run(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms, Failure *failure) {
    if (!ready(failure)) return false;
    begin(module, timeout_ms);
    worker.run = *run;
    send_module(module, false);
    if (run->arena) send_tensor(tensor_find(run->arena, NULL));
    for (uint32_t i = 0; i < run->arg_count; i++) send_tensor(tensor_find(run->args[i], NULL));
    Order order = {.kind = RUN, .id = module->id, .answer = true};
    order.run = *run;
    send_order(&order, NULL, 0);
    return true;
}

void link_drop_module(ModuleRecord *module) {
    Order order = {.kind = DROP_MODULE, .id = module->id};
    if (worker.pid != 0 && module->in_worker) send_order(&order, NULL, 0);
    module->in_worker = false;
}

void link_tidy(void) {
    if (worker.busy) return;
    for (unsigned i = 0; i < MAX_TENSORS; i++) {
        Tensor *tensor = tensor_slot(i);
        if (!tensor || !tensor->freed) continue;
        Order order = {.kind = DROP_TENSOR, .id = tensor->id};
        if (worker.pid != 0 && tensor->in_worker) send_order(&order, NULL, 0);
        tensor_remove(tensor);
    }
}

/* ---- Answers ---- */

static void signal_text(int number, char *text, size_t size) {
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGSEGV, "SIGSEGV"}, {SIGILL, "SIGILL"},   {SIGBUS, "SIGBUS"},
                 {SIGFPE, "SIGFPE"},   {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},
                 {SIGKILL, "SIGKILL"}, {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number) {
            snprintf(text, size, "%s", names[i].name);
            return;
        }
    snprintf(text, size, "signal %d", number);
}

static const char *signal_means(int number) {
    switch (number) {
    case SIGSEGV:
    case SIGBUS:
        return "it reached outside its buffers or overflowed its stack";
    case SIGILL:
        return "it met an instruction that this CPU does not have, or a trap; try: a target for "
               "this board";
    case SIGTRAP:
    case SIGABRT:
        return "it met a trap";
    case SIGFPE:
        return "it divided an integer by zero or overflowed a division";
    case SIGKILL:
        return "something else ended it, as the system does when memory runs out; try: free "
               "tensors, or a smaller model";
    default:
        return "something else ended it";
    }
}

/* The names of what was at work. The metadata has passed the worker's checks, or none was run. */
static void find_place(Place *place) {
    Module about;
    Failure unread = {0};
    const ModuleRecord *record = &module_records[worker.module % MAX_MODULES];
    place->call = worker.run.whole_model ? worker.shared->call : 0;
    snprintf(place->kernel, sizeof place->kernel, "%s", worker.run.kernel);
    if (!worker.run.whole_model || record->id != worker.module) return;
    const Segment *object = &record->object->segment;
    if (!module_parse(&about, object->data, object->size, &unread)) return;
    if (place->call < about.model.call_count) {
        const Call *call = &about.model.calls[place->call];
        snprintf(place->layer, sizeof place->layer, "%s", call->layer);
        snprintf(place->kernel, sizeof place->kernel, "%s", about.kernels[call->kernel].name);
    }
    module_free(&about);
}

static void tell_death(Failure *failure, int status) {
    Place place = {{0}, {0}, {0}, 0};
    char where[MAX_PLACE_TEXT];
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    uint32_t phase = worker.shared->phase;
    if (phase == RUNNING || phase == TIMING) {
        find_place(&place);
        place_text(&place, worker.run.whole_model, where, sizeof where);
    } else {
        snprintf(where, sizeof where, phase == LOADING ? "loading the module" : "the worker");
    }
    if (worker.late) {
        fail(failure, TIMEOUT,
             "%s was still at work after %u ms; try: a larger timeout, if it is slow rather than "
             "stuck",
             where, worker.timeout_ms);
    } else if (number == 0) {
        snprintf(place.signal, sizeof place.signal, "exit");
        fail(failure, CRASHED, "the worker ended by itself in %s", where);
    } else {
        signal_text(number, place.signal, sizeof place.signal);
        fail(failure, CRASHED, "%s in %s: %s", place.signal, where, signal_means(number));
    }
    failure->placed = true;
    failure->place = place;
}

int link_fd(void) { return worker.pid != 0 ? worker.socket : -1; }

int link_milliseconds(void) {
    if (!worker.busy || worker.deadline == 0 || worker.late) return -1;
    uint64_t now = mlc_nanoseconds();
    if (now >= worker.deadline) return 0;
    uint64_t left = (worker.deadline - now) / 1000000 + 1;
    return left < 1000000 ? (int)left : 1000000;
}

void link_check_deadline(void) {
    if (link_milliseconds() != 0) return;
    worker.late = true; /* its death is then collected like any other */
    kill(worker.pid, SIGKILL);
}

/* A worker that something else ended just before it was given an order did not die of the order. */
static bool give_again(void) {
    Failure failure = {0};
    ModuleRecord *module = &module_records[worker.module % MAX_MODULES];
    RunOrder run = worker.run;
    bool given = worker.loading ? link_load(module, &failure)
                                : link_run(module, &run, worker.timeout_ms, &failure);
    worker.again = true;
    return given;
}

/* A kernel that went astray may have written anywhere in its process: strings must end. */
static void make_safe(Failure *failure) {
    failure->text[sizeof failure->text - 1] = 0;
    failure->place.signal[sizeof failure->place.signal - 1] = 0;
    failure->place.kernel[sizeof failure->place.kernel - 1] = 0;
    failure->place.layer[sizeof failure->place.layer - 1] = 0;
    if ((unsigned)failure->kind > MEMORY) failure->kind = CRASHED;
}

bool link_collect(Answer *answer) {
    ssize_t got = recv(worker.socket, answer, sizeof *answer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    bool asked = worker.busy;
    bool whole = got == (ssize_t)sizeof *answer && answer->reply <= MAX_REPLY;
    worker.busy = false;
    if (whole) {
        make_safe(&answer->failure);
        link_tidy();
        return asked;
    }
    *answer = (Answer){0};
    if (got > 0) kill(worker.pid, SIGKILL);
    int status = reap();
    bool begun = worker.shared->phase != IDLE || worker.late || worker.again;
    if (asked) tell_death(&answer->failure, status);
    forget_worker();
    return asked && (begun || !give_again());
}

const uint8_t *link_reply(void) { return worker.shared->reply; }
