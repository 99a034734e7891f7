#include "csrc/engine/slot_table.h"

#include <doctest/doctest.h>

#include <stdexcept>

namespace pyvlm {
namespace {

TEST_CASE("slots are given lowest first and come back") {
  SlotTable slots(3);
  CHECK(slots.Acquire(11) == 0);
  CHECK(slots.Acquire(12) == 1);
  CHECK(slots.Acquire(13) == 2);
  CHECK(slots.num_free() == 0);
  CHECK_THROWS_AS(slots.Acquire(14), std::logic_error);
  slots.Release(1, 12);
  CHECK(slots.owner(1) == 0);
  CHECK(slots.Acquire(15) == 1);
  CHECK(slots.owner(1) == 15);
  slots.CheckInvariants();
}

TEST_CASE("only the owner releases a slot, once") {
  SlotTable slots(2);
  const SlotId slot = slots.Acquire(5);
  CHECK_THROWS_AS(slots.Release(slot, 6), std::logic_error);
  slots.Release(slot, 5);
  CHECK_THROWS_AS(slots.Release(slot, 5), std::logic_error);
  CHECK_THROWS_AS(slots.Release(slot, 0), std::logic_error);
  CHECK(slots.num_free() == 2);
}

}  // namespace
}  // namespace pyvlm
