/* Runs linked models on inputs from a file, and looks whether guard bytes around all memory that a
 * model is given, and the inputs themselves, stay as they were.
 *
 *   program INPUTS OUTPUTS
 *
 * INPUTS: for each run the number of a model, uint32, and its inputs. OUTPUTS: for each run the
 * status, int32, what was written to that is not the run's, uint32 (0: nothing; else 1 + the number
 * of the block: inputs, outputs, memory), and the outputs. */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096, MOST = 64, PATTERN = 0xa5 };

typedef struct {
    unsigned char *data;
    size_t bytes;
} Block;

typedef struct {
    Block blocks[MOST]; /* inputs, outputs, memory */
    uint32_t count;
    unsigned char *given[MOST]; /* copies of the inputs */
} Place;

static Block block(size_t bytes) {
    size_t whole = GUARD + (bytes + 63) / 64 * 64 + GUARD;
    unsigned char *begin = aligned_alloc(64, whole);
    if (!begin) exit(3);
    memset(begin, PATTERN, whole);
    return (Block){begin + GUARD, bytes};
}

static int is_whole(const Block *b) {
    for (size_t i = 0; i < GUARD; i++)
        if (b->data[-1 - (ptrdiff_t)i] != PATTERN || b->data[b->bytes + i] != PATTERN) return 0;
    return 1;
}

static Place place_of(const mlc_model *model) {
    Place place = {.count = 0};
    for (uint32_t i = 0; i < model->input_count; i++) {
        place.given[i] = malloc(model->inputs[i].bytes + 1);
        place.blocks[place.count++] = block(model->inputs[i].bytes);
    }
    for (uint32_t i = 0; i < model->output_count; i++)
        place.blocks[place.count++] = block(model->outputs[i].bytes);
    place.blocks[place.count++] = block(model->memory_bytes);
    return place;
}

static uint32_t damaged(const mlc_model *model, const Place *place) {
    for (uint32_t i = 0; i < place->count; i++) {
        const Block *b = &place->blocks[i];
        if (!is_whole(b)) return 1 + i;
        if (i < model->input_count && memcmp(b->data, place->given[i], b->bytes) != 0) return 1 + i;
    }
    return 0;
}

int main(int argc, char **argv) {
    static Place places[MODEL_COUNT];
    FILE *from = argc == 3 ? fopen(argv[1], "rb") : NULL, *to = from ? fopen(argv[2], "wb") : NULL;
    if (!to) return 2;
    for (uint32_t m = 0; m < MODEL_COUNT; m++) places[m] = place_of(models[m]);
    for (uint32_t number; fread(&number, sizeof number, 1, from) == 1;) {
        const mlc_model *model = models[number];
        Place *place = &places[number];
        void *in[MOST], *out[MOST];
        for (uint32_t i = 0; i < model->input_count; i++) {
            in[i] = place->blocks[i].data;
            if (fread(in[i], 1, model->inputs[i].bytes, from) != model->inputs[i].bytes) return 5;
            memcpy(place->given[i], in[i], model->inputs[i].bytes);
        }
        for (uint32_t i = 0; i < model->output_count; i++) {
            Block *b = &place->blocks[model->input_count + i];
            out[i] = b->data;
            memset(out[i], 0, b->bytes);
        }
        void *memory = place->blocks[place->count - 1].data;
        int32_t status = mlc_model_run(model, weights[number], memory, in, out);
        uint32_t wrong = damaged(model, place);
        fwrite(&status, sizeof status, 1, to);
        fwrite(&wrong, sizeof wrong, 1, to);
        for (uint32_t i = 0; i < model->output_count; i++)
            fwrite(out[i], 1, model->outputs[i].bytes, to);
        fflush(to); /* the last whole answer says where a crash was */
    }
    return 0;
}
