#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/engine/runner.h"
#include "csrc/engine/runner_claim.h"

namespace pyvlm {

enum class FaultCall { encode, import_rows, prefill, decode };

// fail: the call throws and does nothing. delay: it takes longer. corrupt: its logits become NaN
// (of one row, if `slot` is given); the pixels of an encode call become zero.
enum class FaultAction { fail, delay, corrupt };

// Calls of kind `call`, of `slot` if given (prefill; decode: batches that hold it), are counted
// from 1. The fault strikes those numbered first .. first + count - 1.
struct Fault {
  FaultCall call = FaultCall::decode;
  FaultAction action = FaultAction::fail;
  std::int64_t first = 1;
  std::int64_t count = 1;
  std::optional<SlotId> slot = std::nullopt;
  ErrorCode code = ErrorCode::kEngineFailed;  // fail; kDeviceUnavailable = the device is lost
  int delay_ms = 0;                           // delay
};

// Puts faults between an engine and the runner that does the work.
class FaultRunner : public Runner {
 public:
  FaultRunner(std::shared_ptr<Runner> inner, std::vector<Fault> faults);

  const RunnerInfo& info() const override { return inner_->info(); }
  void Encode(const EncodeCall& call) override;
  void ImportRows(ImageKey key, const ImageInput& input) override;
  std::span<const float> Prefill(const PrefillCall& call) override;
  std::span<const float> Decode(std::span<const DecodeRow> rows) override;
  std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept override {
    return inner_->ShareRows(key);
  }
  void ReleaseRows(ImageKey key) noexcept override { inner_->ReleaseRows(key); }

  // Any thread. Adds a fault; its count starts now.
  void Add(const Fault& fault);

  // Any thread. Faults that have struck.
  std::int64_t num_strikes() const;

 private:
  struct Armed {
    Fault fault;
    std::int64_t num_calls = 0;
  };

  // Throws or sleeps as the faults on this call say; returns those that corrupt it.
  std::vector<Fault> Strike(FaultCall call, std::span<const SlotId> slots);
  std::vector<Fault> Due(FaultCall call, std::span<const SlotId> slots);

  const std::shared_ptr<Runner> inner_;
  const RunnerClaim claim_;
  mutable std::mutex mutex_;
  std::vector<Armed> armed_;      // guarded by mutex_
  std::int64_t num_strikes_ = 0;  // guarded by mutex_
  std::vector<float> logits_;     // a corrupted copy
  std::vector<float> pixels_;     // zeros
};

}  // namespace pyvlm
