#pragma once

#include "csrc/engine/runner.h"
#include "csrc/engine/sequence.h"
#include "csrc/engine/step_plan.h"

namespace pyvlm {

// How a prompt falls into units. Pure functions of (prompt, progress, model).
// The order of one prompt's work: an image is encoded (tile by tile, stage by stage) just before
// the first chunk that reaches it, and no chunk reaches into two images. So a sequence holds the
// rows of one image at most, and text in front of an image shares a chunk with it.

// The next unit: encode, import_rows or cached_rows, or the longest prefill chunk that the program
// and the image boundaries allow. Requires progress.num_cached < num_positions.
WorkUnit NextUnit(Sequence& sequence, const PromptProgress& progress, const RunnerInfo& info);

// `unit`, a prefill chunk from NextUnit, cut to `count` positions (0 < count <= unit.count).
WorkUnit CutChunk(WorkUnit unit, int count, const RunnerInfo& info);

// Moves `progress` past `unit`, which is its next unit or a cut of it.
void Advance(const WorkUnit& unit, const RunnerInfo& info, PromptProgress& progress);

double ChunkCost(int count, const RunnerCosts& costs);

}  // namespace pyvlm
