#include "csrc/kernels/scratch.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <thread>

namespace pyvlm::kernels {
namespace {

TEST_CASE("scratch is aligned, kept, grows, and belongs to its thread") {
  float* small = ThreadScratch(ScratchSlot::panel, 3);
  CHECK(reinterpret_cast<uintptr_t>(small) % 64 == 0);
  CHECK(ThreadScratch(ScratchSlot::panel, 2) == small);
  float* large = ThreadScratch(ScratchSlot::panel, 100000);
  large[99999] = 1.0f;
  CHECK(ThreadScratch(ScratchSlot::partial, 100000) != large);
  float* other = nullptr;
  std::thread([&] { other = ThreadScratch(ScratchSlot::panel, 8); }).join();
  CHECK(other != large);
  CHECK(ThreadScratch(ScratchSlot::panel, SIZE_MAX / 4 + 1) == nullptr);
  CHECK(ThreadScratch(ScratchSlot::panel, 8) != nullptr);
}

}  // namespace
}  // namespace pyvlm::kernels
