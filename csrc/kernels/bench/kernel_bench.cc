// Times the kernels on the SmolVLM-256M shape with random weights, without IREE.
//
//   kernel_bench [--threads N] [--repeat N] [--f32] [--isa scalar|avx2] [decode] [prefill] [vision]
//
// The step is cut into the same dispatches as the compiled program. Prints the least time of all
// repeats, and its floor: for each kind of kernel the least time of one call, times the number of
// calls. Other load only adds time, so on a busy machine the floor is the number to compare; with
// --threads 1 it counts the thread's CPU time, which a preemption does not lengthen. The second
// line splits the floor by kind of kernel; a star marks those counted in the linear GFLOP/s.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/pack.h"
#include "csrc/kernels/params.h"
#include "csrc/kernels/registry.h"

namespace pyvlm::kernels {
namespace {

constexpr size_t kHidden = 576, kInner = 1536, kHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr size_t kVocab = 49280, kLayers = 30, kCapacity = 1024, kSlots = 8, kMaxRows = 512;
constexpr size_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kPosition = 512;
constexpr size_t kVisionWidth = 768, kVisionHeads = 12, kGrid = 32, kPatches = kGrid * kGrid;
constexpr size_t kVisionInner = 3072, kVisionLayers = 12, kPatchDim = 768, kShuffle = 4;
constexpr size_t kTileRows = kPatches / (kShuffle * kShuffle);

double NowMs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

double ThreadCpuMs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Workers that spin between calls and take shares from a common counter.
class Pool {
 public:
  explicit Pool(size_t num_threads) {
    for (size_t i = 1; i < num_threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    stop_ = true;
    for (auto& worker : workers_) worker.join();
  }

  void Run(size_t count, const std::function<void(size_t)>& share) {
    share_ = &share;
    count_ = count;
    next_ = 0;
    finished_ = 0;
    ++generation_;
    TakeShares();
    while (finished_ != workers_.size()) {
    }
  }

 private:
  void TakeShares() {
    for (size_t i = next_++; i < count_; i = next_++) (*share_)(i);
  }
  void Work() {
    for (size_t seen = 0;; ++seen) {
      while (generation_ == seen) {
        if (stop_) return;
      }
      TakeShares();
      ++finished_;
    }
  }

  std::vector<std::thread> workers_;
  const std::function<void(size_t)>* share_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0}, finished_{0}, generation_{0};
  std::atomic<bool> stop_{false};
};

struct Options {
  size_t num_threads = 2, repeat = 20;
  bool f32 = false, decode = false, prefill = false, vision = false;
  Isa isa = BestIsa();
};

std::vector<float> Noise(size_t count, float scale) {
  std::vector<float> values(count);
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * scale;
  }
  return values;
}

// Panels of random weights; the same noise from different offsets, since packing order is moot.
template <typename W>
std::vector<W> Weights(size_t out_size, size_t in_size) {
  std::vector<W> panels(PanelElements(out_size, in_size));
  const auto noise = Noise(65536, 1.7f / std::sqrt(static_cast<float>(in_size)));
  std::vector<W> narrow(noise.size());
  for (size_t i = 0; i < noise.size(); ++i) FromFloat(noise[i], &narrow[i]);
  for (size_t i = 0; i < panels.size(); ++i) panels[i] = narrow[(i + i / 65536 * 77) % 65536];
  return panels;
}

template <typename T>
Buffer<T> View(std::vector<std::remove_const_t<T>>& values, size_t offset = 0) {
  return {values.data(), offset};
}

template <typename W>
class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), pool_(options.num_threads) {}

  void Run() {
    if (options_.decode || options_.prefill) {
      AllocateDecoder();
      if (options_.decode) {
        for (const size_t batch : {1, 4, 8}) MeasureDecode(batch);
      }
      if (options_.prefill) {
        for (const size_t rows : {256, 512}) MeasurePrefill(rows);
      }
      layers_.clear();
    }
    if (options_.vision) MeasureVision();
  }

 private:
  struct Layer {
    std::vector<W> qkv, o, gate_up, down;
  };
  struct VisionLayer {
    std::vector<W> qkv, o, fc1, fc2;
  };

  std::string Typed(const char* name) const {
    return name + std::string(options_.f32 ? "_f32" : "_f16");
  }

  KernelFn Find(const std::string& name) const {
    void* found = FindKernel(name, options_.isa);
    if (found == nullptr) found = FindKernel(name, Isa::scalar);
    if (found == nullptr) std::abort();
    return reinterpret_cast<KernelFn>(found);
  }

  template <typename P>
  void Call(const char* label, const std::string& name, size_t count, P params) {
    const KernelFn kernel = Find(name);
    double (*const clock)() = options_.num_threads == 1 ? ThreadCpuMs : NowMs;
    const double start = clock();
    pool_.Run(count, [&](size_t id) {
      P own = params;
      own.share = {id, count};
      if (kernel(&own, nullptr, nullptr) != kOk) std::abort();
    });
    const double elapsed = clock() - start;
    Calls& calls = calls_[label];
    ++calls.count;
    calls.least_ms = std::min(calls.least_ms, elapsed);
  }

  void Linear(const char* label, size_t rows, std::vector<float>& x, std::vector<W>& matrix,
              std::vector<float>& residual, std::vector<float>& y, size_t in_size, size_t out_size,
              size_t flags, size_t count, size_t x_offset = 0) {
    Call(label, Typed("pyvlm_linear"), count,
         LinearParams<W>{View<const float>(x, x_offset),
                         View<const float>(ones_),
                         View<const W>(matrix),
                         View<const float>(ones_),
                         View<const float>(residual),
                         View<float>(y),
                         rows,
                         in_size,
                         out_size,
                         flags,
                         BitsFromFloat(1e-5f),
                         {}});
  }

  // In prefill the norm is a dispatch of its own.
  void NormedLinear(const char* label, size_t rows, std::vector<float>& x, std::vector<W>& matrix,
                    std::vector<float>& y, size_t out_size, size_t flags, size_t count) {
    if (rows <= 8) {
      Linear(label, rows, x, matrix, x, y, kHidden, out_size, flags | kRmsNorm, count);
      return;
    }
    Call("norm", "pyvlm_rms_norm", 8,
         RmsNormParams{View<const float>(x),
                       View<const float>(ones_),
                       View<float>(normed_),
                       rows,
                       kHidden,
                       BitsFromFloat(1e-5f),
                       {}});
    Linear(label, rows, normed_, matrix, x, y, kHidden, out_size, flags, count);
  }

  void AllocateDecoder() {
    for (size_t i = 0; i < kLayers; ++i) {
      layers_.push_back({Weights<W>(kQkv, kHidden), Weights<W>(kHidden, kHidden),
                         Weights<W>(2 * kInner, kHidden), Weights<W>(kHidden, kInner)});
    }
    head_ = Weights<W>(kVocab, kHidden);
    const size_t cache = kLayers * kSlots * kKvHeads * kCapacity * kHeadDim;
    k_cache_ = Weights<W>(cache / kHeadDim, kHeadDim);
    v_cache_ = k_cache_;
    rope_ = Noise(kCapacity * kHeadDim, 1.0f);
    ones_.assign(kVisionInner, 1.0f);
    hidden_.resize(kMaxRows * kHidden);
    second_ = normed_ = attention_ = hidden_;
    qkv_.resize(kMaxRows * kQkv);
    inner_.resize(kMaxRows * kInner);
    logits_.resize(8 * kVocab);
    for (size_t i = 0; i < 8; ++i) slots_.push_back(static_cast<int32_t>(i));
    positions_.assign(8, kPosition);
  }

  void Attention(size_t layer, size_t rows) {
    const float scale = 0.125f;
    if (rows <= 8) {
      Call("attention", Typed("pyvlm_attn_decode"), rows * kKvHeads,
           AttnDecodeParams<W>{View<const float>(qkv_),
                               View<W>(k_cache_),
                               View<W>(v_cache_),
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
    Call("kv write", Typed("pyvlm_kv_write"), 4,
         KvWriteParams<W>{View<const float>(qkv_),
                          View<W>(k_cache_),
                          View<W>(v_cache_),
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
    Call("attention", Typed("pyvlm_attn_prefill"), kKvHeads * ((rows + 31) / 32),
         AttnPrefillParams<W>{View<const float>(qkv_),
                              View<const W>(k_cache_),
                              View<const W>(v_cache_),
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
      Linear("*o", rows, attention_, layer.o, hidden_, second_, kHidden, kHidden, kResidual,
             narrow);
      NormedLinear("*gate/up", rows, second_, layer.gate_up, inner_, 2 * kInner, kSwiGlu, wide);
      Linear("*down", rows, inner_, layer.down, second_, hidden_, kInner, kHidden, kResidual,
             narrow);
    }
    Linear("head", decode ? rows : 1, hidden_, head_, hidden_, logits_, kHidden, kVocab, kRmsNorm,
           40, decode ? 0 : (rows - 1) * kHidden);
  }

  struct Result {
    double best_ms, floor_ms, linear_floor_ms;
  };

  // Runs of a step that starts from fresh noise.
  Result Measure(const std::function<void()>& step, std::vector<float>* input, size_t repeat) {
    Result result{1e300, 0, 0};
    const size_t runs = std::max<size_t>(repeat, 2) + 1;
    calls_.clear();
    for (size_t i = 0; i < runs; ++i) {
      *input = Noise(input->size(), 1.0f);
      const double start = NowMs();
      step();
      result.best_ms = std::min(result.best_ms, NowMs() - start);
    }
    for (auto& [label, calls] : calls_) {
      const double floor = calls.least_ms * static_cast<double>(calls.count / runs);
      result.floor_ms += floor;
      if (label[0] == '*') result.linear_floor_ms += floor;
    }
    for (auto& [label, calls] : calls_) calls.count /= runs;
    return result;
  }

  void PrintSplit(const std::vector<float>& output) const {
    for (const auto& [label, calls] : calls_) {
      std::printf("  %s %.2f", label.c_str(), calls.least_ms * static_cast<double>(calls.count));
    }
    for (const float value : output) {
      if (!std::isfinite(value)) std::abort();
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  static constexpr size_t LinearMacs() {
    return kLayers * (kHidden * kQkv + kHidden * kHidden + 3 * kHidden * kInner);
  }

  void MeasureDecode(size_t batch) {
    const Result r = Measure([&] { DecoderStep(batch); }, &hidden_, options_.repeat);
    const size_t weights = LinearMacs() + kHidden * kVocab;
    const size_t cached = batch * kLayers * 2 * kKvHeads * (kPosition + 1) * kHeadDim;
    const double bytes = static_cast<double>((weights + cached) * sizeof(W));
    std::printf("decode B=%zu at %zu: best %.2f ms, floor %.2f ms = %.0f tok/s, %.1f GB/s\n", batch,
                kPosition, r.best_ms, r.floor_ms, static_cast<double>(batch) * 1e3 / r.floor_ms,
                bytes / r.floor_ms / 1e6);
    PrintSplit(logits_);
  }

  void MeasurePrefill(size_t rows) {
    const Result r = Measure([&] { DecoderStep(rows); }, &hidden_, options_.repeat / 5);
    std::printf("prefill %zu: best %.0f ms, floor %.0f ms = %.0f tok/s, linear %.0f GFLOP/s\n",
                rows, r.best_ms, r.floor_ms, static_cast<double>(rows) * 1e3 / r.floor_ms,
                2.0 * static_cast<double>(LinearMacs() * rows) / r.linear_floor_ms / 1e6);
    PrintSplit(logits_);
  }

  void LayerNorm(std::vector<float>& x, std::vector<float>& y) {
    Call("norm", "pyvlm_layer_norm", 8,
         LayerNormParams{View<const float>(x),
                         View<const float>(ones_),
                         View<const float>(ones_),
                         View<float>(y),
                         kPatches,
                         kVisionWidth,
                         BitsFromFloat(1e-6f),
                         {}});
  }

  struct VisionBuffers {
    std::vector<float> patches, hidden, normed, second, qkv, attention, inner, shuffled, rows;
    std::vector<int32_t> valid{kGrid, kGrid}, table;
  };

  void VisionBlock(VisionLayer& layer, VisionBuffers& b) {
    const size_t dim = kVisionWidth / kVisionHeads;
    LayerNorm(b.hidden, b.normed);
    Linear("*qkv", kPatches, b.normed, layer.qkv, b.normed, b.qkv, kVisionWidth, 3 * kVisionWidth,
           kBias, 8);
    Call("attention", "pyvlm_attn_full", kVisionHeads * kPatches / 32,
         AttnFullParams{View<const float>(b.qkv),
                        View<const int32_t>(b.valid),
                        View<float>(b.attention),
                        kPatches,
                        kGrid,
                        kVisionHeads,
                        dim,
                        BitsFromFloat(0.125f),
                        {}});
    Linear("*o", kPatches, b.attention, layer.o, b.hidden, b.second, kVisionWidth, kVisionWidth,
           kBias | kResidual, 8);
    LayerNorm(b.second, b.normed);
    Linear("*fc1", kPatches, b.normed, layer.fc1, b.normed, b.inner, kVisionWidth, kVisionInner,
           kBias | kGelu, 8);
    Linear("*fc2", kPatches, b.inner, layer.fc2, b.second, b.hidden, kVisionInner, kVisionWidth,
           kBias | kResidual, 8);
  }

  void MeasureVision() {
    ones_.assign(kVisionInner, 0.5f);
    auto patch = Weights<W>(kVisionWidth, kPatchDim);
    const size_t joined = kVisionWidth * kShuffle * kShuffle;
    auto connector = Weights<W>(kHidden, joined);
    std::vector<VisionLayer> layers;
    for (size_t i = 0; i < kVisionLayers; ++i) {
      layers.push_back(
          {Weights<W>(3 * kVisionWidth, kVisionWidth), Weights<W>(kVisionWidth, kVisionWidth),
           Weights<W>(kVisionInner, kVisionWidth), Weights<W>(kVisionWidth, kVisionInner)});
    }
    VisionBuffers b;
    b.patches.resize(kPatches * kPatchDim);
    b.hidden.resize(kPatches * kVisionWidth);
    b.normed = b.second = b.attention = b.shuffled = b.hidden;
    b.qkv.resize(kPatches * 3 * kVisionWidth);
    b.inner.resize(kPatches * kVisionInner);
    b.rows.resize(kTileRows * kHidden);
    b.table.assign((kGrid + 1) * kGrid, 3);
    auto position = Noise(kPatches * kVisionWidth, 0.1f);
    const auto tile = [&] {
      Linear("patch", kPatches, b.patches, patch, b.patches, b.hidden, kPatchDim, kVisionWidth,
             kBias, 8);
      Call("position", "pyvlm_add_position", 8,
           AddPositionParams{View<float>(b.hidden),
                             View<const float>(position),
                             View<const int32_t>(b.table),
                             View<const int32_t>(b.valid),
                             kPatches,
                             kGrid,
                             kVisionWidth,
                             {}});
      for (auto& layer : layers) VisionBlock(layer, b);
      LayerNorm(b.hidden, b.normed);
      Call("shuffle", "pyvlm_pixel_shuffle", 4,
           PixelShuffleParams{View<const float>(b.normed),
                              View<float>(b.shuffled),
                              kGrid,
                              kVisionWidth,
                              kShuffle,
                              {}});
      Linear("connector", kTileRows, b.shuffled, connector, b.rows, b.rows, joined, kHidden, 0, 8);
    };
    const Result r = Measure(tile, &b.patches, options_.repeat / 8);
    const double macs = static_cast<double>(kVisionLayers * kPatches) *
                        (4.0 * kVisionWidth * kVisionWidth + 2.0 * kVisionWidth * kVisionInner);
    std::printf("vision tile: best %.0f ms, floor %.0f ms, linear %.0f GFLOP/s\n", r.best_ms,
                r.floor_ms, 2 * macs / r.linear_floor_ms / 1e6);
    PrintSplit(b.rows);
  }

  Options options_;
  Pool pool_;
  std::vector<Layer> layers_;
  std::vector<W> head_, k_cache_, v_cache_;
  std::vector<float> rope_, ones_, hidden_, second_, normed_, attention_, qkv_, inner_, logits_;
  std::vector<int32_t> slots_, positions_;

  struct Calls {
    size_t count = 0;
    double least_ms = 1e300;
  };
  std::map<std::string, Calls> calls_;  // by kind of kernel
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--threads" && has_value) {
      options->num_threads = std::strtoul(argv[++i], nullptr, 10);
    } else if (argument == "--repeat" && has_value) {
      options->repeat = std::strtoul(argv[++i], nullptr, 10);
    } else if (argument == "--isa" && has_value) {
      options->isa = std::string(argv[++i]) == "scalar" ? Isa::scalar : Isa::avx2;
    } else if (argument == "--f32") {
      options->f32 = true;
    } else if (argument == "decode") {
      options->decode = true;
    } else if (argument == "prefill") {
      options->prefill = true;
    } else if (argument == "vision") {
      options->vision = true;
    } else {
      return false;
    }
  }
  if (!options->decode && !options->prefill && !options->vision) {
    options->decode = options->prefill = options->vision = true;
  }
  return options->num_threads > 0 && IsSupported(options->isa);
}

}  // namespace
}  // namespace pyvlm::kernels

int main(int argc, char** argv) {
  using namespace pyvlm::kernels;
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: kernel_bench [--threads N] [--repeat N] [--f32] [--isa scalar|avx2] "
                 "[decode] [prefill] [vision]\n");
    return 2;
  }
  options.f32 ? Bench<float>(options).Run() : Bench<pyvlm::kernels::Half>(options).Run();
  return 0;
}
