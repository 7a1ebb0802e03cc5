/* Runs each model of MODELS_H as often as its entry says. Reads the inputs' bytes of every run from
 * stdin. Writes the status, whether all guard bytes are whole, and the outputs' bytes. */
#include "guarded.h"

#include "mlc_runtime.h"

typedef struct {
    const mlc_model *model;
    const void *weights;
    int runs, states; /* states: whether a run finds outputs as the one before left them */
} Entry;

#include MODELS_H

enum { MOST = 64 };

static void run(const Entry *entry, unsigned char *outputs[]) {
    const mlc_model *model = entry->model;
    unsigned char *inputs[MOST], *memory = guarded(model->memory_bytes);
    for (uint32_t i = 0; i < model->input_count; i++) {
        inputs[i] = guarded(model->inputs[i].bytes);
        read_exactly(inputs[i], model->inputs[i].bytes);
    }
    int32_t status =
        mlc_model_run(model, entry->weights, memory, (void *const *)inputs, (void *const *)outputs);
    int whole = intact(memory, model->memory_bytes);
    for (uint32_t i = 0; i < model->input_count; i++)
        whole = whole && intact(inputs[i], model->inputs[i].bytes);
    for (uint32_t i = 0; i < model->output_count; i++)
        whole = whole && intact(outputs[i], model->outputs[i].bytes);
    answer(status, whole);
    for (uint32_t i = 0; i < model->output_count; i++)
        fwrite(outputs[i], 1, model->outputs[i].bytes, stdout);
    for (uint32_t i = 0; i < model->input_count; i++) freed(inputs[i]);
    freed(memory);
}

static int run_all(const Entry *entry) {
    const mlc_model *model = entry->model;
    unsigned char *outputs[MOST];
    if (model->input_count > MOST || model->output_count > MOST) return 2;
    for (int n = 0; n < entry->runs; n++) {
        for (uint32_t i = 0; i < model->output_count && (n == 0 || !entry->states); i++) {
            outputs[i] = guarded(model->outputs[i].bytes);
            if (entry->states) memset(outputs[i], 0, model->outputs[i].bytes);
        }
        run(entry, outputs);
        for (uint32_t i = 0; i < model->output_count && !entry->states; i++) freed(outputs[i]);
    }
    for (uint32_t i = 0; i < model->output_count && entry->states; i++) freed(outputs[i]);
    return 0;
}

int main(void) {
    int status = 0;
    for (size_t n = 0; n < sizeof MODELS / sizeof *MODELS && status == 0; ++n)
        status = run_all(&MODELS[n]);
    return status;
}
