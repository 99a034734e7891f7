#include "csrc/iree/ref.h"

#include <doctest/doctest.h>

namespace pyvlm {
namespace {

struct Counted {
  int references = 1;
};

}  // namespace

template <>
struct RefTraits<Counted> {
  static void Retain(Counted* object) { ++object->references; }
  static void Release(Counted* object) { --object->references; }
};

TEST_CASE("stealing takes the caller's reference and returns it once") {
  Counted object;
  {
    auto ref = Ref<Counted>::Steal(&object);
    CHECK(object.references == 1);
    CHECK(ref.get() == &object);
  }
  CHECK(object.references == 0);
}

TEST_CASE("borrowing adds a reference") {
  Counted object;
  {
    auto ref = Ref<Counted>::Borrow(&object);
    CHECK(object.references == 2);
  }
  CHECK(object.references == 1);
  CHECK_FALSE(Ref<Counted>::Borrow(nullptr));
}

TEST_CASE("copies count, moves do not") {
  Counted object;
  auto first = Ref<Counted>::Steal(&object);
  Ref<Counted> copy = first;
  CHECK(object.references == 2);
  Ref<Counted> moved = std::move(first);
  CHECK(object.references == 2);
  CHECK_FALSE(first);
  CHECK(moved.get() == &object);
}

TEST_CASE("assignment releases what was held, exactly once") {
  Counted a;
  Counted b;
  auto first = Ref<Counted>::Steal(&a);
  auto second = Ref<Counted>::Steal(&b);
  SUBCASE("move") {
    first = std::move(second);
    CHECK(a.references == 0);
    CHECK(b.references == 1);
    CHECK_FALSE(second);
  }
  SUBCASE("copy") {
    first = second;
    CHECK(a.references == 0);
    CHECK(b.references == 2);
  }
  SUBCASE("to itself") {
    Ref<Counted>& alias = first;
    first = alias;
    CHECK(a.references == 1);
    first = std::move(alias);
    CHECK(a.references == 1);
    CHECK(first.get() == &a);
  }
}

TEST_CASE("an out parameter drops the old reference and takes the new one") {
  Counted a;
  Counted b;
  auto ref = Ref<Counted>::Steal(&a);
  *ref.Out() = &b;
  CHECK(a.references == 0);
  CHECK(b.references == 1);
  CHECK(ref.Release() == &b);
  CHECK_FALSE(ref);
  ref.Reset();
  CHECK(b.references == 1);
}

}  // namespace pyvlm
