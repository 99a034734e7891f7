// The physical layout of matrices for the kernels.
//
// Panels: a matrix [N, K] becomes [ceil(N/16)][K][16]; element (n, k) lies at
//   ((n / 16) * K + k) * 16 + n % 16
// and the lanes of rows n >= N in the last panel are zero.
//
// Gate/up panels: gate [I, K] and up [I, K] become [ceil(I/8)][K][16]; gate row i lies in lane i %
// 8 and up row i in lane 8 + i % 8 of panel i / 8; lanes of rows i >= I are zero. In calls of the
// linear kernels N is 2 * I.
#ifndef PYVLM_KERNELS_PACK_H_
#define PYVLM_KERNELS_PACK_H_

#include <cstddef>

#include "csrc/kernels/half.h"

namespace pyvlm::kernels {

size_t PanelElements(size_t num_rows, size_t width);
size_t GateUpPanelElements(size_t num_rows, size_t width);

// Sources are row-major and contiguous; `out` has room for the element count above. F32 -> F16
// rounds to nearest even. Instantiated for (float, float), (float, Half), (Half, Half).
template <typename From, typename To>
void PackPanels(const From* matrix, size_t num_rows, size_t width, To* out);
template <typename From, typename To>
void PackGateUp(const From* gate, const From* up, size_t num_rows, size_t width, To* out);

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_PACK_H_
