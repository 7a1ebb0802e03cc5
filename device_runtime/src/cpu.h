/* What this board's CPU is and has, asked of the kernel (auxiliary vector) or the CPU itself. Never
 * of /proc/cpuinfo where features are concerned: under QEMU it shows the machine outside. */
#ifndef MLC_CPU_H
#define MLC_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine this runtime is built for: "aarch64", "arm" or "x86_64". */
const char *mlc_machine(void);

/* The index-th feature that the CPU has, by LLVM's name; NULL after the last one. */
const char *mlc_cpu_feature(size_t index);

/* Whether the CPU has the feature of that (LLVM) name; false for names not known here. */
bool mlc_cpu_has(const char *name);

/* MIDR of a core (ARM's identification: implementer, variant, part, revision); 0 when not known. */
uint32_t mlc_cpu_midr(unsigned core);

/* Writes the name of a core's model into `name` and returns it: "cortex-a72"; for parts without an
 * entry in our table "arm:0x41:0xd99" (implementer and part); on x86-64 what the CPU calls itself;
 * "unknown" when nothing can be learnt. Cores of one board may differ. */
const char *mlc_cpu_model(unsigned core, char *name, size_t size);

#endif
