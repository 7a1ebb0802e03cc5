/* The worker: a child process that maps tensors, loads modules and runs their kernels. */
#ifndef MLC_WORKER_H
#define MLC_WORKER_H

#include "order.h"

extern bool worker_keeps_root; /* --as-root: kernels run as root where root started this */

/* Takes orders from `socket` until it closes. Never returns. */
_Noreturn void worker_main(int socket, Shared *shared);

#endif
