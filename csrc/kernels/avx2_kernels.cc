#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels_avx2.h"
#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {

// The table itself is compiled for any CPU: it is read before the CPU is known to have AVX2.
// Without add_position, pixel_shuffle and embed_q8: these mostly move memory, the portable ones do
// it as fast.
std::span<const KernelEntry> Avx2Kernels() {
  static constexpr KernelEntry kEntries[] = {
      {"pyvlm_embed_f16", avx2::Embed<Half>},
      {"pyvlm_embed_f32", avx2::Embed<float>},
      {"pyvlm_rms_norm", avx2::RmsNorm},
      {"pyvlm_layer_norm", avx2::LayerNorm},
      {"pyvlm_linear_f16", avx2::Linear<Half>},
      {"pyvlm_linear_f32", avx2::Linear<float>},
      {"pyvlm_linear_q8", avx2::LinearQ8},
      {"pyvlm_linear_rows_f16", avx2::LinearRows<Half>},
      {"pyvlm_linear_rows_f32", avx2::LinearRows<float>},
      {"pyvlm_linear_rows_q8", avx2::LinearRowsQ8},
      {"pyvlm_kv_write_f16", avx2::KvWrite<Half>},
      {"pyvlm_kv_write_f32", avx2::KvWrite<float>},
      {"pyvlm_attn_prefill_f16", avx2::AttnPrefill<Half>},
      {"pyvlm_attn_prefill_f32", avx2::AttnPrefill<float>},
      {"pyvlm_attn_decode_f16", avx2::AttnDecode<Half>},
      {"pyvlm_attn_decode_f32", avx2::AttnDecode<float>},
      {"pyvlm_attn_full", avx2::AttnFull},
      {"pyvlm_rows_from_f16", avx2::RowsFromF16},
  };
  return kEntries;
}

}  // namespace pyvlm::kernels
