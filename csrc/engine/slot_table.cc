#include "csrc/engine/slot_table.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

namespace pyvlm {

SlotTable::SlotTable(int num_slots)
    : owners_(static_cast<std::size_t>(num_slots), 0), num_free_(num_slots) {}

SlotId SlotTable::Acquire(SeqId seq_id) {
  const auto free = std::find(owners_.begin(), owners_.end(), SeqId{0});
  if (free == owners_.end()) throw std::logic_error("Acquire without a free slot");
  *free = seq_id;
  --num_free_;
  return static_cast<SlotId>(free - owners_.begin());
}

void SlotTable::Release(SlotId slot, SeqId seq_id) {
  SeqId& current = owners_.at(static_cast<std::size_t>(slot));
  if (seq_id == 0 || current != seq_id) {
    throw std::logic_error("slot " + std::to_string(slot) + " released by sequence " +
                           std::to_string(seq_id) + ", owned by " + std::to_string(current));
  }
  current = 0;
  ++num_free_;
}

void SlotTable::CheckInvariants() const {
  std::set<SeqId> seen;
  int used = 0;
  for (const SeqId owner : owners_) {
    if (owner == 0) continue;
    ++used;
    if (!seen.insert(owner).second) throw std::logic_error("a sequence owns two slots");
  }
  if (used != num_used()) throw std::logic_error("the count of free slots is wrong");
}

}  // namespace pyvlm
