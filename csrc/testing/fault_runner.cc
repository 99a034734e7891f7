#include "csrc/testing/fault_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

namespace pyvlm {
namespace {

void Blank(float* first, std::size_t count) {
  std::fill(first, first + count, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

FaultRunner::FaultRunner(std::shared_ptr<Runner> inner, std::vector<Fault> faults)
    : inner_(std::move(inner)), claim_(inner_) {
  for (const Fault& fault : faults) Add(fault);
}

void FaultRunner::Add(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  armed_.push_back({fault, 0});
}

std::int64_t FaultRunner::num_strikes() const {
  const std::lock_guard lock(mutex_);
  return num_strikes_;
}

std::vector<Fault> FaultRunner::Due(FaultCall call, std::span<const SlotId> slots) {
  const std::lock_guard lock(mutex_);
  std::vector<Fault> due;
  for (Armed& armed : armed_) {
    const Fault& fault = armed.fault;
    if (fault.call != call) continue;
    if (fault.slot && std::find(slots.begin(), slots.end(), *fault.slot) == slots.end()) continue;
    ++armed.num_calls;
    // Not first + count: count may be the largest integer.
    if (armed.num_calls < fault.first || armed.num_calls - fault.first >= fault.count) continue;
    due.push_back(fault);
    ++num_strikes_;
  }
  return due;
}

std::vector<Fault> FaultRunner::Strike(FaultCall call, std::span<const SlotId> slots) {
  std::vector<Fault> corrupting;
  for (const Fault& fault : Due(call, slots)) {
    if (fault.action == FaultAction::fail) throw Error(fault.code, "an injected fault");
    if (fault.action == FaultAction::corrupt) corrupting.push_back(fault);
    std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
  }
  return corrupting;
}

void FaultRunner::Encode(const EncodeCall& call) {
  if (Strike(FaultCall::encode, {}).empty()) return inner_->Encode(call);
  const ImageInput& input = *call.input;
  pixels_.assign(static_cast<std::size_t>(input.num_tiles * input.num_patches * input.patch_dim),
                 0.0f);
  ImageInput blank = input;
  blank.data = pixels_.data();
  EncodeCall corrupted = call;
  corrupted.input = &blank;
  inner_->Encode(corrupted);
}

void FaultRunner::ImportRows(ImageKey key, const ImageInput& input) {
  Strike(FaultCall::import_rows, {});
  inner_->ImportRows(key, input);
}

std::span<const float> FaultRunner::Prefill(const PrefillCall& call) {
  const bool corrupts = !Strike(FaultCall::prefill, {&call.slot, 1}).empty();
  const std::span<const float> logits = inner_->Prefill(call);
  if (!corrupts) return logits;
  logits_.assign(logits.begin(), logits.end());
  Blank(logits_.data(), logits_.size());
  return logits_;
}

std::span<const float> FaultRunner::Decode(std::span<const DecodeRow> rows) {
  std::vector<SlotId> slots;
  for (const DecodeRow& row : rows) slots.push_back(row.slot);
  const std::vector<Fault> corrupting = Strike(FaultCall::decode, slots);
  const std::span<const float> logits = inner_->Decode(rows);
  if (corrupting.empty()) return logits;
  logits_.assign(logits.begin(), logits.end());
  const std::size_t width = logits.size() / rows.size();
  for (const Fault& fault : corrupting) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!fault.slot || *fault.slot == slots[i]) Blank(logits_.data() + i * width, width);
    }
  }
  return logits_;
}

}  // namespace pyvlm
