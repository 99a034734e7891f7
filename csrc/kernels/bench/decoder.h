// Decode steps and prefills of the decoder of the SmolVLM-256M shape.
#ifndef PYVLM_KERNELS_BENCH_DECODER_H_
#define PYVLM_KERNELS_BENCH_DECODER_H_

#include "csrc/kernels/bench/step.h"

namespace pyvlm::kernels {

template <typename W>
class DecoderBench {
  // Caches stay f16 beside 8-bit weights.
  using C = std::conditional_t<std::is_same_v<W, int8_t>, Half, W>;

 public:
  explicit DecoderBench(const Options& options) : step_(options) {
    for (size_t i = 0; i < kLayers; ++i) {
      layers_.push_back({Weights<W>(kQkv, kHidden), Weights<W>(kHidden, kHidden),
                         Weights<W>(2 * kInner, kHidden), Weights<W>(kHidden, kInner)});
    }
    head_ = Weights<W>(kVocab, kHidden);
    const size_t cache = kLayers * kSlots * kKvHeads * kCapacity * kHeadDim;
    k_cache_ = Weights<C>(cache / kHeadDim, kHeadDim);
    v_cache_ = k_cache_;
    rope_ = Noise(kCapacity * kHeadDim, 1.0f);
    hidden_.resize(kMaxRows * kHidden);
    second_ = normed_ = attention_ = hidden_;
    qkv_.resize(kMaxRows * kQkv);
    inner_.resize(kMaxRows * kInner);
    logits_.resize(8 * kVocab);
    for (size_t i = 0; i < 8; ++i) slots_.push_back(static_cast<int32_t>(i));
    positions_.assign(8, kPosition);
  }

  void MeasureDecode(size_t batch, size_t repeat) {
    const auto r = step_.Measure([&] { DecoderStep(batch); }, &hidden_, repeat);
    const size_t weights = LinearMacs() + kHidden * kVocab;
    const size_t cached = batch * kLayers * 2 * kKvHeads * (kPosition + 1) * kHeadDim;
    const double bytes =
        static_cast<double>(weights) * kBytesPerWeight<W> + static_cast<double>(cached * sizeof(C));
    std::printf("decode B=%zu at %zu: best %.2f ms, floor %.2f ms = %.0f tok/s, %.1f GB/s\n", batch,
                kPosition, r.best_ms, r.floor_ms, static_cast<double>(batch) * 1e3 / r.floor_ms,
                bytes / r.floor_ms / 1e6);
    step_.PrintSplit(logits_);
  }

  void MeasurePrefill(size_t rows, size_t repeat) {
    const auto r = step_.Measure([&] { DecoderStep(rows); }, &hidden_, repeat);
    std::printf("prefill %zu: best %.0f ms, floor %.0f ms = %.0f tok/s, linear %.0f GFLOP/s\n",
                rows, r.best_ms, r.floor_ms, static_cast<double>(rows) * 1e3 / r.floor_ms,
                2.0 * static_cast<double>(LinearMacs() * rows) / r.linear_floor_ms / 1e6);
    step_.PrintSplit(logits_);
  }

 private:
  static constexpr size_t kHidden = 576, kInner = 1536, kHeads = 9, kKvHeads = 3, kHeadDim = 64;
  static constexpr size_t kVocab = 49280, kLayers = 30, kCapacity = 1024, kSlots = 8,
                          kMaxRows = 512;
  static constexpr size_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kPosition = 512;

  struct Layer {
    std::vector<W> qkv, o, gate_up, down;
  };

  // In prefill the norm is a dispatch of its own, but for q8, whose shares are rows.
  void NormedLinear(const char* label, size_t rows, std::vector<float>& x, std::vector<W>& matrix,
                    std::vector<float>& y, size_t out_size, size_t flags, size_t count) {
    if (rows <= 8 || std::is_same_v<W, int8_t>) {
      step_.Linear(label, rows, x, matrix, x, y, kHidden, out_size, flags | kRmsNorm, count);
      return;
    }
    step_.Call("norm", "pyvlm_rms_norm", 8,
               RmsNormParams{View<const float>(x),
                             View<const float>(step_.ones),
                             View<float>(normed_),
                             rows,
                             kHidden,
                             BitsFromFloat(1e-5f),
                             {}});
    step_.Linear(label, rows, normed_, matrix, x, y, kHidden, out_size, flags, count);
  }

  void Attention(size_t layer, size_t rows) {
    const float scale = 0.125f;
    if (rows <= 8) {
      step_.Call("attention", Suffixed<C>("pyvlm_attn_decode"), rows * kKvHeads,
                 AttnDecodeParams<C>{View<const float>(qkv_),
                                     View<C>(k_cache_),
                                     View<C>(v_cache_),
                                     View<const int32_t>(slots_),
                                     View<const int32_t>(positions_),
                                     View<const float>(rope_),
                                     View<float>(attention_),
                                     layer,
                                     rows,
                                     kHeads,
                                     kKvHeads,
                                     kHeadDim,
                                     kSlots,
                                     kCapacity,
                                     BitsFromFloat(scale),
                                     {}});
      return;
    }
    step_.Call("kv write", Suffixed<C>("pyvlm_kv_write"), 4,
               KvWriteParams<C>{View<const float>(qkv_),
                                View<C>(k_cache_),
                                View<C>(v_cache_),
                                View<const float>(rope_),
                                layer,
                                0,
                                0,
                                rows,
                                kHeads,
                                kKvHeads,
                                kHeadDim,
                                kSlots,
                                kCapacity,
                                {}});
    step_.Call("attention", Suffixed<C>("pyvlm_attn_prefill"), kKvHeads * ((rows + 31) / 32),
               AttnPrefillParams<C>{View<const float>(qkv_),
                                    View<const C>(k_cache_),
                                    View<const C>(v_cache_),
                                    View<const float>(rope_),
                                    View<float>(attention_),
                                    layer,
                                    0,
                                    0,
                                    rows,
                                    kHeads,
                                    kKvHeads,
                                    kHeadDim,
                                    kSlots,
                                    kCapacity,
                                    BitsFromFloat(scale),
                                    {}});
  }

  void DecoderStep(size_t rows) {
    const bool decode = rows <= 8;
    const size_t narrow = decode ? 4 : 8, wide = 8;
    for (size_t i = 0; i < kLayers; ++i) {
      Layer& layer = layers_[i];
      NormedLinear("*qkv", rows, hidden_, layer.qkv, qkv_, kQkv, 0, narrow);
      Attention(i, rows);
      step_.Linear("*o", rows, attention_, layer.o, hidden_, second_, kHidden, kHidden, kResidual,
                   narrow);
      NormedLinear("*gate/up", rows, second_, layer.gate_up, inner_, 2 * kInner, kSwiGlu, wide);
      step_.Linear("*down", rows, inner_, layer.down, second_, hidden_, kInner, kHidden, kResidual,
                   narrow);
    }
    step_.Linear("head", decode ? rows : 1, hidden_, head_, hidden_, logits_, kHidden, kVocab,
                 kRmsNorm, 40, decode ? 0 : (rows - 1) * kHidden);
  }

  static constexpr size_t LinearMacs() {
    return kLayers * (kHidden * kQkv + kHidden * kHidden + 3 * kHidden * kInner);
  }

  Step<W> step_;
  std::vector<Layer> layers_;
  std::vector<W> head_;
  std::vector<C> k_cache_, v_cache_;
  std::vector<float> rope_, hidden_, second_, normed_, attention_, qkv_, inner_, logits_;
  std::vector<int32_t> slots_, positions_;
};

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_BENCH_DECODER_H_
