#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "csrc/engine/prepared_prefill.h"

namespace pyvlm::bindings {

// Views of the Python buffers behind one image. While it lives, their exporters keep the memory in
// place. Made and destroyed with the GIL held.
struct ImageBuffers {
  std::vector<pybind11::buffer_info> views;
};

// pyvlm._core.ImageInput
struct BoundImage {
  ImageInput input;
  std::shared_ptr<const ImageBuffers> buffers;  // null for cached rows
};

// pyvlm._core.PreparedPrefill. `native` may outlive this object, on the engine thread; the buffers
// are kept by this object, and by the engine's lease while it reads them.
struct BoundPrefill {
  std::shared_ptr<const PreparedPrefill> native;
  std::vector<std::shared_ptr<const ImageBuffers>> buffers;  // per image; null = borrows nothing
};

}  // namespace pyvlm::bindings
