#pragma once

#include <vector>

#include "csrc/engine/types.h"

namespace pyvlm {

// Who owns which row of the KV cache. Engine thread only.
// Invariants: a slot has one owner or none; a sequence owns one slot at most; num_free +
// num_used == num_slots.
class SlotTable {
 public:
  explicit SlotTable(int num_slots);

  // Gives the lowest free slot to `seq_id`, which owns none. Requires num_free() > 0.
  SlotId Acquire(SeqId seq_id);

  // Takes `slot` back from its owner `seq_id`. What it held is overwritten by the next owner before
  // it is read: attention never looks past the positions that the owner wrote.
  void Release(SlotId slot, SeqId seq_id);

  int num_slots() const { return static_cast<int>(owners_.size()); }
  int num_free() const { return num_free_; }
  int num_used() const { return num_slots() - num_free_; }

  // 0 = free.
  SeqId owner(SlotId slot) const { return owners_.at(static_cast<std::size_t>(slot)); }

  // Throws std::logic_error if an invariant is broken.
  void CheckInvariants() const;

 private:
  std::vector<SeqId> owners_;
  int num_free_;
};

}  // namespace pyvlm
