#define _GNU_SOURCE /* MAP_ANONYMOUS, ppoll */
#include "worker_link.h"

#include "box.h"
#include "budget.h"
#include "clock.h"
#include "program.h"
#include "worker.h"

#include <errno.h>
#include <poll.h>
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
    uint32_t order;      /* the number of that order */
    uint64_t deadline;   /* nanoseconds; 0: none */
    uint32_t timeout_ms; /* that led to it */
    bool late;           /* killed for it */
    uint32_t number;     /* of the last order */
    uint32_t box;        /* what held of the first one's box */
    bool boxed;          /* there was one */
    bool loading;        /* it is busy with loading a module, not with running one */
    bool again;          /* the order was given to an earlier worker, which died before it began */
    struct {             /* the run that follows */
        bool waits;
        ModuleRecord *module;
        RunOrder run;
        uint32_t order, timeout_ms;
    } next;
    uint32_t turn; /* of the last run */
    Shared *shared;
} worker;

static volatile sig_atomic_t child_ended; /* since it was last looked at */
static sigset_t while_waiting; /* blocked signals: SIGCHLD comes then, and at no other moment */
static uint8_t reply[MAX_REPLY]; /* of the last answer */

/* ---- Life and death ---- */

/* In the child: the stream, tensors and blobs of the supervisor are not the worker's. */
static void let_go_of_everything(void) {
    budget_let_go();
    for (unsigned i = 0; i < tensor_slots(); i++)
        if (tensor_slot(i)) tensor_remove(tensor_slot(i));
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blob_slot(i)) blob_free(blob_slot(i));
}

/* Waits until it is in the box: some milliseconds, which its first order would take longer. */
static bool await_first_word(Answer *first) {
    enum { PATIENCE_MS = 10000 };
    struct pollfd word = {.fd = worker.socket, .events = POLLIN};
    int ready;
    do ready = poll(&word, 1, PATIENCE_MS);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && recv(worker.socket, first, sizeof *first, 0) == (ssize_t)sizeof *first;
}

