/* What generated code and the runtime agree on.
 *
 * A module is one ELF relocatable object. Its kernels are global functions of type mlc_kernel. Its
 * section ".mlc" (not allocated) holds one msgpack map that says what is in the object:
 *
 *   "abi"       uint      MLC_ABI_VERSION, or MLC_PROGRAM_ABI of a model with procedures; another
 *                         one is refused, naming both
 *   "target"    str       the target it was compiled for, for messages
 *   "machine"   str       "aarch64", "arm" or "x86_64"
 *   "features"  [str]     CPU features that the code uses, by LLVM's names ("neon", "dotprod", ...);
 *                         one that the board lacks is refused by name
 *   "kernels"   [kernel]  kernel = {"name": str (the symbol),
 *                                   "params": [{"name": str, "dtype": str, "shape": [uint | str],
 *                                               "output": bool,
 *                                               "align": uint}],      bytes; else MLC_ALIGNMENT
 *                                   "scalars": [str],     names of symbolic dimensions, in the
 *                                                         order of mlc_args.scalars; each occurs
 *                                                         as a dimension in some parameter's shape
 *                                   "tasks": uint | str,  tasks that may run in parallel (a str
 *                                                         names the scalar that says how many)
 *                                   "workspace": uint,    bytes per thread
 *                                   "most": [uint]}       of a model's kernel with scalars: the
 *                                                         largest that each may be. Shapes and
 *                                                         workspace are for these
 *   "model"     map       present when the object holds a model:
 *       "inputs", "outputs"  [{"name": str, "dtype": str, "shape": [uint],
 *                   "state": str,  of an output that a run finds as the run before left it, zero at
 *                             first: what it is called as an input
 *                   "open": [str]}]  with dynamic extents: which one each is, "" for
 *                             one that is known. The shape is the largest; elements are dense
 *       "extents"   map       name: the most that an extent can be. An input or output of the name,
 *                             int64[], says what it is; absent where all are known
 *       "arena"     uint      bytes, kernel workspaces not included
 *       "weights"   uint      bytes of the weights blob (0: none)
 *       "weights_hash"  bin   BLAKE2b-256 of that blob (empty: none)
 *       "calls"     [call]    call = [kernel:uint, layer:str, [arg]]; the kernel's parameters, and
 *                             then an int64 for each of its scalars
 *                             arg = [space:uint, index:uint, offset:uint, size:uint], bytes;
 *                             space as in mlc_space, index the input's or output's number (else 0).
 *                             One that moves goes on with loop:uint, bytes:int for each loop: by
 *                             so many bytes from each iteration of it to the next
 *       "procedures"  [[step]]  present when the model has loops or branches. The first one is run,
 *                             and each other one by one step of a procedure before it
 *                             step = the number of a call, or
 *                             [0, loop, turns, procedure, condition:arg|nil, turn:arg|nil,
 *                              count:arg|nil], or
 *                             [1, condition:arg, procedure, otherwise:procedure]
 *                             Loops are numbered as they come. An iteration runs only while its
 *                             condition, a bool, holds; its number, an int64, is written to `turn`.
 *                             Where there is a `count`, an int64, it says how many iterations there are,
 *                             of `turns` at most. What moves backwards then begins at the last one
 *
 * The call table is data: the runtime walks it, so timing each layer, stopping after one, or
 * reading what it left in the arena needs no other code.
 *
 * Pointers handed to kernels are aligned to MLC_ALIGNMENT bytes; so is every offset in the arena
 * and the weights. */
#ifndef MLC_ABI_H
#define MLC_ABI_H

#include <stdint.h>

#define MLC_ABI_VERSION 1
#define MLC_ALIGNMENT 64
#define MLC_SECTION ".mlc"

typedef struct {
    void *const *data;      /* one pointer per parameter, in order */
    const int64_t *scalars; /* values of the symbolic dimensions, in order */
    void *workspace;        /* this thread's scratch memory, of the size the kernel asked for */
} mlc_args;

/* Runs tasks [task_begin, task_end) and returns 0, or a status that says what went wrong. A kernel
 * without a parallel loop has one task. Kernels call nothing back and keep no state. */
typedef int32_t mlc_kernel(const mlc_args *args, int32_t task_begin, int32_t task_end);

enum mlc_status {
    MLC_OK = 0,
    MLC_OUT_OF_BOUNDS = 1, /* an access outside its buffer, in code built with bound checks */
    MLC_BAD_SHAPE = 2,     /* arguments whose sizes do not fit each other */
    MLC_BAD_EXTENT = 3,    /* a symbolic dimension that is negative, or more than it may be */
    MLC_BAD_INDEX = 4      /* an index, or a number of rows, outside of its axis */
};

enum mlc_space { MLC_ARENA = 0, MLC_WEIGHTS = 1, MLC_INPUT = 2, MLC_OUTPUT = 3 };

#endif
