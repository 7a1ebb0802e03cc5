/* The worker: a child process that maps tensors, loads modules and runs their kernels. */
#ifndef MLC_WORKER_H
#define MLC_WORKER_H

#include "order.h"

/* Takes orders from `socket` until it closes. Never returns. */
_Noreturn void worker_main(int socket, Shared *shared);

#endif
