#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "csrc/engine/runner.h"
#include "csrc/iree/program.h"

namespace pyvlm {

// Runs a model's program. Owns the KV cache: one K and one V buffer on the device, allocated once
// and written in place by every call. Rows of images stay on the device from the encoder to the
// prefill. Host memory is read in place where the program allows it: pixels during the call, ready
// f32 embeddings until ReleaseRows; elsewhere it is copied to the device first.
class IreeRunner : public Runner {
 public:
  // Allocates the cache, zeroes it, and measures the costs by running each kind of call once or
  // twice. The program must have been loaded with a spec. Throws Error: engine_dead (the program is
  // of a parent process), program_mismatch (no spec, or the program copies its cache instead of
  // writing in place), out_of_memory.
  explicit IreeRunner(std::shared_ptr<Program> program);

  const RunnerInfo& info() const override { return info_; }
  void Encode(const EncodeCall& call) override;
  void ImportRows(ImageKey key, const ImageInput& input) override;
  std::span<const float> Prefill(const PrefillCall& call) override;
  std::span<const float> Decode(std::span<const DecodeRow> rows) override;
  std::shared_ptr<const ImageRows> ShareRows(ImageKey key) noexcept override;
  void ReleaseRows(ImageKey key) noexcept override;

  // Address of the rows as the host sees it, for tests; null if unknown or not mappable. Virtual,
  // so that a test extension with its own copy of the library calls the one that made the object.
  virtual const void* RowsAddress(ImageKey key) const;

 private:
  struct Image {
    BufferView rows;  // [num_rows, hidden_size] f32
    int num_rows = 0;
    BufferView hidden;  // of the tile that is being encoded
    BufferView valid;   // its real patches: rows, columns
    int tile = 0;       // next unit
    int stage = 0;
    bool is_complete = false;
  };

  const Device& device() const { return *program_->device(); }
  BufferView HostInput(const void* data, iree_hal_element_type_t type,
                       std::initializer_list<int64_t> shape) const;
  BufferView IntInput(std::span<const std::int32_t> values) const;
  std::vector<Value> Invoke(const std::string& function, const std::vector<Value>& arguments);

  void AllocateCache();
  void MeasureText();
  void MeasureVision();

  Image& FindOrStart(const EncodeCall& call);
  void RunStage(Image& image, const ImageInput& input, int tile, int stage);
  void CheckPrefill(const PrefillCall& call) const;
  void CheckDecode(std::span<const DecodeRow> rows) const;
  BufferView ImportedRows(const ImageInput& input);
  const BufferView& RowsFor(const PrefillCall& call) const;
  void CheckInPlace(const std::string& function, const BufferView& k, const BufferView& v) const;
  std::span<const float> CallWithCache(const std::string& function, std::vector<Value> arguments,
                                       int first_row, int num_rows, bool wants_logits);

  std::shared_ptr<Program> program_;  // goes last
  const ModelSpec& spec_;             // the program's
  RunnerInfo info_;
  BufferView k_;
  BufferView v_;
  BufferView no_rows_;  // [1, hidden_size]: stands in for the rows in chunks of text
  std::map<ImageKey, Image> images_;
  HostView logits_;  // of the last call
};

}  // namespace pyvlm
