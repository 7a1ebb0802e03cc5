/* The loader and CPU detection without the server, for tests.
 *
 *   load_driver                        prints the machine, core 0's model and the CPU's features
 *   load_driver OBJECT                 loads and unloads
 *   load_driver OBJECT KERNEL BYTES    calls a kernel: its input is stdin, its output (of BYTES)
 *                                      goes to stdout
 *   load_driver OBJECT --section NAME  writes that section's bytes to stdout
 *   load_driver OBJECT --word NAME     prints the 32-bit word at that symbol, and its address
 *
 * Exit status 0; 1 with the loader's message on stderr; 2 when the driver itself cannot go on; 100 +
 * what the kernel returned, if that is not 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "load.h"
#include "mlc_abi.h"

static _Alignas(MLC_ALIGNMENT) unsigned char input[1 << 16], output[1 << 16];
static unsigned char object[1 << 22];

static int quit(int status, const char *message)
{
    fprintf(stderr, "%s\n", message);
    return status;
}

static int describe_cpu(void)
{
    char model[64];
    printf("%s\n%s\n", mlc_machine(), mlc_cpu_model(0, model, sizeof model));
    for (size_t i = 0; mlc_cpu_feature(i); i++)
        printf("%s\n", mlc_cpu_feature(i));
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 1)
        return describe_cpu();
    FILE *file = fopen(arguments[1], "rb");
    if (!file)
        return quit(2, "no such file");
    size_t size = fread(object, 1, sizeof object, file);
    fclose(file);

    char why[256];
    if (count == 4 && strcmp(arguments[2], "--section") == 0) {
        size_t section_size = 0;
        const unsigned char *bytes =
            mlc_object_section(object, size, arguments[3], &section_size, why, sizeof why);
        if (!bytes)
            return quit(1, why);
        return fwrite(bytes, 1, section_size, stdout) == section_size ? 0 : 2;
    }

    mlc_image image;
    const char *failure = mlc_load(&image, object, size, why, sizeof why);
    if (failure)
        return quit(1, failure);
    memset(object, 0xa5, sizeof object); /* the image must not need the object's bytes any more */
    if (count == 4 && strcmp(arguments[2], "--word") == 0) {
        const uint32_t *word = mlc_image_symbol(&image, arguments[3]);
        if (!word)
            return quit(2, "no such symbol");
        printf("%u %llu\n", *word, (unsigned long long)(uintptr_t)word);
    } else if (count == 4) {
        mlc_kernel *kernel = (mlc_kernel *)mlc_image_symbol(&image, arguments[2]);
        if (!kernel)
            return quit(2, "no such kernel");
        size_t bytes = strtoul(arguments[3], NULL, 10);
        if (fread(input, 1, sizeof input, stdin) == sizeof input || bytes > sizeof output)
            return quit(2, "too many bytes");
        void *data[2] = {input, output};
        int32_t status = kernel(&(mlc_args){.data = data}, 0, 1);
        if (status)
            return 100 + status;
        fwrite(output, 1, bytes, stdout);
    }
    mlc_unload(&image);
    return 0;
}
