/* The supervisor's end of the worker: it starts one when there is work, gives it orders with what
 * they need, and says what became of them, also when the worker dies of one.
 *
 * A worker's death costs nothing but the worker: tensors and blobs are segments, and the next
 * worker is given modules and tensors again when an order needs them. */
#ifndef MLC_WORKER_LINK_H
#define MLC_WORKER_LINK_H

#include "blob.h"
#include "order.h"

/* A module as the supervisor remembers it. */
typedef struct {
    uint32_t id; /* 0: none here */
    Blob *object, *weights; /* weights may be NULL */
    uint32_t arena;         /* tensor, or 0 */
    bool in_worker;
} ModuleRecord;

extern ModuleRecord module_records[MAX_MODULES];

/* Before the others. */
void link_begin(void);

/* poll(), which the death of a worker ends too, by EINTR; link_ended is then true. */
struct pollfd;
int link_poll(struct pollfd *fds, unsigned count, int milliseconds);
bool link_ended(void);

bool link_busy(void); /* an order is being carried out */

uint32_t link_box(void); /* what the workers' box holds (box.h); 0 where none can be made */

/* Start an order. False after a failure to start a worker; otherwise link_collect has the answer
 * some time later. timeout_ms 0: wait for ever. */
bool link_load(ModuleRecord *module, Failure *failure);
bool link_run(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms, Failure *failure);

/* Starts a run after the one that is under way; the worker has its order by then. One at most.
 * While link_busy is true after the first one's answer, link_collect has its answer later. */
void link_follow(ModuleRecord *module, const RunOrder *run, uint32_t timeout_ms);

/* Has the worker forget a module, or lets go of freed tensors, as soon as it is idle. */
void link_drop_module(ModuleRecord *module);
void link_tidy(void);

int link_fd(void);             /* to poll for reading; -1: no worker */
int link_milliseconds(void);   /* until the deadline; -1: none */
void link_check_deadline(void); /* kills a worker that is past it */

/* To be called when link_fd is readable or link_ended is true. True when the order is done, or the worker died of it. */
bool link_collect(Answer *answer);
const uint8_t *link_reply(void); /* bytes of the last answer's reply */

void link_end(void); /* no worker is left */

#endif
