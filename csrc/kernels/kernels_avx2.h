// Entry points of the AVX2 kernels; see params.h for what each one computes.
#ifndef PYVLM_KERNELS_KERNELS_AVX2_H_
#define PYVLM_KERNELS_KERNELS_AVX2_H_

namespace pyvlm::kernels::avx2 {

template <typename W>
int Embed(void* params, void* context, void* reserved);
int RmsNorm(void* params, void* context, void* reserved);
int LayerNorm(void* params, void* context, void* reserved);
template <typename W>
int Linear(void* params, void* context, void* reserved);
template <typename W>
int LinearRows(void* params, void* context, void* reserved);
int LinearQ8(void* params, void* context, void* reserved);
int LinearRowsQ8(void* params, void* context, void* reserved);
template <typename W>
int KvWrite(void* params, void* context, void* reserved);
template <typename W>
int AttnPrefill(void* params, void* context, void* reserved);
template <typename W>
int AttnDecode(void* params, void* context, void* reserved);
int AttnFull(void* params, void* context, void* reserved);
int RowsFromF16(void* params, void* context, void* reserved);

}  // namespace pyvlm::kernels::avx2

#endif  // PYVLM_KERNELS_KERNELS_AVX2_H_
