// Shared by the kernel tests: guarded arrays, calls over all shares, error bounds.
#ifndef PYVLM_KERNELS_KERNEL_TESTING_H_
#define PYVLM_KERNELS_KERNEL_TESTING_H_

#include <doctest/doctest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {

// An array at an odd address (aligned to its element only) with guard elements on both sides.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t size) : size_(size), storage_(size + 2 * kGuard) {
    std::memset(static_cast<void*>(storage_.data()), 0x5a, storage_.size() * sizeof(T));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() { return storage_.data() + kGuard; }
  const T* data() const { return storage_.data() + kGuard; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  // Base and offset differ from data() and 0, so that a kernel that drops the offset fails.
  Buffer<T> buffer() { return {storage_.data() + 1, kGuard - 1}; }
  Buffer<const T> buffer() const { return {storage_.data() + 1, kGuard - 1}; }
  Buffer<const T> input() const { return buffer(); }

  bool IsIntact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(storage_.data());
    const size_t guard = kGuard * sizeof(T), end = (kGuard + size_) * sizeof(T);
    for (size_t i = 0; i < guard; ++i) {
      if (bytes[i] != 0x5a || bytes[end + i] != 0x5a) return false;
    }
    return true;
  }
  bool SameBits(const Guarded& other) const {
    return size_ == other.size_ && std::memcmp(data(), other.data(), size_ * sizeof(T)) == 0;
  }

 private:
  static constexpr size_t kGuard = 17;  // odd: 4-byte elements end up misaligned for vectors
  size_t size_;
  std::vector<T> storage_;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float Uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  size_t Below(size_t limit) { return engine_() % limit; }
  std::vector<float> Floats(size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = Uniform(-scale, scale);
    return values;
  }
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    std::shuffle(items->begin(), items->end(), engine_);
  }

 private:
  std::mt19937 engine_;
};

// Treats denormal floats as zero while it lives, as IREE's workers do.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

template <typename W>
std::vector<W> ConvertTo(const std::vector<float>& values) {
  std::vector<W> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) FromFloat(values[i], &out[i]);
  return out;
}

template <typename W>
std::string Suffixed(const std::string& name) {
  if (std::is_same_v<W, int8_t>) return name + "_q8";
  return name + (std::is_same_v<W, Half> ? "_f16" : "_f32");
}

inline size_t BitsOf(float value) { return BitsFromFloat(value); }

inline std::vector<Isa> SupportedIsas() {
  return IsSupported(Isa::avx2) ? std::vector{Isa::scalar, Isa::avx2} : std::vector{Isa::scalar};
}

// The kernel of this set, or the portable one where the set has none (as FindKernel(name) does).
inline KernelFn KernelOf(const std::string& name, Isa isa) {
  void* found = FindKernel(name, isa);
  if (found == nullptr) found = FindKernel(name, Isa::scalar);
  REQUIRE_MESSAGE(found != nullptr, name);
  return reinterpret_cast<KernelFn>(found);
}

// Runs all shares, in an order unlike the natural one.
template <typename P>
void RunShares(KernelFn kernel, P params, size_t workgroup_count) {
  std::vector<size_t> order(workgroup_count);
  for (size_t i = 0; i < workgroup_count; ++i) order[i] = i;
  Random(static_cast<unsigned>(workgroup_count)).Shuffle(&order);
  for (const size_t id : order) {
    params.share = {id, workgroup_count};
    REQUIRE(kernel(&params, nullptr, nullptr) == kOk);
  }
}

// Runs each share on a thread of its own, as a device does.
template <typename P>
void RunAtOnce(KernelFn kernel, const P& params, size_t workgroup_count) {
  std::vector<int> statuses(workgroup_count, -1);
  std::vector<P> shares(workgroup_count, params);
  std::vector<std::thread> threads;
  for (size_t id = 0; id < workgroup_count; ++id) {
    shares[id].share = {id, workgroup_count};
    threads.emplace_back([&, id] { statuses[id] = kernel(&shares[id], nullptr, nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int status : statuses) REQUIRE(status == kOk);
}

// Largest |got - want| over `scale`, where scale is at least the largest |want|; NaN counts as inf.
inline double RelativeError(const float* got, const std::vector<double>& want, double floor = 0) {
  double largest = floor, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (std::isnan(difference)) return INFINITY;
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(want[i]));
  }
  return error == 0 ? 0 : error / largest;
}

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_KERNEL_TESTING_H_
