// What the benchmarks share: threads, timing of calls, random operands.
#ifndef PYVLM_KERNELS_BENCH_STEP_H_
#define PYVLM_KERNELS_BENCH_STEP_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/pack.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/q8.h"
#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {

inline double NowMs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

inline double ThreadCpuMs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Workers that spin between calls and take shares from a common counter.
class Pool {
 public:
  explicit Pool(size_t num_threads) {
    for (size_t i = 1; i < num_threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    stop_ = true;
    for (auto& worker : workers_) worker.join();
  }

  void Run(size_t count, const std::function<void(size_t)>& share) {
    share_ = &share;
    count_ = count;
    next_ = 0;
    finished_ = 0;
    ++generation_;
    TakeShares();
    while (finished_ != workers_.size()) {
    }
  }

 private:
  void TakeShares() {
    for (size_t i = next_++; i < count_; i = next_++) (*share_)(i);
  }
  void Work() {
    for (size_t seen = 0;; ++seen) {
      while (generation_ == seen) {
        if (stop_) return;
      }
      TakeShares();
      ++finished_;
    }
  }

  std::vector<std::thread> workers_;
  const std::function<void(size_t)>* share_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0}, finished_{0}, generation_{0};
  std::atomic<bool> stop_{false};
};

struct Options {
  size_t num_threads = 2, repeat = 20;
  bool f32 = false, q8 = false, decode = false, prefill = false, vision = false;
  Isa isa = BestIsa();
};

inline std::vector<float> Noise(size_t count, float scale) {
  std::vector<float> values(count);
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * scale;
  }
  return values;
}

// Panels of random weights; the same noise from different offsets, since packing order is moot.
template <typename W>
std::vector<W> Weights(size_t out_size, size_t in_size) {
  std::vector<W> panels(PanelElements(out_size, in_size));
  const auto noise = Noise(65536, 1.7f / std::sqrt(static_cast<float>(in_size)));
  std::vector<W> narrow(noise.size());
  for (size_t i = 0; i < noise.size(); ++i) FromFloat(noise[i], &narrow[i]);
  for (size_t i = 0; i < panels.size(); ++i) panels[i] = narrow[(i + i / 65536 * 77) % 65536];
  return panels;
}

// One packed panel, repeated: values do not matter for integer arithmetic.
template <>
inline std::vector<int8_t> Weights<int8_t>(size_t out_size, size_t in_size) {
  std::vector<int8_t> panels(Q8Bytes(out_size, in_size));
  const size_t panel = Q8PanelBytes(in_size);
  const auto noise = Noise(kPanelRows * in_size, 1.7f / std::sqrt(static_cast<float>(in_size)));
  if (!PackQ8(noise.data(), kPanelRows, in_size, panels.data())) std::abort();
  for (size_t i = panel; i < panels.size(); ++i) panels[i] = panels[i - panel];
  return panels;
}

template <typename W>
constexpr double kBytesPerWeight =
    std::is_same_v<W, int8_t> ? static_cast<double>(kQ8BlockBytes) / (kQ8Inputs * kPanelRows)
                              : static_cast<double>(sizeof(W));

template <typename W>
std::string Suffixed(const char* name) {
  if (std::is_same_v<W, int8_t>) return name + std::string("_q8");
  return name + std::string(std::is_same_v<W, float> ? "_f32" : "_f16");
}

template <typename T>
Buffer<T> View(std::vector<std::remove_const_t<T>>& values, size_t offset = 0) {
  return {values.data(), offset};
}

// Calls kernels from all threads and keeps the least time of each kind.
template <typename W>
class Step {
 public:
  explicit Step(const Options& options) : options_(options), pool_(options.num_threads) {}

  struct Result {
    double best_ms, floor_ms, linear_floor_ms;
  };

  // Runs of a step that starts from fresh noise.
  Result Measure(const std::function<void()>& step, std::vector<float>* input, size_t repeat) {
    Result result{1e300, 0, 0};
    const size_t runs = std::max<size_t>(repeat, 2) + 1;
    calls_.clear();
    for (size_t i = 0; i < runs; ++i) {
      *input = Noise(input->size(), 1.0f);
      const double start = NowMs();
      step();
      result.best_ms = std::min(result.best_ms, NowMs() - start);
    }
    for (auto& [label, calls] : calls_) {
      const double floor = calls.least_ms * static_cast<double>(calls.count / runs);
      result.floor_ms += floor;
      if (label[0] == '*') result.linear_floor_ms += floor;
    }
    for (auto& [label, calls] : calls_) calls.count /= runs;
    return result;
  }

  void PrintSplit(const std::vector<float>& output) const {
    for (const auto& [label, calls] : calls_) {
      std::printf("  %s %.2f", label.c_str(), calls.least_ms * static_cast<double>(calls.count));
    }
    for (const float value : output) {
      if (!std::isfinite(value)) std::abort();
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  KernelFn Find(const std::string& name) const {
    void* found = FindKernel(name, options_.isa);
    if (found == nullptr) found = FindKernel(name, Isa::scalar);
    if (found == nullptr) std::abort();
    return reinterpret_cast<KernelFn>(found);
  }

  template <typename P>
  void Call(const char* label, const std::string& name, size_t count, P params) {
    const KernelFn kernel = Find(name);
    double (*const clock)() = options_.num_threads == 1 ? ThreadCpuMs : NowMs;
    const double start = clock();
    pool_.Run(count, [&](size_t id) {
      P own = params;
      own.share = {id, count};
      if (kernel(&own, nullptr, nullptr) != kOk) std::abort();
    });
    const double elapsed = clock() - start;
    Calls& calls = calls_[label];
    ++calls.count;
    calls.least_ms = std::min(calls.least_ms, elapsed);
  }

  void Linear(const char* label, size_t rows, std::vector<float>& x, std::vector<W>& matrix,
              std::vector<float>& residual, std::vector<float>& y, size_t in_size, size_t out_size,
              size_t flags, size_t count, size_t x_offset = 0) {
    Call(label, Suffixed<W>("pyvlm_linear"), count,
         LinearParams<W>{View<const float>(x, x_offset),
                         View<const float>(ones),
                         View<const W>(matrix),
                         View<const float>(ones),
                         View<const float>(residual),
                         View<float>(y),
                         rows,
                         in_size,
                         out_size,
                         flags,
                         BitsFromFloat(1e-5f),
                         {}});
  }

  // Operand of norms and biases, wide enough for all.
  std::vector<float> ones = std::vector<float>(4096, 0.5f);

 private:
  struct Calls {
    size_t count = 0;
    double least_ms = 1e300;
  };

  Options options_;
  Pool pool_;
  std::map<std::string, Calls> calls_;  // by kind of kernel
};

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_BENCH_STEP_H_
