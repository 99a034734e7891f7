// The vision tower and connector of the SmolVLM-256M shape on one tile.
#ifndef PYVLM_KERNELS_BENCH_VISION_H_
#define PYVLM_KERNELS_BENCH_VISION_H_

#include "csrc/kernels/bench/step.h"

namespace pyvlm::kernels {

template <typename W>
class VisionBench {
 public:
  explicit VisionBench(const Options& options) : step_(options) {
    patch_ = Weights<W>(kWidth, kPatchDim);

    connector_ = Weights<W>(kHidden, kJoined);
    for (size_t i = 0; i < kLayers; ++i) {
      layers_.push_back({Weights<W>(3 * kWidth, kWidth), Weights<W>(kWidth, kWidth),
                         Weights<W>(kInner, kWidth), Weights<W>(kWidth, kInner)});
    }
    patches_.resize(kPatches * kPatchDim);
    hidden_.resize(kPatches * kWidth);
    normed_ = second_ = attention_ = shuffled_ = hidden_;
    qkv_.resize(kPatches * 3 * kWidth);
    inner_.resize(kPatches * kInner);
    rows_.resize(kTileRows * kHidden);
    table_.assign((kGrid + 1) * kGrid, 3);
    position_ = Noise(kPatches * kWidth, 0.1f);
  }

  void Measure(size_t repeat) {
    const auto tile = [&] {
      step_.Linear("patch", kPatches, patches_, patch_, patches_, hidden_, kPatchDim, kWidth, kBias,
                   8);
      step_.Call("position", "pyvlm_add_position", 8,
                 AddPositionParams{View<float>(hidden_),
                                   View<const float>(position_),
                                   View<const int32_t>(table_),
                                   View<const int32_t>(valid_),
                                   kPatches,
                                   kGrid,
                                   kWidth,
                                   {}});
      for (auto& layer : layers_) VisionBlock(layer);
      LayerNorm(hidden_, normed_);
      step_.Call(
          "shuffle", "pyvlm_pixel_shuffle", 4,
          PixelShuffleParams{
              View<const float>(normed_), View<float>(shuffled_), kGrid, kWidth, kShuffle, {}});
      step_.Linear("connector", kTileRows, shuffled_, connector_, rows_, rows_, kJoined, kHidden, 0,
                   8);
    };
    const auto r = step_.Measure(tile, &patches_, repeat);
    const double macs =
        static_cast<double>(kLayers * kPatches) * (4.0 * kWidth * kWidth + 2.0 * kWidth * kInner);
    std::printf("vision tile: best %.0f ms, floor %.0f ms, linear %.0f GFLOP/s\n", r.best_ms,
                r.floor_ms, 2 * macs / r.linear_floor_ms / 1e6);
    step_.PrintSplit(rows_);
  }

 private:
  static constexpr size_t kWidth = 768, kHeads = 12, kGrid = 32, kPatches = kGrid * kGrid;
  static constexpr size_t kInner = 3072, kLayers = 12, kPatchDim = 768, kShuffle = 4;
  static constexpr size_t kTileRows = kPatches / (kShuffle * kShuffle), kHidden = 576;
  static constexpr size_t kJoined = kWidth * kShuffle * kShuffle;

  struct Layer {
    std::vector<W> qkv, o, fc1, fc2;
  };

  void LayerNorm(std::vector<float>& x, std::vector<float>& y) {
    step_.Call("norm", "pyvlm_layer_norm", 8,
               LayerNormParams{View<const float>(x),
                               View<const float>(step_.ones),
                               View<const float>(step_.ones),
                               View<float>(y),
                               kPatches,
                               kWidth,
                               BitsFromFloat(1e-6f),
                               {}});
  }

  void VisionBlock(Layer& layer) {
    const size_t dim = kWidth / kHeads;
    LayerNorm(hidden_, normed_);
    step_.Linear("*qkv", kPatches, normed_, layer.qkv, normed_, qkv_, kWidth, 3 * kWidth, kBias, 8);
    step_.Call("attention", "pyvlm_attn_full", kHeads * kPatches / 32,
               AttnFullParams{View<const float>(qkv_),
                              View<const int32_t>(valid_),
                              View<float>(attention_),
                              kPatches,
                              kGrid,
                              kHeads,
                              dim,
                              BitsFromFloat(0.125f),
                              {}});
    step_.Linear("*o", kPatches, attention_, layer.o, hidden_, second_, kWidth, kWidth,
                 kBias | kResidual, 8);
    LayerNorm(second_, normed_);
    step_.Linear("*fc1", kPatches, normed_, layer.fc1, normed_, inner_, kWidth, kInner,
                 kBias | kGelu, 8);
    step_.Linear("*fc2", kPatches, inner_, layer.fc2, second_, hidden_, kInner, kWidth,
                 kBias | kResidual, 8);
  }

  Step<W> step_;
  std::vector<Layer> layers_;
  std::vector<W> patch_, connector_;
  std::vector<float> position_, patches_, hidden_, normed_, second_, qkv_, attention_, inner_;
  std::vector<float> shuffled_, rows_;
  std::vector<int32_t> valid_{kGrid, kGrid}, table_;
};

}  // namespace pyvlm::kernels

#endif  // PYVLM_KERNELS_BENCH_VISION_H_
