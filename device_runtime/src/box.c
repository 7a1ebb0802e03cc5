#define _GNU_SOURCE /* CLONE_NEWPID, prctl, syscall() */
#include "box.h"

#include "budget.h"
#include "conditions.h"
#include "kernel_text.h"
#include "pool.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

/* A build for tests, whose report of a mistake must come out: it keeps its standard error, and is
 * not kept from the address space and the calls that it takes. */
#if defined(MLC_SANITIZED) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

const char *const box_names[BOX_PARTS] = {"syscalls", "files",     "tcp",
                                          "signals",  "processes", "user", "memory"};

bool box_keeps_root;
static bool adopts; /* all children of this process come from boxes */
static bool apart;  /* the last one's have a pid namespace, which ends as a whole */

/* ---- The process ---- */

/* The C library's fork takes no flags. What it does besides is for programs with threads. */
static pid_t fork_apart(unsigned long flags) {
    return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

/* A user who is not root may make a pid namespace only in a user namespace of his own, in which no
 * user of the system has a name. There the child has every right, and gives all of them up. */
pid_t box_fork(int *socket, uint32_t *held, Failure *failure) {
    int ends[2];
    bool root = geteuid() == 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fail(failure, MEMORY, "no socket for a worker process: %s", strerror(errno));
        return -1;
    }
    *held = root ? BOX_PROCESSES : BOX_PROCESSES | BOX_USER;
    pid_t pid = fork_apart(root ? CLONE_NEWPID : CLONE_NEWPID | CLONE_NEWUSER);
    if (pid < 0) {
        *held = 0;
        pid = fork();
    }
    if (pid < 0) fail(failure, MEMORY, "no worker process: %s", strerror(errno));
    apart = *held != 0;
    if (pid != 0) close(ends[1]);
    if (pid <= 0) close(ends[0]);
    *socket = ends[pid == 0];
    return pid;
}

/* ---- Giving up ---- */

#ifdef __GLIBC__
typedef __rlimit_resource_t Resource;
#else
typedef int Resource;
#endif

static void cap(Resource resource, uint64_t most) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0) return;
    if (limit.rlim_cur > most) limit.rlim_cur = most;
    if (limit.rlim_max > most) limit.rlim_max = most;
    setrlimit(resource, &limit);
}

static void cap_all(void) {
    enum { FILES = 512, TASKS = 1024 };
    struct sysinfo now = {0};
    sysinfo(&now);
    cap(RLIMIT_CORE, 0);
    cap(RLIMIT_STACK, 8 << 20); /* an endless recursion ends soon, even where none is set */
    cap(RLIMIT_NOFILE, FILES);
    cap(RLIMIT_MSGQUEUE, 0);
    /* The limit counts all that its user runs, threads too: more than so many are not its own. */
    cap(RLIMIT_NPROC, now.procs + (uint64_t)TASKS);
    if (SANITIZED) return;
    cap(RLIMIT_AS, memory_size() + ((uint64_t)256 << 20));
    if (!box_keeps_root) cap(RLIMIT_FSIZE, 0); /* an emulator writes its counts in this process */
}

static void close_from(unsigned first) {
    enum { OWN = 4096 }; /* more than this program opens */
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, UINT32_MAX, 0) == 0) return;
#endif
    for (unsigned fd = first; fd < OWN; fd++) close((int)fd); /* Linux before 5.9 */
}

/* The stream, tensors, blobs and the board's port are the supervisor's. */
static void keep_only(int socket) {
    if (socket != BOX_SOCKET) dup2(socket, BOX_SOCKET);
    close_from(BOX_SOCKET + 1);
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int standard = 0; standard <= (SANITIZED ? 1 : 2); standard++) {
        if (nowhere < 0) close(standard);
        if (nowhere >= 0 && nowhere != standard) dup2(nowhere, standard);
    }
    if (nowhere > BOX_SOCKET) close(nowhere);
}

static void die_first(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return; /* when memory runs out, the system is to pick this, not the supervisor */
    ssize_t written = write(fd, "1000", 4);
    (void)written;
    close(fd);
}

/* Ends with its supervisor; at once where that has gone already. */
static void die_with_parent(void) {
    struct pollfd parent = {.fd = BOX_SOCKET};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (poll(&parent, 1, 0) > 0 && parent.revents & (POLLHUP | POLLERR)) _exit(1);
}

#ifdef SYS_setresuid32 /* on 32-bit ARM the calls without it know only 16-bit ids */
enum { SET_GROUPS = SYS_setgroups32, SET_GROUP = SYS_setresgid32, SET_USER = SYS_setresuid32 };
#else
enum { SET_GROUPS = SYS_setgroups, SET_GROUP = SYS_setresgid, SET_USER = SYS_setresuid };
#endif

/* Where root runs the program, kernels run as nobody: all they need comes as descriptors. The
 * system's calls suffice, since this process still has one thread; the C library's are for more. */
static uint32_t give_up_user(uint32_t held, Failure *failure) {
    enum { NOBODY = 65534 };
    struct {
        uint32_t version;
        int pid;
    } head = {.version = 0x20080522}; /* _LINUX_CAPABILITY_VERSION_3 */
    static const uint32_t none[6];
    if (held & BOX_USER) syscall(SYS_capset, &head, none);
    if (held & BOX_USER || geteuid() != 0 || box_keeps_root) return held;
    bool nobody = syscall(SET_GROUPS, 0, NULL) == 0 &&
                  syscall(SET_GROUP, NOBODY, NOBODY, NOBODY) == 0 &&
                  syscall(SET_USER, NOBODY, NOBODY, NOBODY) == 0;
    if (nobody) return held | BOX_USER;
    /* A container may keep root from that, and has no other user at times: a user namespace of one
     * id. Its worker stays root, without any right of root, behind the other parts of the box. */
    if (geteuid() == 0 && (errno == EPERM || errno == EINVAL)) {
        syscall(SYS_capset, &head, none);
        return held;
    }
    fail(failure, REFUSED, "root's worker cannot become nobody: %s; try: start the runtime as "
         "another user",
         strerror(errno));
    return held;
}

