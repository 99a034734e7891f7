#include "csrc/base/error.h"

namespace pyvlm {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
#define PYVLM_CASE(name, text) \
  case ErrorCode::name:        \
    return text;
    PYVLM_ERROR_CODES(PYVLM_CASE)
#undef PYVLM_CASE
  }
  // Only a value cast into the enum gets here; report it as what it is, an engine failure.
  return "engine_failed";
}

std::optional<ErrorCode> ErrorCodeFromName(std::string_view name) {
  for (ErrorCode code : kAllErrorCodes) {
    if (ErrorCodeName(code) == name) return code;
  }
  return std::nullopt;
}

}  // namespace pyvlm
