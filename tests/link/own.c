/* A library of a user's: constants, a table of functions, zeros, data that lives on, C's
 * mathematics, a variable that others could define. */
#include <math.h>
#include <stdint.h>

static int32_t calls;
int32_t shift = 7;
int32_t scratch[64];
static const float weights[4] = {1.5f, -2.0f, 0.25f, 8.0f};

__attribute__((noinline)) static float straight(float x, int32_t i) { return x * weights[i & 3]; }
__attribute__((noinline)) float curved(float x, int32_t i) { return straight(x, i) + expf(x); }
static float (*const kinds[2])(float, int32_t) = {straight, curved};

int32_t own_mix(const float *a, float *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) out[i] = kinds[i & 1](a[i], i) + (float)shift;
    scratch[calls & 63] = n;
    return ++calls;
}

float own_last(const float *a, int32_t n) { return curved(a[n - 1], n); }

float own_scale(float x, float by, int32_t i, double more) { return x * by + (float)i + (float)more; }

void own_row(const int8_t *a, int32_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[0] += a[i];
}