static bool start(Failure *failure) {
    static Answer first;
    uint32_t held;
    int socket;
    if (!worker.shared) {
        void *memory = mmap(NULL, sizeof *worker.shared, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return fail(failure, MEMORY, "no memory for a worker process");
        worker.shared = memory;
    }
    worker.shared->phase = IDLE;
    worker.shared->forbidden = 0;
    pid_t pid = box_fork(&socket, &held, failure);
    if (pid < 0) return false;
    if (pid == 0) {
        let_go_of_everything();
        worker_main(socket, held, worker.shared);
    }
    worker.pid = pid;
    worker.socket = socket;
    if (!await_first_word(&first)) {
        link_end();
        return fail(failure, CRASHED, "a worker process does not begin");
    }
    if (first.failure.failed) {
        link_end();
        *failure = first.failure;
        return false;
    }
    worker.box = first.box;
    worker.boxed = true;
    /* Where the box forbids no call, a kernel of the same user's is kept from this process' memory
     * by that it may not be looked into; neither may a client on this machine, who then copies. */
    if (!(worker.box & BOX_SYSCALLS)) prctl(PR_SET_DUMPABLE, 0);
    return true;
}

/* What it had mapped and loaded is gone with it. */
static void forget_worker(void) {
    close(worker.socket);
    worker.pid = 0;
    worker.busy = worker.late = worker.next.waits = false;
    for (unsigned i = 0; i < tensor_slots(); i++)
        if (tensor_slot(i)) tensor_slot(i)->in_worker = false;
    for (unsigned i = 0; i < MAX_MODULES; i++) module_records[i].in_worker = false;
    link_tidy();
}

void link_end(void) {
    if (worker.pid == 0) return;
    box_end(worker.pid);
    forget_worker();
}

static void note_end(int signal) {
    (void)signal;
    child_ended = true;
}

void link_begin(void) {
    struct sigaction action = {.sa_handler = note_end, .sa_flags = SA_NOCLDSTOP};
    sigset_t ending;
    box_adopt();
    sigemptyset(&ending);
    sigaddset(&ending, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ending, &while_waiting);
    sigdelset(&while_waiting, SIGCHLD);
    sigaction(SIGCHLD, &action, NULL);
}

int link_poll(struct pollfd *fds, unsigned count, int milliseconds) {
    struct timespec wait = {.tv_sec = milliseconds / 1000,
                            .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    return ppoll(fds, count, milliseconds < 0 ? NULL : &wait, &while_waiting);
}

bool link_ended(void) { return child_ended; }

/* ---- Orders ---- */

/* A worker that dies meanwhile is noticed when the answer is collected. */
static void send_order(Order *order, const int *fds, unsigned fd_count) {
    order->number = ++worker.number;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = order, .iov_len = sizeof *order};
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

static bool has_ended(void) {
    siginfo_t about = {0};
    return waitid(P_PID, (id_t)worker.pid, &about, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           about.si_pid == worker.pid;
}

static bool ready(Failure *failure) {
    /* Late: its answer came just before it was killed. */
    if (worker.pid != 0 && (worker.late || has_ended())) link_end();
    return worker.pid != 0 || start(failure);
}

uint32_t link_box(void) {
    Failure unknown = {0};
    if (!worker.boxed) ready(&unknown);
    return worker.box;
}

static void send_tensor(Tensor *tensor) {
    if (tensor->in_worker) return;
    Order order = {.kind = MAP_TENSOR, .id = tensor->id};
    order.tensor.type = tensor->type;
    order.tensor.size = tensor->segment.size;
    send_order(&order, &tensor->segment.fd, 1);
    tensor->in_worker = true;
}

static void drop_tensor(Tensor *tensor) {
    Order order = {.kind = DROP_TENSOR, .id = tensor->id};
    if (worker.pid != 0 && tensor->in_worker) send_order(&order, NULL, 0);
    tensor->in_worker = false;
}

static bool is_given(const Tensor *tensor, const RunOrder *run) {
    bool given = tensor->id == run->arena;
    for (uint32_t i = 0; !given && i < run->arg_count; i++) given = run->args[i] == tensor->id;
    return given;
}

/* What a kernel is not given it cannot reach. What its own module was given before stays mapped,
 * and closed, since streams of one module take turns: as much as leaves room in any address space. */
static void drop_others(const ModuleRecord *module, const RunOrder *run) {
    enum { MOST_KEPT = 64 << 20 }; /* bytes */
    size_t kept = 0;
    for (unsigned i = 0; i < tensor_slots(); i++) {
        Tensor *tensor = tensor_slot(i);
        if (!tensor || !tensor->in_worker || is_given(tensor, run)) continue;
        size_t size = tensor->segment.size;
        if (tensor->user != module->id || size > MOST_KEPT - kept)
            drop_tensor(tensor);
        else
            kept += size;
    }
}

static void give_tensor(const ModuleRecord *module, uint32_t id) {
    Tensor *tensor = tensor_find(id, NULL);
    if (!tensor) return;
    send_tensor(tensor);
    tensor->user = module->id;
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
    worker.order = worker.number;
    return true;
}

/* Gives the worker a run with what it needs. Returns the order's number. */
static uint32_t give_run(ModuleRecord *module, RunOrder *run) {
    run->turn = ++worker.turn;
    drop_others(module, run);
    send_module(module, false);
    if (run->arena) give_tensor(module, run->arena);
    for (uint32_t i = 0; i < run->arg_count; i++) give_tensor(module, run->args[i]);
    Order order = {.kind = RUN, .id = module->id, .answer = true};
    order.run = *run;
    send_order(&order, NULL, 0);
    return order.number;
}

bool link_run(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms, Failure *failure) {
    if (!ready(failure)) return false;
    begin(module, timeout_ms);
    worker.run = *run;
    worker.order = give_run(module, &worker.run);
    return true;
}

void link_follow(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms) {
    worker.next.waits = true;
    worker.next.module = module;
    worker.next.run = *run;
    worker.next.timeout_ms = timeout_ms;
    worker.next.order = give_run(module, &worker.next.run);
}

/* What follows is what the worker carries out now. */
static void go_on(void) {
    worker.next.waits = false;
    begin(worker.next.module, worker.next.timeout_ms);
    worker.run = worker.next.run;
    worker.order = worker.next.order;
}

void link_drop_module(ModuleRecord *module) {
    Order order = {.kind = DROP_MODULE, .id = module->id};
    if (worker.pid != 0 && module->in_worker) send_order(&order, NULL, 0);
    module->in_worker = false;
}

void link_tidy(void) {
    if (worker.busy) return;
    for (unsigned i = 0; i < tensor_slots(); i++) {
        Tensor *tensor = tensor_slot(i);
        if (!tensor || !tensor->freed) continue;
        drop_tensor(tensor);
        tensor_remove(tensor);
    }
}

/* ---- Answers ---- */

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
    if (place->call < about.model.call_count) *place = program_place(&about, place->call);
    module_free(&about);
}

static void tell_death(Failure *failure, Ending ending, int status) {
    Place place = {{0}, {0}, {0}, 0};
    char where[MAX_PLACE_TEXT];
    uint32_t phase = worker.shared->phase, forbidden = worker.shared->forbidden;
    if (phase == RUNNING || phase == TIMING) {
        find_place(&place);
        place_text(&place, worker.run.whole_model, where, sizeof where);
    } else {
        snprintf(where, sizeof where, phase == LOADING ? "loading the module" : "the worker");
    }
    if (worker.late)
        fail(failure, TIMEOUT,
             "%s was still running after %u ms; try: a larger timeout, if it is slow rather than "
             "stuck",
             where, worker.timeout_ms);
    else
        box_tell(failure, where, ending, status, forbidden, place.signal);
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
static bool give_again(bool follows) {
    Failure failure = {0};
    ModuleRecord *module = &module_records[worker.module % MAX_MODULES];
    RunOrder run = worker.run, next = worker.next.run;
    bool given = worker.loading ? link_load(module, &failure)
                                : link_run(module, &run, worker.timeout_ms, &failure);
    worker.again = true;
    if (given && follows) link_follow(worker.next.module, &next, worker.next.timeout_ms);
    return given;
}

/* A kernel can send whatever its worker can. What is not the answer to the last order ends it, and
 * so does its death, however many others hold its socket by then. */
bool link_collect(Answer *answer) {
    bool told = child_ended, asked = worker.busy;
    child_ended = false;
    if (worker.pid == 0) return false; /* another process' end */
    bool ended = told && has_ended();
    ssize_t got = recv(worker.socket, answer, sizeof *answer, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && !ended && (errno == EAGAIN || errno == EINTR)) return false;
    if (asked && got == (ssize_t)sizeof *answer && answer->number == worker.order &&
        answer->reply <= MAX_REPLY) {
        worker.busy = false;
        failure_mend(&answer->failure);
        /* The worker may go on to change it. */
        memcpy(reply, worker.shared->replies[worker.run.turn % 2], answer->reply);
        if (worker.next.waits) go_on();
        link_tidy();
        return true;
    }
    for (int wait = 0; got == 0 && !ended && wait < 500; wait++, ended = has_ended()) {
        struct timespec moment = {.tv_nsec = 1000000}; /* its socket closes before it has ended */
        nanosleep(&moment, NULL);
    }
    int status = box_end(worker.pid);
    bool begun = worker.shared->phase != IDLE || worker.late || worker.again;
    bool follows = worker.next.waits;
    worker.busy = false;
    *answer = (Answer){0};
    if (asked) tell_death(&answer->failure, got > 0 ? GARBLED : ended ? BY_ITSELF : SILENT, status);
    forget_worker();
    return asked && (begun || !give_again(follows));
}

const uint8_t *link_reply(void) { return reply; }
