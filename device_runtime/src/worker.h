/* The worker: a child process that maps tensors, loads modules and runs their kernels. */
#ifndef MLC_WORKER_H
#define MLC_WORKER_H

#include "order.h"

/* In the child of box_fork: takes orders from `socket`, in the box, until it closes. */
_Noreturn void worker_main(int socket, uint32_t held, Shared *shared);

#endif
