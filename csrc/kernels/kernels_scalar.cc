#include "csrc/kernels/kernels_scalar.h"

#include "csrc/kernels/half.h"
#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {

std::span<const KernelEntry> ScalarKernels() {
  static constexpr KernelEntry kEntries[] = {
      {"pyvlm_embed_f16", scalar::Embed<Half>},
      {"pyvlm_embed_f32", scalar::Embed<float>},
      {"pyvlm_embed_q8", scalar::EmbedQ8},
      {"pyvlm_rms_norm", scalar::RmsNorm},
      {"pyvlm_layer_norm", scalar::LayerNorm},
      {"pyvlm_linear_f16", scalar::Linear<Half>},
      {"pyvlm_linear_f32", scalar::Linear<float>},
      {"pyvlm_linear_q8", scalar::LinearQ8},
      {"pyvlm_linear_rows_f16", scalar::LinearRows<Half>},
      {"pyvlm_linear_rows_f32", scalar::LinearRows<float>},
      {"pyvlm_linear_rows_q8", scalar::LinearRowsQ8},
      {"pyvlm_kv_write_f16", scalar::KvWrite<Half>},
      {"pyvlm_kv_write_f32", scalar::KvWrite<float>},
      {"pyvlm_attn_prefill_f16", scalar::AttnPrefill<Half>},
      {"pyvlm_attn_prefill_f32", scalar::AttnPrefill<float>},
      {"pyvlm_attn_decode_f16", scalar::AttnDecode<Half>},
      {"pyvlm_attn_decode_f32", scalar::AttnDecode<float>},
      {"pyvlm_attn_full", scalar::AttnFull},
      {"pyvlm_add_position", scalar::AddPosition},
      {"pyvlm_pixel_shuffle", scalar::PixelShuffle},
      {"pyvlm_rows_from_f16", scalar::RowsFromF16},
  };
  return kEntries;
}

}  // namespace pyvlm::kernels
