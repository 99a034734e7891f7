#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pyvlm {

// The codes that native code can raise, each with the name that pyvlm/errors.py gives its type,
// HTTP status and exit status. This list is the only one in C++: the enum, the names and the
// reverse lookup are generated from it.
#define PYVLM_ERROR_CODES(X)                        \
  X(kEmptyPrompt, "empty_prompt")                   \
  X(kInvalidParameter, "invalid_parameter")         \
  X(kUnsupportedParameter, "unsupported_parameter") \
  X(kImageCount, "image_count")                     \
  X(kImageShape, "image_shape")                     \
  X(kImageDtype, "image_dtype")                     \
  X(kNonFinite, "non_finite")                       \
  X(kPlaceholderMismatch, "placeholder_mismatch")   \
  X(kModalityUnsupported, "modality_unsupported")   \
  X(kModelUnsupported, "model_unsupported")         \
  X(kContextOverflow, "context_overflow")           \
  X(kQueueFull, "queue_full")                       \
  X(kModelInvalid, "model_invalid")                 \
  X(kMissingTensor, "missing_tensor")               \
  X(kProgramMismatch, "program_mismatch")           \
  X(kRuntimeMissing, "runtime_missing")             \
  X(kDeviceUnavailable, "device_unavailable")       \
  X(kOutOfMemory, "out_of_memory")                  \
  X(kEngineFailed, "engine_failed")                 \
  X(kEngineDead, "engine_dead")                     \
  X(kDraining, "draining")                          \
  X(kDeadline, "deadline")

enum class ErrorCode {
#define PYVLM_ENUMERATOR(name, text) name,
  PYVLM_ERROR_CODES(PYVLM_ENUMERATOR)
#undef PYVLM_ENUMERATOR
};

inline constexpr ErrorCode kAllErrorCodes[] = {
#define PYVLM_ENUMERATOR(name, text) ErrorCode::name,
    PYVLM_ERROR_CODES(PYVLM_ENUMERATOR)
#undef PYVLM_ENUMERATOR
};

// The wire name of `code`, e.g. "context_overflow". Any thread.
std::string_view ErrorCodeName(ErrorCode code);

// The code with the wire name `name`; nullopt if no native code has it.
std::optional<ErrorCode> ErrorCodeFromName(std::string_view name);

// A failure with a fixed code. `what()` is the message: it names the field, the limit and the value
// seen. `param` names the request field at fault and is empty if there is none.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string param = {})
      : std::runtime_error(message), code_(code), param_(std::move(param)) {}

  ErrorCode code() const { return code_; }
  const std::string& param() const { return param_; }

 private:
  ErrorCode code_;
  std::string param_;
};

}  // namespace pyvlm
