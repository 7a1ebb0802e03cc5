/* Calling convention of 32-bit ARM objects. */
#ifndef MLC_ARM_ABI_H
#define MLC_ARM_ABI_H

#include "elf_reader.h"

/* Refuses an object that is not EABI version 5 with the hard-float calling convention: its floats
 * would travel in other registers than the runtime's. */
void mlc_arm_abi_check(mlc_elf *elf);

#endif
