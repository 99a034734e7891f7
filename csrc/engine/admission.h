#pragma once

#include "csrc/engine/prepared_prefill.h"
#include "csrc/engine/runner.h"

namespace pyvlm {

// The second validation: `prefill` against the model that is to run it, and the image data once
// more. Returns the number of tokens that may be generated: what the caller asked for, or what the
// capacity leaves. Holds afterwards: num_positions + result <= capacity; ids < vocab_size; the
// rows of each image equal what the encoder gives or the host brings.
// Throws kContextOverflow (with positions, max_new_tokens and capacity), kModalityUnsupported,
// kImageShape, kPlaceholderMismatch, kNonFinite, kInvalidParameter. Any thread.
int CheckAdmission(const PreparedPrefill& prefill, const RunnerInfo& info);

}  // namespace pyvlm
