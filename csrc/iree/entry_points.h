#pragma once

#include <string>
#include <vector>

#include "csrc/engine/model_spec.h"

namespace pyvlm {

// Throws Error(program_mismatch) naming the field unless every size is positive, there are entry
// points for prefill and decode, none wider than the capacity or the slots, and the KV fits in
// memory that a pointer can address.
void Validate(const ModelSpec& spec);

// A function that a bundle must have: one letter an argument and a result, as in Function.
struct Signature {
  std::string name;
  std::string arguments;
  std::string results;
};

// The functions that a model of this shape exports; the one place in native code with their ABI.
std::vector<Signature> RequiredFunctions(const ModelSpec& spec);

std::string VisionBlocksName(int64_t group);

}  // namespace pyvlm
