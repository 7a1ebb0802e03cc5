/* Runs a whole model on a Cortex-M of QEMU's mps2 boards, with no operating system: the vector
 * table, memory as C wants it, words of the outputs in hexadecimal by semihosting. */
#include MODEL_HEADER

#include <string.h>

extern unsigned char stack_end[], data_from[], data_begin[], data_end[], bss_begin[], bss_end[];
extern const unsigned char given[];
int main(void);

static int32_t host(int32_t operation, const void *argument) {
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void leave(int status) {
    uint32_t words[] = {0x20026, (uint32_t)status}; /* ADP_Stopped_ApplicationExit */
    for (;;) host(0x20, words);
}

static void fault(void) { leave(3); }

void reset(void) {
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* CPACR: the floating-point unit */
    __asm__ volatile("dsb\n isb" ::: "memory");
    memcpy(data_begin, data_from, (size_t)(data_end - data_begin));
    memset(bss_begin, 0, (size_t)(bss_end - bss_begin));
    leave(main());
}

__attribute__((section(".vectors"), used)) static void (*const vectors[8])(void) = {
    (void (*)(void))stack_end, reset, fault, fault, fault, fault, fault, fault};

static _Alignas(MLC_ALIGNMENT) unsigned char memory[MEMORY_BYTES];
static _Alignas(MLC_ALIGNMENT) unsigned char in[INPUT_BYTES], out[OUTPUT_BYTES];

int main(void) {
    memcpy(in, given, INPUT_BYTES);
    int32_t status = mlc_model_run(&MODEL, WEIGHTS, memory, (void *[]){in}, (void *[]){out});
    if (status != MLC_OK) {
        host(0x04, mlc_status_text(status));
        return 1;
    }
    for (size_t i = 0; i < OUTPUT_BYTES; i++) {
        char hex[3] = {"0123456789abcdef"[out[i] >> 4], "0123456789abcdef"[out[i] & 15], 0};
        host(0x04, hex);
    }
    return 0;
}
