#pragma once

#include <set>
#include <utility>

#include "csrc/engine/types.h"

namespace pyvlm {

// The sequences that have a deadline, the earliest first: a step asks for those that have passed,
// and its cost does not depend on how many have not. Engine thread only.
class Deadlines {
 public:
  // `deadline` 0 = none: not kept.
  void Add(TimeUs deadline, SeqId seq_id) {
    if (deadline != 0) ordered_.emplace(deadline, seq_id);
  }

  // What was not added: no-op.
  void Remove(TimeUs deadline, SeqId seq_id) { ordered_.erase({deadline, seq_id}); }

  // The sequence whose deadline passed first, 0 = none. It stays until it is removed.
  SeqId Passed(TimeUs now) const {
    return ordered_.empty() || ordered_.begin()->first > now ? 0 : ordered_.begin()->second;
  }

  bool IsEmpty() const { return ordered_.empty(); }

 private:
  std::set<std::pair<TimeUs, SeqId>> ordered_;
};

}  // namespace pyvlm
