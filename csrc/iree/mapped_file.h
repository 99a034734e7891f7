#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pyvlm {

// A file mapped read-only. Any thread.
class MappedFile {
 public:
  // Throws Error(program_mismatch) naming the file if it cannot be opened or is empty. Pages are
  // read when they are touched: a file that is truncated while mapped is a bus error, hence bundles
  // are replaced by renaming.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pyvlm
