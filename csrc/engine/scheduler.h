#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <optional>
#include <vector>

#include "csrc/engine/runner.h"
#include "csrc/engine/sequence.h"
#include "csrc/engine/slot_table.h"
#include "csrc/engine/step_plan.h"

namespace pyvlm {

// Decides what the next step does. Pure policy: it sees sequences, free slots, costs and a budget;
// it calls no device and reads no clock. Engine thread only.
//
// Admission. Slots are given in order of arrival; a later sequence never gets a slot before an
// earlier one that waits here. So the k-th waiting sequence has a slot after k releases. (A
// sequence arrives when it is submitted, that is when its images are prepared: texts overtake
// images that are not.)
//
// Budget. A step decodes every decoding row once and then does prompt work of at most `budget`
// cost units (microseconds as the runner measured them), or one unit if that alone costs more. So
// two decode steps are at most u of prompt work apart, u = the largest of the budget, an encode
// stage, an import and a chunk of kMinChunk positions. While no row decodes, the budget is raised
// to a full chunk, which costs less per position, and u with it.
//
// Lanes. Prompt work is either encoding (stages of images, imports) or prefill chunks; cached rows
// cost nothing and go with the chunks, past the images that others encode. Within a
// lane the earliest admitted sequence comes first; the lanes share the time evenly (the one that
// has received less goes next). A short text admitted behind a large image need not wait for it,
// and no stream of texts can starve an image.
// Starvation bound: between two units of the earliest admitted sequence that has prompt work, other
// prompt work costs at most 2u. So a sequence has its first token after at most n * 3u of prompt
// work, n = units of itself and of those admitted before it.
//
// Invariants (CheckInvariants): waiting sequences have no slot and no progress; running ones own
// the slot that they name, and nobody else owns one; each sequence is listed once; once Schedule
// has run, no slot is free while a sequence waits.
class Scheduler {
 public:
  // A chunk is not cut shorter than this to fit what is left of a budget: a call has a fixed cost.
  static constexpr int kMinChunk = 16;

  // `info` outlives the scheduler. `budget` > 0, in cost units.
  Scheduler(const RunnerInfo& info, double budget);

  // Appends a waiting sequence. It stays owned by the caller and must outlive its Remove.
  void Add(Sequence* sequence);

  // Forgets a waiting or running sequence, frees its slot and marks it finished.
  void Remove(Sequence* sequence);

  // Admits waiting sequences to free slots (their state, slot and queue time change) and plans one
  // step. Progress is left alone: the results of the step advance it.
  StepPlan Schedule(TimeUs now);

  const SlotTable& slots() const { return slots_; }
  const std::list<Sequence*>& waiting() const { return waiting_; }    // in order of arrival
  const std::vector<Sequence*>& running() const { return running_; }  // in order of admission

  // Throws std::logic_error if an invariant is broken. O(sequences).
  void CheckInvariants() const;

 private:
  enum Lane : std::size_t { kEncodeLane, kPrefillLane, kNumLanes };

  // A prompt under planning: its progress as it will be after the units planned so far.
  struct Cursor {
    Sequence* sequence;
    PromptProgress progress;
  };
  struct Head {
    Cursor* cursor;
    WorkUnit unit;
  };
  using Heads = std::array<std::optional<Head>, kNumLanes>;

  void Admit(TimeUs now);
  void PlanPrompts(StepPlan& plan);
  Heads FindHeads(std::vector<Cursor>& cursors) const;
  Lane PickLane(const Heads& heads) const;
  void Charge(Lane lane, double cost, const Heads& heads);
  bool FitToBudget(WorkUnit& unit, double left, bool is_first) const;

  const RunnerInfo& info_;
  const double budget_;
  SlotTable slots_;
  std::list<Sequence*> waiting_;  // each knows its place: any may leave at constant cost
  std::vector<Sequence*> running_;
  std::array<double, kNumLanes> spent_{};  // cost given to each lane; only the difference counts
};

}  // namespace pyvlm
