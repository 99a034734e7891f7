#include "csrc/engine/prompt_work.h"

#include <algorithm>
#include <span>

namespace pyvlm {
namespace {

const ImageInput& InputOf(const PreparedPrefill& prefill, const ImageSpan& span) {
  return prefill.images()[static_cast<std::size_t>(span.image)];
}

WorkUnit EncodeUnit(Sequence& sequence, const PromptProgress& progress, const ImageSpan& span,
                    const RunnerInfo& info) {
  const ImageInput& input = InputOf(*sequence.prefill, span);
  WorkUnit unit{.sequence = &sequence, .image = span.image};
  if (input.kind == ImageInput::Kind::embeddings) {
    unit.kind = WorkUnit::Kind::import_rows;
    unit.completes_image = true;
    unit.cost = info.costs.import_rows;
    return unit;
  }
  if (input.kind == ImageInput::Kind::cached) {
    unit.kind = WorkUnit::Kind::cached_rows;
    unit.completes_image = true;
    return unit;
  }
  unit.kind = WorkUnit::Kind::encode;
  unit.tile = progress.tile;
  unit.stage = progress.stage;
  unit.completes_image =
      unit.tile + 1 == input.num_tiles && unit.stage + 1 == info.vision->num_stages;
  unit.cost = info.costs.encode_stage[static_cast<std::size_t>(unit.stage)];
  return unit;
}

// Sets what follows from start and count: the image that the chunk reaches into, end, cost.
void Describe(WorkUnit& unit, const RunnerInfo& info) {
  const PreparedPrefill& prefill = *unit.sequence->prefill;
  const int end = unit.start + unit.count;
  unit.image = -1;
  for (const ImageSpan& span : prefill.image_spans()) {
    if (span.begin < end && span.end > unit.start) unit.image = span.image;
  }
  unit.completes_prompt = end == prefill.num_positions();
  unit.cost = ChunkCost(unit.count, info.costs);
}

}  // namespace

WorkUnit NextUnit(Sequence& sequence, const PromptProgress& progress, const RunnerInfo& info) {
  const PreparedPrefill& prefill = *sequence.prefill;
  const std::span<const ImageSpan> spans = prefill.image_spans();
  const int start = progress.num_cached;
  int end = std::min(start + info.max_chunk, prefill.num_positions());
  const auto current = std::find_if(spans.begin(), spans.end(),
                                    [&](const ImageSpan& span) { return span.end > start; });
  if (current != spans.end() && current->begin < end) {
    if (current - spans.begin() >= progress.num_encoded) {
      return EncodeUnit(sequence, progress, *current, info);
    }
    if (current + 1 != spans.end()) end = std::min(end, (current + 1)->begin);
  }
  WorkUnit unit{.kind = WorkUnit::Kind::prefill, .sequence = &sequence};
  unit.start = start;
  unit.count = end - start;
  Describe(unit, info);
  return unit;
}

WorkUnit CutChunk(WorkUnit unit, int count, const RunnerInfo& info) {
  unit.count = count;
  Describe(unit, info);
  return unit;
}

void Advance(const WorkUnit& unit, const RunnerInfo& info, PromptProgress& progress) {
  if (unit.kind == WorkUnit::Kind::prefill) {
    progress.num_cached += unit.count;
  } else if (unit.completes_image) {
    ++progress.num_encoded;
    progress.tile = progress.stage = 0;
  } else if (++progress.stage == info.vision->num_stages) {
    progress.stage = 0;
    ++progress.tile;
  }
}

double ChunkCost(int count, const RunnerCosts& costs) {
  return costs.prefill_call + costs.prefill_token * count;
}

}  // namespace pyvlm
