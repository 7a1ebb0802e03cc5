/* What a client on TCP must get through before it has a session: hello, then auth, by which both
 * ends prove that they hold the same key without showing it. mlc_rpc/wire.py describes it.
 *
 * Like a session it takes and gives bytes and touches no descriptor. Whatever is not exactly as it
 * must be ends it. */
#ifndef MLC_AUTH_H
#define MLC_AUTH_H

#include "blake2b.h"
#include "failure.h"
#include "key.h"
#include "msgpack.h"

enum { NONCE_BYTES = 32, VERSION_BYTES = 16, MAX_GREETING = 4096 };

/* What both ends said in their hellos: the client's version and the board's, then the client's
 * nonce and the board's. */
typedef struct {
    uint8_t bytes[VERSION_BYTES + 2 * NONCE_BYTES];
} Hellos;

/* Reads hello's parameters, draws the board's nonce, and writes hello's result. */
bool hello_answer(Reader *params, const char *method, Writer *result, Hellos *hellos,
                  Failure *failure);

typedef struct {
    uint8_t input[MAX_GREETING];
    size_t have;
    Scan scan;
    uint8_t output[1024];
    size_t output_size, output_sent;
    Hellos hellos;
    bool greeted; /* hello has been said */
    bool proven;  /* and the client has the key */
    bool ended;   /* nothing more is taken */
    Failure failure; /* why, where it is not because of a proof */
} Greeting;

void greeting_begin(Greeting *g);

/* Where the next bytes go; 0 while none are wanted. Then: so many came. */
size_t greeting_room(Greeting *g, uint8_t **to);
void greeting_took(Greeting *g, size_t size, const uint8_t key[KEY_BYTES]);

/* What is to be sent, 0 when there is nothing; then: so many were. */
size_t greeting_output(const Greeting *g, const uint8_t **data);
void greeting_sent(Greeting *g, size_t size);

/* The keys of the records that follow a proof. */
void greeting_keys(const Greeting *g, const uint8_t key[KEY_BYTES], uint8_t in_key[HASH_BYTES],
                   uint8_t out_key[HASH_BYTES]);

#endif
