/* The program on the board. It serves one client on its standard input and output. */
#include "../include/mlc_abi.h"
#include "cpu.h"
#include "session.h"
#include "supervise.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc == 1) return supervise(0, 1);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("mlc-runtime %s (%s, wire %d.%d, module ABI %d)\n", RUNTIME_VERSION, mlc_machine(),
               WIRE_MAJOR, WIRE_MINOR, MLC_ABI_VERSION);
        return 0;
    }
    fprintf(stderr, "usage: %s            serve one client on standard input and output\n"
                    "       %s --version\n", argv[0], argv[0]);
    return 2;
}
