// Thread-local work space of the kernels: worker stacks are small and sizes are dynamic.
#ifndef PYVLM_KERNELS_SCRATCH_H_
#define PYVLM_KERNELS_SCRATCH_H_

#include <cstddef>

namespace pyvlm::kernels {

enum class ScratchSlot : size_t { activations, panel, partial, attention, count };

// At least `num_floats` floats aligned to 64 bytes, contents undefined, owned by the calling thread
// and valid until its next request for the same slot. Grows only. Null if memory is exhausted.
float* ThreadScratch(ScratchSlot slot, size_t num_floats);

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_SCRATCH_H_
