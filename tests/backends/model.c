/* Runs a model as often as stdin has inputs for. Reads the inputs' bytes, writes the status, whether
 * all guard bytes are whole, and the outputs' bytes. */
#include "guarded.h"

#include MODEL_H

enum { MOST = 64 };

static int more(void) {
    int c = getc(stdin);
    return c != EOF && ungetc(c, stdin) == c;
}

int main(void) {
    const mlc_model *model = &MODEL;
    unsigned char *inputs[MOST], *outputs[MOST];
    if (model->input_count > MOST || model->output_count > MOST) return 2;
    while (more()) {
        for (uint32_t i = 0; i < model->input_count; i++) {
            inputs[i] = guarded(model->inputs[i].bytes);
            read_exactly(inputs[i], model->inputs[i].bytes);
        }
        for (uint32_t i = 0; i < model->output_count; i++) {
            outputs[i] = guarded(model->outputs[i].bytes);
#ifdef ZEROED /* states */
            memset(outputs[i], 0, model->outputs[i].bytes);
#endif
        }
        unsigned char *memory = guarded(model->memory_bytes);
        int32_t status = mlc_model_run(model, WEIGHTS, memory, (void *const *)inputs,
                                       (void *const *)outputs);
        int whole = intact(memory, model->memory_bytes);
        for (uint32_t i = 0; i < model->input_count; i++)
            whole = whole && intact(inputs[i], model->inputs[i].bytes);
        for (uint32_t i = 0; i < model->output_count; i++)
            whole = whole && intact(outputs[i], model->outputs[i].bytes);
        answer(status, whole);
        for (uint32_t i = 0; i < model->output_count; i++)
            fwrite(outputs[i], 1, model->outputs[i].bytes, stdout);
        for (uint32_t i = 0; i < model->input_count; i++) freed(inputs[i]);
        for (uint32_t i = 0; i < model->output_count; i++) freed(outputs[i]);
        freed(memory);
    }
    return 0;
}
