// Times the kernels on the SmolVLM-256M shape with random weights, without IREE.
//
//   kernel_bench [--threads N] [--repeat N] [--f32|--q8] [--isa scalar|avx2] [decode] [prefill]
//   [vision]
//
// The step is cut into the same dispatches as the compiled program. Prints the least time of all
// repeats, and its floor: for each kind of kernel the least time of one call, times the number of
// calls. Other load only adds time, so on a busy machine the floor is the number to compare; with
// --threads 1 it counts the thread's CPU time, which a preemption does not lengthen. The second
// line splits the floor by kind of kernel; a star marks those counted in the linear GFLOP/s.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "csrc/kernels/bench/decoder.h"
#include "csrc/kernels/bench/step.h"
#include "csrc/kernels/bench/vision.h"

namespace pyvlm::kernels {
namespace {

template <typename W>
void Run(const Options& options) {
  if (options.decode || options.prefill) {
    DecoderBench<W> decoder(options);
    if (options.decode) {
      for (const size_t batch : {1, 4, 8}) decoder.MeasureDecode(batch, options.repeat);
    }
    if (options.prefill) {
      for (const size_t rows : {256, 512}) decoder.MeasurePrefill(rows, options.repeat / 5);
    }
  }
  if (options.vision) VisionBench<W>(options).Measure(options.repeat / 8);
}

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
    } else if (argument == "--q8") {
      options->q8 = true;
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
                 "usage: kernel_bench [--threads N] [--repeat N] [--f32|--q8] [--isa scalar|avx2] "
                 "[decode] [prefill] [vision]\n");
    return 2;
  }
  if (options.q8) {
    Run<int8_t>(options);
  } else {
    options.f32 ? Run<float>(options) : Run<Half>(options);
  }
  return 0;
}
