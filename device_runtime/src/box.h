/* The box: the process that runs kernels has given up everything but its memory and one socket. What
 * a kernel does wrong, or on purpose, then costs that process and reaches nothing else. */
#ifndef MLC_BOX_H
#define MLC_BOX_H

#include "failure.h"

#include <stdint.h>
#include <sys/types.h>

/* What a board's system can hold; old ones and emulators cannot do all of it. */
enum {
    BOX_SYSCALLS = 1,   /* a list of system calls that compute; any other one ends the process */
    BOX_FILES = 2,      /* Landlock: no path can be opened, made, changed or run */
    BOX_TCP = 4,        /* Landlock: no port can be bound or connected to */
    BOX_SIGNALS = 8,    /* Landlock: none can be sent to a process outside */
    BOX_PROCESSES = 16, /* a pid namespace: others cannot be named, and what it makes dies with it */
    BOX_USER = 32,      /* nobody, or no user of the system: not the one who started the runtime */
    BOX_MEMORY = 64,    /* sealed: weights are not written to by anyone, tensors keep their size */
    BOX_PARTS = 7
};

extern const char *const box_names[BOX_PARTS]; /* of those bits, as mlc_rpc/wire.py has them */
extern bool box_keeps_root; /* --as-root: kernels run as root where root started this */

/* fork(), into a pid namespace where that is allowed. Each side has its end of a pair of sockets
 * that keep packets apart; the child has `held`, which box_enter takes. Returns what fork does. */
pid_t box_fork(int *socket, uint32_t *held, Failure *failure);

/* In the child, which has one thread: opens what it needs from now on, and gives up the rest. The
 * socket becomes descriptor BOX_SOCKET. A system call that is not allowed leaves its number + 1 in
 * *forbidden, and ends the process. Returns what holds. */
enum { BOX_SOCKET = 3 };
uint32_t box_enter(int socket, uint32_t held, volatile uint32_t *forbidden, Failure *failure);

/* Before the first box_fork: processes that lose their parent in the box become this one's. */
void box_adopt(void);

/* Waits for the end of the process, ends all that descend from it, and returns its wait status. */
int box_await(pid_t pid);
int box_end(pid_t pid); /* the same, and ends it where it has not ended already */

/* SILENT: it closed its socket and lived on; GARBLED: what came does not answer what was asked. */
typedef enum { BY_ITSELF, SILENT, GARBLED } Ending;

/* Says what it died of, `where` being what was at work. signal: the name of the signal, or "exit". */
void box_tell(Failure *failure, const char *where, Ending ending, int status, uint32_t forbidden,
              char signal[16]);

/* ---- Between box.c and box_filter.c ---- */

/* Where the system takes a list of allowed calls, from now on only those. */
bool filter_begin(volatile uint32_t *forbidden);

/* The name of a system call, or NULL for one that no probe of ours has met. */
const char *filter_name(uint32_t number);

#endif
