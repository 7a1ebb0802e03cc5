/* The program on the board. It serves one client on its standard input and output, or several on
 * TCP. */
#include "../include/mlc_abi.h"
#include "box.h"
#include "budget.h"
#include "cache.h"
#include "cpu.h"
#include "listen.h"
#include "run_command.h"
#include "session.h"
#include "supervise.h"

#include <stdio.h>
#include <string.h>

static int usage(const char *program) {
    fprintf(stderr,
            "usage: %s [OPTION...]             serve one client on standard input and output\n"
            "       %s [OPTION...] --listen [ADDRESS:]PORT (--key-file FILE | --key-stdin)\n"
            "                  serve clients that have the key on TCP; ADDRESS: 127.0.0.1\n"
            "       %s " RUN_USAGE "\n"
            "       %s --version\n"
            "--cache DIR: keep objects and weights there for later sessions\n"
            "--memory BYTES: all tensors, objects and weights together may take so much (500M, 2G);\n"
            "                otherwise three quarters of the board's memory\n"
            "--as-root: kernels run as root too, and not as nobody, when root starts this\n",
            program, program, program, program);
    return 2;
}

static int serve_port(const char *where, const char *key_file) {
    uint8_t key[KEY_BYTES];
    Failure failure = {0};
    if (key_file ? key_from_file(key_file, key, &failure) : key_from_stdin(key, &failure)) {
        int status = listen_on(where, key);
        wipe(key, sizeof key);
        return status;
    }
    fprintf(stderr, "mlc-runtime: %s\n", failure.text);
    return 1;
}

int main(int argc, char **argv) {
    const char *where = NULL, *key_file = NULL;
    bool key_stdin = false;
    if (argc > 1 && strcmp(argv[1], "run") == 0) return run_command(argc - 2, argv + 2);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("mlc-runtime %s (%s, wire %d.%d, module ABI %d)\n", RUNTIME_VERSION, mlc_machine(),
               WIRE_MAJOR, WIRE_MINOR, MLC_ABI_VERSION);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--as-root") == 0)
            box_keeps_root = true;
        else if (strcmp(argv[i], "--key-stdin") == 0)
            key_stdin = true;
        else if (strcmp(argv[i], "--listen") == 0 && i + 1 < argc)
            where = argv[++i];
        else if (strcmp(argv[i], "--cache") == 0 && i + 1 < argc)
            cache_use(argv[++i]);
        else if (strcmp(argv[i], "--memory") == 0 && i + 1 < argc && budget_set(argv[i + 1]))
            i++;
        else if (strcmp(argv[i], "--key-file") == 0 && i + 1 < argc)
            key_file = argv[++i];
        else
            return usage(argv[0]);
    }
    if (!where && !key_file && !key_stdin) return supervise(0, 1, NULL);
    if (!where || key_stdin == (key_file != NULL)) return usage(argv[0]);
    return serve_port(where, key_file);
}
