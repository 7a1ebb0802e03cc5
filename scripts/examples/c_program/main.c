/* Classifies images of digits with a model that is part of the program.
 *
 *   classify IMAGES.f32 [DIGITS.weights]
 *
 * The file holds 16 images of 8 x 8 numbers, float32, row by row; one digit is printed for each.
 * Weights are read from a file, or, with -DEMBEDDED, are part of the program, too. */
#include "digits.h"

#include <stdio.h>
#include <stdlib.h>

enum { IMAGES = 16, CLASSES = DIGITS_OUTPUT_PROBABILITY_ELEMENTS / IMAGES };

static _Alignas(MLC_ALIGNMENT) unsigned char memory[DIGITS_MEMORY_BYTES];
static _Alignas(MLC_ALIGNMENT) float image[DIGITS_INPUT_IMAGE_ELEMENTS];
static _Alignas(MLC_ALIGNMENT) float probability[DIGITS_OUTPUT_PROBABILITY_ELEMENTS];

static int read_images(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t got = fread(image, sizeof *image, DIGITS_INPUT_IMAGE_ELEMENTS, file);
    fclose(file);
    return got == DIGITS_INPUT_IMAGE_ELEMENTS;
}

static int most_probable(const float *row) {
    int best = 0;
    for (int i = 1; i < CLASSES; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* Shows what a model is made of while it runs: MLC_TRACE=1. */
static int32_t traced(void *context, const mlc_call *call, const mlc_args *args, uint32_t index) {
    const mlc_model *model = context;
    fprintf(stderr, "%u %s\n", (unsigned)index, model->layers[index]);
    return call->kernel(args, 0, call->tasks);
}

int main(int count, char **arguments) {
    void *inputs[DIGITS_INPUTS] = {image}, *outputs[DIGITS_OUTPUTS] = {probability};
    if (count < 2 || !read_images(arguments[1])) {
        fprintf(stderr, "usage: %s IMAGES.f32 [DIGITS.weights]\n", arguments[0]);
        return 2;
    }
#ifdef EMBEDDED
    const void *weights = digits_weights;
    int32_t status = MLC_OK;
#else
    void *weights = NULL;
    int32_t status =
        mlc_weights_read(&digits, count > 2 ? arguments[2] : "digits.weights", &weights);
#endif
    if (status == MLC_OK)
        status = mlc_model_run_with(&digits, weights, memory, inputs, outputs,
                                    getenv("MLC_TRACE") ? traced : NULL, (void *)(size_t)&digits);
    if (status != MLC_OK) {
        fprintf(stderr, "%s\n", mlc_status_text(status));
        return 1;
    }
    for (int i = 0; i < IMAGES; i++)
        printf("%d%c", most_probable(probability + i * CLASSES), i + 1 < IMAGES ? ' ' : '\n');
    return 0;
}
