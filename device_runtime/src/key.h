/* The key that client and board share: 32 random bytes, which come from a file or from standard
 * input, never from the command line, where every user of the board could read them. */
#ifndef MLC_KEY_H
#define MLC_KEY_H

#include "failure.h"

enum { KEY_BYTES = 32 };

/* From a regular file of this user's that nobody else may read. */
bool key_from_file(const char *path, uint8_t key[KEY_BYTES], Failure *failure);
bool key_from_stdin(uint8_t key[KEY_BYTES], Failure *failure);

/* Overwrites a secret, so that no later mistake can show it. */
void wipe(void *secret, size_t size);

#endif
