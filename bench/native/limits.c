// Physical limits of this machine: prints one JSON object.
//   limits THREADS
// fma_gflops: multiply-adds on registers, AVX2 f32, two operations each. read_gb_s: sums over an
// array far larger than the caches; the best of several passes, since a neighbour only adds time.
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMaxThreads = 256, kPasses = 9 };
static const size_t kBytesPerThread = (size_t)256 << 20;
static const long kFmaRounds = 60 * 1000 * 1000;

typedef struct {
  pthread_barrier_t* barrier;
  char* memory;
  double best_fma_s;
  double best_read_s;
  double sink;
} Worker;

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Twelve independent chains: more than latency times throughput, and they fit the registers.
static double Fma(void) {
  __m256 a[12];
  const __m256 x = _mm256_set1_ps(0.999999f), y = _mm256_set1_ps(1e-6f);
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps((float)i);
  for (long round = 0; round < kFmaRounds / 12; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm256_fmadd_ps(a[i], x, y);
  }
  __m256 sum = a[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, a[i]);
  float out[8];
  _mm256_storeu_ps(out, sum);
  return out[0];
}

static double Read(const char* memory) {
  __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
  for (size_t at = 0; at < kBytesPerThread; at += 128) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i* line = (const __m256i*)(memory + at + 32 * (size_t)i);
      sum[i] = _mm256_add_epi64(sum[i], _mm256_load_si256(line));
    }
  }
  for (int i = 1; i < 4; ++i) sum[0] = _mm256_add_epi64(sum[0], sum[i]);
  return (double)_mm256_extract_epi64(sum[0], 0);
}

static void* Run(void* argument) {
  Worker* worker = argument;
  memset(worker->memory, 1, kBytesPerThread);
  worker->best_fma_s = worker->best_read_s = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    pthread_barrier_wait(worker->barrier);
    double begin = Now();
    worker->sink += Fma();
    double elapsed = Now() - begin;
    if (elapsed < worker->best_fma_s) worker->best_fma_s = elapsed;
    pthread_barrier_wait(worker->barrier);
    begin = Now();
    worker->sink += Read(worker->memory);
    elapsed = Now() - begin;
    if (elapsed < worker->best_read_s) worker->best_read_s = elapsed;
  }
  return NULL;
}

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? atoi(argv[1]) : 1;
  if (num_threads < 1 || num_threads > kMaxThreads) return 2;
  static Worker workers[kMaxThreads];
  pthread_t threads[kMaxThreads];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)num_threads);
  for (int i = 0; i < num_threads; ++i) {
    workers[i].barrier = &barrier;
    workers[i].memory = aligned_alloc(4096, kBytesPerThread);
    if (workers[i].memory == NULL) return 1;
    pthread_create(&threads[i], NULL, Run, &workers[i]);
  }
  double fma = 0, read = 0, sink = 0;
  for (int i = 0; i < num_threads; ++i) {
    pthread_join(threads[i], NULL);
    fma += 16.0 * (double)kFmaRounds / workers[i].best_fma_s / 1e9;
    read += (double)kBytesPerThread / workers[i].best_read_s / 1e9;
    sink += workers[i].sink;
  }
  fprintf(stderr, "%g\n", sink);  // so that the work is not optimised away
  printf("{\"threads\": %d, \"fma_gflops\": %.1f, \"read_gb_s\": %.1f}\n", num_threads, fma, read);
  return 0;
}
