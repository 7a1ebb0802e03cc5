/* Writes what a language model, which is part of the program, says behind a prompt of tokens.
 *
 *   write DECODER.weights COUNT TOKEN...
 *
 * It prints COUNT tokens, the likeliest each time, or fewer when the cache is full. */
#include "decoder.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = DECODER_INPUT_INPUT_IDS_ELEMENTS }; /* tokens that one run reads */

static _Alignas(MLC_ALIGNMENT) unsigned char memory[DECODER_MEMORY_BYTES];
static _Alignas(MLC_ALIGNMENT) DECODER_INPUT_INPUT_IDS_TYPE ids[MOST];
static _Alignas(MLC_ALIGNMENT) int64_t count; /* of the tokens in ids */

/* Reads `prompt` tokens and prints those behind them. The caches are outputs that stay. */
static int32_t reply(const void *weights, void *const *outputs, char **tokens, int prompt,
                     long left) {
    void *inputs[DECODER_INPUTS] = {ids, &count};
    const int64_t *token = outputs[DECODER_OUTPUT_TOKEN];
    int32_t status = MLC_OK;
    for (int read = 0; read < prompt && status == MLC_OK; read += (int)count) {
        for (count = 0; count < MOST && read + count < prompt; count++)
            ids[count] = (DECODER_INPUT_INPUT_IDS_TYPE)atol(tokens[read + count]);
        status = mlc_model_run(&decoder, weights, memory, inputs, outputs);
    }
    const size_t room = decoder.outputs[DECODER_OUTPUTS - 1].shape[2]; /* rows of a cache */
    for (size_t there = (size_t)prompt; left > 0 && status == MLC_OK; left--, there++) {
        printf("%lld\n", (long long)*token);
        fflush(stdout);
        if (left == 1 || there >= room) break;
        ids[0] = (DECODER_INPUT_INPUT_IDS_TYPE)*token;
        count = 1;
        status = mlc_model_run(&decoder, weights, memory, inputs, outputs);
    }
    return status;
}

int main(int arguments, char **argument) {
    if (arguments < 4) {
        fprintf(stderr, "usage: %s DECODER.weights COUNT TOKEN...\n", argument[0]);
        return 2;
    }
    void *weights = NULL, *outputs[DECODER_OUTPUTS];
    int32_t status = mlc_weights_read(&decoder, argument[1], &weights);
    for (int i = 0; i < DECODER_OUTPUTS && status == MLC_OK; i++) {
        outputs[i] = mlc_memory_new(decoder.outputs[i].bytes); /* states begin as zeros */
        if (!outputs[i]) status = MLC_NO_MEMORY;
    }
    if (status == MLC_OK)
        status = reply(weights, outputs, argument + 3, arguments - 3, atol(argument[2]));
    if (status != MLC_OK) fprintf(stderr, "%s\n", mlc_status_text(status));
    return status != MLC_OK;
}
