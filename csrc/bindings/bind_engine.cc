#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/process_mark.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/errors.h"
#include "csrc/bindings/integer.h"
#include "csrc/bindings/prepared.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/iree_runner.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

std::optional<std::string> NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
    case FinishReason::none:
      break;
  }
  return std::nullopt;
}

// Whether the calling thread is the one that Python's signal handlers run on.
bool RunsSignalHandlers() {
  const py::module_ threading = py::module_::import("threading");
  return threading.attr("get_ident")().equal(threading.attr("main_thread")().attr("ident"));
}

// pyvlm._core.Engine: the native engine and the owners of the buffers that it borrows. A child of
// fork leaks both: the owners' own finalizers belong to the parent, too.
class BoundEngine {
 public:
  BoundEngine(std::shared_ptr<Runner> runner, const EngineOptions& options)
      : engine_(std::move(runner), options) {}

  // Joins the engine thread without the GIL; the owners go after it, with the GIL.
  ~BoundEngine() {
    py::gil_scoped_release release;
    engine_.Shutdown();
  }

  SeqId Submit(const BoundPrefill& prefill) {
    std::vector<LeaseId> leases;
    try {
      for (const auto& buffers : prefill.buffers) {
        if (!buffers) {
          leases.push_back(0);
          continue;
        }
        leases.push_back(++last_lease_);
        owners_.emplace(last_lease_, buffers);
      }
      // The caller's argument keeps the buffers alive meanwhile.
      py::gil_scoped_release release;
      return engine_.Submit(prefill.native, leases);
    } catch (...) {
      DropOwners(leases);
      throw;
    }
  }

  // What no id can be is an unknown one.
  void Cancel(Integer seq_id) {
    if (!seq_id.is_negative && !seq_id.is_huge) engine_.Cancel(seq_id.magnitude);
  }

  std::optional<BoundImage> CachedImage(const py::bytes& key) {
    auto rows = engine_.CachedImage(std::string(key));
    if (!rows) return std::nullopt;
    return BoundImage{.input = ImageInput::Cached(std::move(rows)), .buffers = nullptr};
  }

  // Sleeps until something comes. The main thread alone looks for signals in between, so that
  // Ctrl-C interrupts a long timeout: a signal wakes no waiter of a condition.
  std::vector<TokenOutput> WaitOutputs(double timeout_s) {
    using Clock = std::chrono::steady_clock;
    using namespace std::chrono_literals;
    constexpr double kLongest_s = 1e6;
    if (!(timeout_s >= 0.0 && timeout_s <= kLongest_s)) {  // NaN is neither
      throw Error(ErrorCode::kInvalidParameter,
                  "timeout_s must be 0 to 1000000 seconds, not " + std::to_string(timeout_s),
                  "timeout_s");
    }
    const auto timeout = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::duration<double>(timeout_s));
    const Clock::time_point deadline = Clock::now() + timeout;
    constexpr std::chrono::microseconds kSlice = 100ms;
    constexpr std::chrono::microseconds kLongest = 1h;
    const auto slice = timeout > kSlice && RunsSignalHandlers() ? kSlice : kLongest;
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
      Outputs outputs = WaitWithoutGil(std::clamp(left, {}, slice));
      DropOwners(outputs.released);
      if (!outputs.IsEmpty() || left <= slice) return std::move(outputs.tokens);
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

  EngineStats Stats() const { return engine_.Stats(); }

  void Shutdown() {
    if (mark_.IsInherited()) return;
    {
      py::gil_scoped_release release;
      engine_.Shutdown();
    }
    const Owners doomed = std::exchange(owners_, {});
  }

  int num_owners() const { return static_cast<int>(owners_.size()); }
  const RunnerInfo& info() const { return engine_.info(); }

 private:
  Outputs WaitWithoutGil(std::chrono::microseconds timeout) {
    py::gil_scoped_release release;
    return engine_.WaitOutputs(timeout);
  }

  using Owners = std::unordered_map<LeaseId, std::shared_ptr<const ImageBuffers>>;

  // The last owner of a buffer may run any Python code as it dies, that of a finalizer that calls
  // this engine included: none dies while owners_ is being changed.
  void DropOwners(const std::vector<LeaseId>& leases) {
    std::vector<Owners::node_type> doomed;
    doomed.reserve(leases.size());
    for (const LeaseId lease : leases) {
      if (auto node = owners_.extract(lease)) doomed.push_back(std::move(node));
    }
  }

