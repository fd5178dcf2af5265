/* One step of the extended Kalman filter's two passes over P, for gradients that are given.
 *
 *   HP = H P + q H,   variance_b = HP_b . H_b + R,   W_b = HP_b / sqrt(B variance_b),
 *   P += q I - W' W
 *
 * Both passes keep 2 x B running values in registers, so that each number of P is moved once a pass
 * and the multiply-add units, not the loads, set the pace. Rows are padded to a multiple of two
 * vectors, n to an even number of rows, with zeros.
 */
#include <math.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#define BATCH 10

typedef float vec __attribute__((vector_size(4 * LANES)));

static inline vec spread(float x) { return x - (vec){0}; }

/* Columns j .. j + 2 LANES of HP: a tall, narrow strip of P is read once. */
static void multiply(int n, int ld, const float *restrict Ht, const float *restrict P, float *restrict HP)
{
    for (int j = 0; j < ld; j += 2 * LANES) {
        vec left[BATCH] = {{0}}, right[BATCH] = {{0}};
        for (int i = 0; i < n; i++) {
            const float *row = P + (long)i * ld + j;
            __builtin_prefetch(row + 8L * ld);
            const vec p0 = *(const vec *)row, p1 = *(const vec *)(row + LANES);
#pragma GCC unroll 10
            for (int b = 0; b < BATCH; b++) {
                const vec h = spread(Ht[i * BATCH + b]);
                left[b] += h * p0;
                right[b] += h * p1;
            }
        }
#pragma GCC unroll 10
        for (int b = 0; b < BATCH; b++) {
            *(vec *)(HP + b * ld + j) = left[b];
            *(vec *)(HP + b * ld + j + LANES) = right[b];
        }
    }
}

/* P -= W' W, two rows at a time. */
static void downdate(int n, int ld, const float *restrict W, float *restrict P)
{
    for (int i = 0; i < n; i += 2) {
        vec upper[BATCH], lower[BATCH];
#pragma GCC unroll 10
        for (int b = 0; b < BATCH; b++) {
            upper[b] = spread(W[b * ld + i]);
            lower[b] = spread(W[b * ld + i + 1]);
        }
        float *row = P + (long)i * ld;
        for (int j = 0; j < ld; j += LANES) {
            vec p0 = *(vec *)(row + j), p1 = *(vec *)(row + ld + j);
#pragma GCC unroll 10
            for (int b = 0; b < BATCH; b++) {
                const vec w = *(const vec *)(W + b * ld + j);
                p0 -= upper[b] * w;
                p1 -= lower[b] * w;
            }
            *(vec *)(row + j) = p0;
            *(vec *)(row + ld + j) = p1;
        }
    }
}

int batch(void) { return BATCH; }

int lanes(void) { return LANES; }

/* steps updates of P [n, ld] by the batches of gradients in H [steps, BATCH, ld]. All arrays are
 * aligned to a vector and zero beyond n; Ht [n, BATCH] and W [BATCH, ld] are room to work in. */
void filter(int steps, int n, int ld, float q, float R, const float *H, float *P, float *Ht, float *W)
{
    for (int step = 0; step < steps; step++, H += (long)BATCH * ld) {
        for (int i = 0; i < n; i++)
            for (int b = 0; b < BATCH; b++)
                Ht[i * BATCH + b] = H[b * ld + i];
        multiply(n, ld, Ht, P, W);
        for (int b = 0; b < BATCH; b++) {
            float *restrict w = W + b * ld;
            const float *restrict h = H + b * ld;
            float variance = R;
            for (int i = 0; i < n; i++) {
                w[i] += q * h[i];
                variance += w[i] * h[i];
            }
            const float scale = 1.0f / sqrtf(BATCH * variance);
            for (int i = 0; i < ld; i++)
                w[i] *= scale;
        }
        downdate(n, ld, W, P);
        for (int i = 0; i < n; i++)
            P[(long)i * ld + i] += q;
    }
}