/* As far as this system's version of Landlock goes. Numbers and layout are the kernel's; a field
 * that an older one does not know is 0. */
static uint32_t give_up_paths(void) {
    enum { CREATE = 444, RESTRICT = 446, GET_VERSION = 1 };
    struct {
        uint64_t files, tcp, scopes;
    } handled = {0, 0, 0};
    long version = syscall(CREATE, NULL, 0, GET_VERSION);
    if (version < 1) return 0;
    handled.files = (1U << 13) - 1;                  /* all of the first version */
    if (version >= 2) handled.files |= 1U << 13;     /* links to another folder */
    if (version >= 3) handled.files |= 1U << 14;     /* truncation */
    if (version >= 5) handled.files |= 1U << 15;     /* control of devices */
    if (version >= 4) handled.tcp = 1 | 2;           /* bind, connect */
    if (version >= 6) handled.scopes = 1 | 2;        /* abstract sockets, signals */
    int rules = (int)syscall(CREATE, &handled, sizeof handled, 0);
    if (rules < 0) return 0;
    bool held = syscall(RESTRICT, rules, 0) == 0;
    close(rules);
    return !held ? 0 : BOX_FILES | (handled.tcp ? BOX_TCP : 0) | (handled.scopes ? BOX_SIGNALS : 0);
}

uint32_t box_enter(int socket, uint32_t held, volatile uint32_t *forbidden, Failure *failure) {
    keep_only(socket);
    setsid(); /* what it makes can be named by its group, and no terminal is its own */
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    die_first();
    conditions_open();
    pool_look();
    budget_bytes(); /* asks the system once */
    cap_all();
    held = give_up_user(held, failure);
    prctl(PR_SET_DUMPABLE, SANITIZED, 0, 0, 0);
    die_with_parent(); /* a change of user resets it */
    if (SANITIZED) return held;
    held |= give_up_paths();
    return filter_begin(forbidden) ? held | BOX_SYSCALLS : held;
}

/* ---- Its end ---- */

static int wait_status(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

/* A child of this process; 0: there is none, or the system does not tell. */
static pid_t any_child(void) {
    char path[64], text[16];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    kernel_text(path, text, sizeof text);
    pid_t pid = 0;
    for (const char *at = text; *at >= '0' && *at <= '9'; at++) pid = 10 * pid + (*at - '0');
    return pid;
}

/* A shell that became this program may have left it children of its own. */
void box_adopt(void) {
    adopts = any_child() == 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0; /* from Linux 3.4 on */
}

/* What a kernel made, where nothing kept it from that, is in its group or this process' child. */
int box_await(pid_t pid) {
    int status = wait_status(pid);
    if (apart) return status;
    kill(-pid, SIGKILL);
    for (pid_t child; adopts && (child = any_child()) > 0; wait_status(child)) kill(child, SIGKILL);
    return status;
}

int box_end(pid_t pid) {
    kill(pid, SIGKILL); /* without effect on the status where it is ending already */
    return box_await(pid);
}

static void signal_text(int number, char text[16]) {
    static const struct {
        int number;
        char name[8];
    } names[] = {{SIGSEGV, "SIGSEGV"}, {SIGILL, "SIGILL"},   {SIGBUS, "SIGBUS"},
                 {SIGFPE, "SIGFPE"},   {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},
                 {SIGKILL, "SIGKILL"}, {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"}};
    snprintf(text, 16, "signal %d", number);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number) snprintf(text, 16, "%s", names[i].name);
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
    case SIGSYS:
        return "it made a system call, which the sandbox forbids";
    case SIGKILL:
        return "something else ended it, as the system does when memory runs out; try: free "
               "tensors, or a smaller model";
    default:
        return "something else ended it";
    }
}

void box_tell(Failure *failure, const char *where, Ending ending, int status, uint32_t forbidden,
              char signal[16]) {
    char call[32];
    const char *name = forbidden ? filter_name(forbidden - 1) : NULL;
    snprintf(signal, 16, "exit");
    if (forbidden) {
        snprintf(signal, 16, "SIGSYS");
        if (name)
            snprintf(call, sizeof call, "%s", name);
        else
            snprintf(call, sizeof call, "system call %u", forbidden - 1);
        if (forbidden == UINT32_MAX) snprintf(call, sizeof call, "a call of another machine");
        fail(failure, CRASHED, "SIGSYS in %s: it called %s, which the sandbox forbids", where, call);
    } else if (ending == SILENT) {
        fail(failure, CRASHED, "%s closed the socket of its worker", where);
    } else if (ending == GARBLED) {
        fail(failure, CRASHED, "%s sent an answer that is not its worker's", where);
    } else if (WIFSIGNALED(status)) {
        signal_text(WTERMSIG(status), signal);
        fail(failure, CRASHED, "%s in %s: %s", signal, where, signal_means(WTERMSIG(status)));
    } else {
        fail(failure, CRASHED, "the worker ended by itself in %s, with status %d", where,
             WEXITSTATUS(status));
    }
}
