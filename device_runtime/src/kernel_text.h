/* The kernel's small files: /proc and /sys. */
#ifndef MLC_KERNEL_TEXT_H
#define MLC_KERNEL_TEXT_H

#include <stddef.h>

/* Where /proc and /sys begin. Tests build the runtime with a folder of their own, to be a board with
 * other clocks and temperatures than their machine's. */
#ifndef SYSTEM_ROOT
#define SYSTEM_ROOT ""
#endif

/* Reads the file's beginning, as a string without the line's end; "" where it cannot be read. */
void kernel_text(const char *path, char *text, size_t size);

#endif
