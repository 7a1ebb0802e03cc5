/* What the supervisor and its worker say to each other: orders and answers over a socket pair, each
 * in one packet with the descriptors it needs, and a piece of memory that both map. Both are the
 * same program, so these are plain structs. */
#ifndef MLC_ORDER_H
#define MLC_ORDER_H

#include "blake2b.h"
#include "failure.h"
#include "tensor.h"
#include "timer.h"

enum { MAX_MODULES = 256, MAX_ARGS = 64, MAX_NAME = 128, MAX_CORES = 64, MAX_REPLY = 1 << 19 };

typedef enum {
    MAP_TENSOR,  /* descriptor: the tensor's */
    DROP_TENSOR,
    LOAD_MODULE, /* descriptors: the object's, and the weights' if there are any */
    DROP_MODULE,
    RUN
} OrderKind;

typedef struct {
    size_t object_size, weights_size;
    bool has_weights;
    uint8_t weights_hash[HASH_BYTES];
} LoadOrder;

typedef struct {
    bool whole_model;
    char kernel[MAX_NAME]; /* when not */
    uint32_t arena;        /* tensor, or 0 */
    uint32_t arg_count;
    uint32_t args[MAX_ARGS]; /* tensors, all of them mapped */
    uint32_t from, until;    /* calls */
    uint32_t threads;
    char cores[MAX_CORES]; /* as cores_named takes them */
    bool mark;
    bool quiet; /* when not timed: nothing is told of each call */
    bool spans; /* when not timed: when each thread was at work */
    bool total; /* when not timed: nanoseconds of all calls together are told, and nothing else */
    bool stops; /* when not timed: after turn `stop_turn` of call `stop_call` */
    uint32_t stop_call, stop_turn;
    bool timed;
    TimerOptions timer; /* when timed */
    bool layers;        /* when timed: each call by itself too */
    uint32_t turn;      /* which of Shared.replies it writes to: 0, 1, and so on in turn */
} RunOrder;

typedef struct {
    OrderKind kind;
    bool answer;  /* one is wanted */
    uint32_t number; /* of the order, which its answer repeats */
    uint32_t id;  /* of the tensor or the module */
    union {
        struct {
            TensorType type;
            size_t size;
        } tensor;
        LoadOrder load;
        RunOrder run;
    };
} Order;

/* A worker sends one, with number 0, before it takes the first order. */
typedef struct {
    uint32_t number;
    Failure failure;
    uint32_t box;          /* what holds, in the first */
    uint64_t arena, image; /* bytes, after LOAD_MODULE */
    size_t reply;          /* bytes of msgpack in Shared.replies, after RUN */
} Answer;

typedef enum { IDLE, LOADING, RUNNING, TIMING } Phase;

/* Written by the worker, read by the supervisor, also after the worker's death. */
typedef struct {
    volatile uint32_t phase; /* a Phase */
    volatile uint32_t call;  /* index of the kernel call at work, when running or timing */
    volatile uint32_t forbidden; /* as box_enter has it */
    uint8_t replies[2][MAX_REPLY]; /* one is read while the run that follows writes the other */
} Shared;

#endif
