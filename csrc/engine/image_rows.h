#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace pyvlm {

// The encoder's rows of one image, complete and immutable, in the memory of a runner. Shared by
// the cache of an engine, by prompts that were made from it and by the runner while it reads them;
// it keeps alive whatever its memory needs. Any thread may drop the last reference.
class ImageRows {
 public:
  // `model`: RunnerInfo::model of the runner that made them.
  ImageRows(std::shared_ptr<const void> model, int num_rows, int hidden_size,
            std::int64_t num_bytes)
      : model_(std::move(model)),
        num_rows_(num_rows),
        hidden_size_(hidden_size),
        num_bytes_(num_bytes) {}
  virtual ~ImageRows() = default;
  ImageRows(const ImageRows&) = delete;
  ImageRows& operator=(const ImageRows&) = delete;

  const std::shared_ptr<const void>& model() const { return model_; }
  int num_rows() const { return num_rows_; }
  int hidden_size() const { return hidden_size_; }
  std::int64_t num_bytes() const { return num_bytes_; }

 private:
  const std::shared_ptr<const void> model_;
  const int num_rows_;
  const int hidden_size_;
  const std::int64_t num_bytes_;
};

}  // namespace pyvlm
