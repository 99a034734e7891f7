#pragma once

#include <optional>
#include <vector>

#include "csrc/engine/sequence.h"

namespace pyvlm {

// An indivisible piece of prompt work of one sequence. Units of one sequence are executed in the
// order of the plan; if one fails, the later ones of that sequence are void.
struct WorkUnit {
  enum class Kind { encode, import_rows, cached_rows, prefill };

  Kind kind = Kind::prefill;
  Sequence* sequence = nullptr;   // running; outlives the step
  int image = -1;                 // encode, import_rows, cached_rows: index into images
                                  // prefill: the image whose rows it reads, -1 = none
  int tile = 0;                   // encode
  int stage = 0;                  // encode
  int start = 0;                  // prefill: first position
  int count = 0;                  // prefill: number of positions, > 0
  bool completes_image = false;   // all but prefill: the rows are ready after it
  bool completes_prompt = false;  // prefill: its logits give the first token
  double cost = 0;                // microseconds expected
};

// What the engine does between two looks at its inbox: every decoding row once, then the units.
// Filled by the scheduler, read by the executor.
struct StepPlan {
  std::vector<Sequence*> decode;  // all decoding sequences, in order of admission
  std::vector<WorkUnit> units;

  bool IsEmpty() const { return decode.empty() && units.empty(); }
};

}  // namespace pyvlm
