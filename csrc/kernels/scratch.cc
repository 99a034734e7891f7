#include "csrc/kernels/scratch.h"

#include <cstdint>
#include <cstdlib>

namespace pyvlm::kernels {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxFloats = PTRDIFF_MAX / sizeof(float) - kAlignment;

struct Block {
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { std::free(data); }

  float* Reserve(size_t num_floats) {
    if (data != nullptr && num_floats <= capacity) return data;
    if (num_floats > kMaxFloats) return nullptr;
    std::free(data);
    const size_t bytes = (num_floats * sizeof(float) / kAlignment + 1) * kAlignment;
    data = static_cast<float*>(std::aligned_alloc(kAlignment, bytes));
    capacity = data != nullptr ? bytes / sizeof(float) : 0;
    return data;
  }

  float* data = nullptr;
  size_t capacity = 0;
};

thread_local Block blocks[static_cast<size_t>(ScratchSlot::count)];

}  // namespace

float* ThreadScratch(ScratchSlot slot, size_t num_floats) {
  return blocks[static_cast<size_t>(slot)].Reserve(num_floats);
}

}  // namespace pyvlm::kernels
