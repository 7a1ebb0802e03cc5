/* The runtime on TCP: a port, greetings, and a process for each client that has the key. */
#ifndef MLC_LISTEN_H
#define MLC_LISTEN_H

#include "key.h"

/* Listens on "[ADDRESS:]PORT" (an IPv6 address in brackets; the loopback address where there is
 * none; port 0: any) until it is killed. Returns the process' exit status when it cannot, and in a
 * session's process when the session has ended. */
int listen_on(const char *where, uint8_t key[KEY_BYTES]);

#endif
