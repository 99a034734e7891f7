#pragma once

#include <atomic>
#include <memory>

#include "csrc/engine/iree_runner.h"
#include "csrc/engine/runner_claim.h"

namespace pyvlm {

// Looks, on the engine's thread, where an IreeRunner reads the rows that it has imported.
class RowsProbe : public Runner {
 public:
  explicit RowsProbe(std::shared_ptr<IreeRunner> inner)
      : inner_(std::move(inner)), claim_(inner_) {}

  const RunnerInfo& info() const override { return inner_->info(); }
  void Encode(const EncodeCall& call) override { inner_->Encode(call); }
  void ImportRows(ImageKey key, const ImageInput& input) override {
    inner_->ImportRows(key, input);
    last_rows_ = inner_->RowsAddress(key);
  }
  std::span<const float> Prefill(const PrefillCall& call) override { return inner_->Prefill(call); }
  std::span<const float> Decode(std::span<const DecodeRow> rows) override {
    return inner_->Decode(rows);
  }
  std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept override {
    return inner_->ShareRows(key);
  }
  void ReleaseRows(ImageKey key) noexcept override { inner_->ReleaseRows(key); }

  // Any thread. Of the last import; null if there was none or the device is not mappable.
  const void* last_rows() const { return last_rows_; }

 private:
  const std::shared_ptr<IreeRunner> inner_;
  const RunnerClaim claim_;
  std::atomic<const void*> last_rows_{nullptr};
};

}  // namespace pyvlm
