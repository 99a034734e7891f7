#include "csrc/iree/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "csrc/base/error.h"

namespace pyvlm {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void Throw(const std::string& path, const char* reason) {
  throw Error(ErrorCode::kProgramMismatch, "cannot load " + path + ": " + reason);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  Descriptor file(path);
  struct stat info;
  if (file.get() < 0 || fstat(file.get(), &info) != 0) Throw(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) Throw(path, "not a regular file");
  if (info.st_size == 0) Throw(path, "the file is empty");
  size_ = static_cast<size_t>(info.st_size);
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) Throw(path, std::strerror(errno));
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() { munmap(const_cast<uint8_t*>(data_), size_); }

}  // namespace pyvlm
