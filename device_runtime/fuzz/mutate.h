/* What fuzz targets that take a file share.
 *
 * With libFuzzer:   clang -fsanitize=fuzzer,address,undefined ...
 * Without:          cc -fsanitize=address,undefined -DMLC_FUZZ_MAIN ... mutate.c
 *                   TARGET COUNT SEED_FILE...    mutates the files COUNT times, the same way each
 *                                                time, and prints how many were still accepted */
#ifndef MLC_MUTATE_H
#define MLC_MUTATE_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

extern unsigned long fuzz_accepted; /* mutants that the target took for valid */

#endif