  const ProcessMark mark_;
  // Guarded by the GIL. Before engine_: outlives the engine thread.
  Owners owners_;
  LeaseId last_lease_ = 0;
  Engine engine_;
};

std::shared_ptr<BoundEngine> MakeEngine(std::shared_ptr<Runner> runner,
                                        const EngineOptions& options) {
  return MakeSharedUnlessForked<BoundEngine>(std::move(runner), options);
}

std::shared_ptr<IreeRunner> MakeIreeRunner(std::shared_ptr<Program> program) {
  if (!program) throw Error(ErrorCode::kInvalidParameter, "a runner needs a program", "program");
  // Allocates the cache and measures costs.
  py::gil_scoped_release release;
  return MakeSharedUnlessForked<IreeRunner>(std::move(program));
}

EngineOptions MakeOptions(double step_budget_ms, Integer max_queued, bool check_invariants,
                          Integer image_cache_bytes) {
  EngineOptions options{
      .step_budget_ms = step_budget_ms,
      .max_queued = Narrow<int>(max_queued, "max_queued"),
      .check_invariants = check_invariants,
      .image_cache_bytes = Narrow<std::int64_t>(image_cache_bytes, "image_cache_bytes")};
  options.Validate();
  return options;
}

void BindRunners(py::module_& module) {
  py::class_<Runner, std::shared_ptr<Runner>>(module, "Runner")
      .def_property_readonly("num_slots", [](const Runner& self) { return self.info().num_slots; })
      .def_property_readonly("capacity", [](const Runner& self) { return self.info().capacity; })
      .def_property_readonly("vocab_size",
                             [](const Runner& self) { return self.info().vocab_size; });
  py::class_<IreeRunner, Runner, std::shared_ptr<IreeRunner>>(module, "IreeRunner")
      .def(py::init(&MakeIreeRunner), py::arg("program"));
}

void BindOutput(py::module_& module) {
  const auto time = [](TimeUs StageTimes::*field) {
    return [field](const TokenOutput& self) { return self.times.*field; };
  };
  const auto if_error = [](const TokenOutput& self, std::string text) {
    return self.finish_reason == FinishReason::error ? std::optional(std::move(text))
                                                     : std::nullopt;
  };
  py::class_<TokenLogprob>(module, "TokenLogprob")
      .def_readonly("token_id", &TokenLogprob::token_id)
      .def_readonly("logprob", &TokenLogprob::logprob)
      .def_readonly("top", &TokenLogprob::top);
  py::class_<TokenOutput>(module, "TokenOutput")
      .def_readonly("seq_id", &TokenOutput::seq_id)
      .def_readonly("token_ids", &TokenOutput::token_ids)
      .def_readonly("logprobs", &TokenOutput::logprobs)
      .def_property_readonly("finish_reason",
                             [](const TokenOutput& self) { return NameOf(self.finish_reason); })
      .def_property_readonly("error_code",
                             [=](const TokenOutput& self) {
                               return if_error(self, std::string(ErrorCodeName(self.error_code)));
                             })
      .def_property_readonly(
          "error_message",
          [=](const TokenOutput& self) { return if_error(self, self.error_message); })
      .def_readonly("num_prompt_tokens", &TokenOutput::num_prompt_tokens)
      .def_readonly("num_positions", &TokenOutput::num_positions)
      .def_readonly("num_generated", &TokenOutput::num_generated)
      .def_property_readonly("queue_us", time(&StageTimes::queue_us))
      .def_property_readonly("encode_us", time(&StageTimes::encode_us))
      .def_property_readonly("prefill_us", time(&StageTimes::prefill_us))
      .def_property_readonly("decode_us", time(&StageTimes::decode_us));
}

