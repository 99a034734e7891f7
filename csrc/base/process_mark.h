#pragma once

#include <memory>
#include <utility>

namespace pyvlm {

// Remembers the process that made it. A child of fork has the objects of its parent but none of the
// parent's threads: what those would do never happens, what they had locked stays locked, and
// whoever joins them waits for ever. So in the child an inherited object is neither used nor
// destroyed. Any thread; costs no system call.
class ProcessMark {
 public:
  ProcessMark();

  // True in every process but the one that made this.
  bool IsInherited() const noexcept;

  // Throws kEngineDead if it is inherited, in the name of `what`.
  void Require(const char* what) const;

 private:
  unsigned generation_;
};

// std::make_shared for an object with threads or locks: a child of fork leaks it.
template <typename T, typename... Args>
std::shared_ptr<T> MakeSharedUnlessForked(Args&&... args) {
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [mark = ProcessMark()](T* object) {
    if (!mark.IsInherited()) delete object;
  });
}

}  // namespace pyvlm
