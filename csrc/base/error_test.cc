#include "csrc/base/error.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

namespace pyvlm {

TEST_CASE("every code has a name of its own that leads back to it") {
  std::set<std::string_view> names;
  for (ErrorCode code : kAllErrorCodes) {
    std::string_view name = ErrorCodeName(code);
    CHECK(names.insert(name).second);
    CHECK(ErrorCodeFromName(name) == code);
  }
  CHECK(names.size() == std::size(kAllErrorCodes));
}

TEST_CASE("an unknown name has no code") {
  CHECK_FALSE(ErrorCodeFromName("no_such_code").has_value());
  CHECK_FALSE(ErrorCodeFromName("").has_value());
}

TEST_CASE("an error keeps its code, message and parameter") {
  try {
    throw Error(ErrorCode::kContextOverflow, "9 positions, capacity 8", "max_tokens");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kContextOverflow);
    CHECK(std::string(error.what()) == "9 positions, capacity 8");
    CHECK(error.param() == "max_tokens");
  }
}

}  // namespace pyvlm