void BindStats(py::module_& module) {
  const auto cache = [](auto RowCache::Stats::*field) {
    return [field](const EngineStats& self) { return self.image_cache.*field; };
  };
  py::class_<TimeHistogram>(module, "TimeHistogram")
      .def_property_readonly("bounds", [](const TimeHistogram&) { return TimeHistogram::kBounds; })
      .def_property_readonly("counts", [](const TimeHistogram& self) { return self.counts; })
      .def_readonly("sum", &TimeHistogram::sum);
  py::class_<EngineStats>(module, "EngineStats")
      .def_readonly("is_alive", &EngineStats::is_alive)
      .def_readonly("num_waiting", &EngineStats::num_waiting)
      .def_readonly("num_running", &EngineStats::num_running)
      .def_readonly("num_slots", &EngineStats::num_slots)
      .def_readonly("capacity", &EngineStats::capacity)
      .def_readonly("num_cached", &EngineStats::num_cached)
      .def_readonly("num_leases", &EngineStats::num_leases)
      .def_readonly("num_submitted", &EngineStats::num_submitted)
      .def_readonly("num_stopped", &EngineStats::num_stopped)
      .def_readonly("num_length", &EngineStats::num_length)
      .def_readonly("num_cancelled", &EngineStats::num_cancelled)
      .def_readonly("num_failed", &EngineStats::num_failed)
      .def_readonly("num_prompt_tokens", &EngineStats::num_prompt_tokens)
      .def_readonly("num_prefill_positions", &EngineStats::num_prefill_positions)
      .def_readonly("num_generated_tokens", &EngineStats::num_generated_tokens)
      .def_readonly("num_steps", &EngineStats::num_steps)
      .def_readonly("num_encode_units", &EngineStats::num_encode_units)
      .def_readonly("num_prefill_chunks", &EngineStats::num_prefill_chunks)
      .def_readonly("num_decode_retries", &EngineStats::num_decode_retries)
      .def_readonly("decode_width", &EngineStats::decode_width)
      .def_readonly("encode_us", &EngineStats::encode_us)
      .def_readonly("prefill_us", &EngineStats::prefill_us)
      .def_readonly("decode_us", &EngineStats::decode_us)
      .def_readonly("max_step_us", &EngineStats::max_step_us)
      .def_readonly("step_us", &EngineStats::step_us)
      .def_property_readonly("num_cached_images", cache(&RowCache::Stats::num_entries))
      .def_property_readonly("image_cache_bytes", cache(&RowCache::Stats::num_bytes))
      .def_property_readonly("num_image_cache_hits", cache(&RowCache::Stats::num_hits))
      .def_property_readonly("num_image_cache_misses", cache(&RowCache::Stats::num_misses))
      .def_property_readonly("num_image_cache_evictions", cache(&RowCache::Stats::num_evictions));
}

void BindOptions(py::module_& module) {
  const EngineOptions defaults;
  py::class_<EngineOptions>(module, "EngineOptions")
      .def(py::init(&MakeOptions), py::kw_only(),
           py::arg("step_budget_ms") = defaults.step_budget_ms,
           py::arg("max_queued") = defaults.max_queued,
           py::arg("check_invariants") = defaults.check_invariants,
           py::arg("image_cache_bytes") = defaults.image_cache_bytes)
      .def_readonly("step_budget_ms", &EngineOptions::step_budget_ms)
      .def_readonly("max_queued", &EngineOptions::max_queued)
      .def_readonly("check_invariants", &EngineOptions::check_invariants)
      .def_readonly("image_cache_bytes", &EngineOptions::image_cache_bytes);
}

}  // namespace

void BindEngine(py::module_& module) {
  BindRunners(module);
  BindOptions(module);
  BindOutput(module);
  BindStats(module);
  py::class_<BoundEngine, std::shared_ptr<BoundEngine>>(module, "Engine")
      .def(py::init(&MakeEngine), py::arg("runner"), py::arg("options") = EngineOptions{})
      .def(py::init([](std::shared_ptr<Program> program, const EngineOptions& options) {
             return MakeEngine(MakeIreeRunner(std::move(program)), options);
           }),
           py::arg("program"), py::arg("options") = EngineOptions{})
      .def("submit", ByReference(&BoundEngine::Submit), py::arg("prepared"))
      .def("cached_image", ByReference(&BoundEngine::CachedImage), py::arg("key"))
      .def("cancel", ByReference(&BoundEngine::Cancel), py::arg("seq_id"))
      .def("wait_outputs", ByReference(&BoundEngine::WaitOutputs), py::arg("timeout_s"))
      .def("stats", ByReference(&BoundEngine::Stats))
      .def("shutdown", ByReference(&BoundEngine::Shutdown))
      .def_property_readonly("num_owners", ByReference(&BoundEngine::num_owners))
      .def_property_readonly("capacity",
                             [](const BoundEngine& self) { return self.info().capacity; })
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](BoundEngine& self, const py::args&) { self.Shutdown(); });
}

}  // namespace pyvlm::bindings
