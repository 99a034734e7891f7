#include "csrc/engine/scheduler.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "csrc/engine/prompt_work.h"

namespace pyvlm {
namespace {

void Require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("scheduler invariant broken: ") + what);
}

}  // namespace

Scheduler::Scheduler(const RunnerInfo& info, double budget)
    : info_(info), budget_(budget), slots_(info.num_slots) {}

void Scheduler::Add(Sequence* sequence) {
  sequence->queue_place = waiting_.insert(waiting_.end(), sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->state == Sequence::State::running) {
    slots_.Release(sequence->slot, sequence->id);
    std::erase(running_, sequence);
  } else {
    waiting_.erase(sequence->queue_place);
  }
  sequence->state = Sequence::State::finished;
  sequence->slot = -1;
}

StepPlan Scheduler::Schedule(TimeUs now) {
  Admit(now);
  StepPlan plan;
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(plan.decode),
               [](const Sequence* sequence) { return sequence->IsDecoding(); });
  PlanPrompts(plan);
  return plan;
}

void Scheduler::Admit(TimeUs now) {
  while (!waiting_.empty() && slots_.num_free() > 0) {
    Sequence* sequence = waiting_.front();
    waiting_.pop_front();
    sequence->slot = slots_.Acquire(sequence->id);
    sequence->state = Sequence::State::running;
    sequence->times.queue_us = now - sequence->submitted;
    running_.push_back(sequence);
  }
}

void Scheduler::PlanPrompts(StepPlan& plan) {
  std::vector<Cursor> cursors;
  for (Sequence* sequence : running_) {
    if (sequence->IsPrefilling()) cursors.push_back({sequence, sequence->progress});
  }
  double left = budget_;
  if (plan.decode.empty()) left = std::max(left, ChunkCost(info_.max_chunk, info_.costs));
  while (true) {
    const Heads heads = FindHeads(cursors);
    if (!heads[kEncodeLane] && !heads[kPrefillLane]) return;
    const Lane lane = PickLane(heads);
    WorkUnit unit = heads[lane]->unit;
    if (!FitToBudget(unit, left, plan.units.empty())) return;
    left -= unit.cost;
    Charge(lane, unit.cost, heads);
    Advance(unit, info_, heads[lane]->cursor->progress);
    plan.units.push_back(unit);
  }
}

// Per lane, the earliest admitted sequence whose next unit belongs there.
Scheduler::Heads Scheduler::FindHeads(std::vector<Cursor>& cursors) const {
  Heads heads;
  for (Cursor& cursor : cursors) {
    if (cursor.progress.num_cached == cursor.sequence->prefill->num_positions()) continue;
    const WorkUnit unit = NextUnit(*cursor.sequence, cursor.progress, info_);
    const bool encodes =
        unit.kind == WorkUnit::Kind::encode || unit.kind == WorkUnit::Kind::import_rows;
    auto& head = heads[encodes ? kEncodeLane : kPrefillLane];
    if (!head) head = Head{&cursor, unit};
    if (heads[kEncodeLane] && heads[kPrefillLane]) break;
  }
  return heads;
}

Scheduler::Lane Scheduler::PickLane(const Heads& heads) const {
  const auto& encode = heads[kEncodeLane];
  const auto& prefill = heads[kPrefillLane];
  if (!encode) return kPrefillLane;
  if (!prefill) return kEncodeLane;
  if (spent_[kEncodeLane] != spent_[kPrefillLane]) {
    return spent_[kEncodeLane] < spent_[kPrefillLane] ? kEncodeLane : kPrefillLane;
  }
  return encode->cursor < prefill->cursor ? kEncodeLane : kPrefillLane;
}

// A lane without work saves up nothing: it starts level with the other one.
void Scheduler::Charge(Lane lane, double cost, const Heads& heads) {
  const Lane other = lane == kEncodeLane ? kPrefillLane : kEncodeLane;
  spent_[lane] += cost;
  if (!heads[other]) spent_[other] = spent_[lane];
  const double common = std::min(spent_[lane], spent_[other]);
  spent_[lane] -= common;
  spent_[other] -= common;
}

// Cuts a chunk to what is left of the budget. False if the unit must wait for the next step; the
// first unit of a step never must.
bool Scheduler::FitToBudget(WorkUnit& unit, double left, bool is_first) const {
  if (unit.cost <= left) return true;
  if (unit.kind != WorkUnit::Kind::prefill) return is_first;
  const double tokens = (left - info_.costs.prefill_call) / info_.costs.prefill_token;
  const int shortest = std::min(unit.count, kMinChunk);
  if (!is_first && tokens < shortest) return false;
  const int count = std::clamp(static_cast<int>(std::max(tokens, 0.0)), shortest, unit.count);
  unit = CutChunk(unit, count, info_);
  return true;
}

void Scheduler::CheckInvariants() const {
  slots_.CheckInvariants();
  std::set<const Sequence*> seen;
  for (const Sequence* sequence : waiting_) {
    Require(seen.insert(sequence).second, "a sequence is listed twice");
    Require(sequence->state == Sequence::State::waiting, "a queued sequence is not waiting");
    Require(sequence->slot == -1, "a waiting sequence has a slot");
    Require(sequence->progress == PromptProgress{}, "a waiting sequence has progress");
  }
  for (const Sequence* sequence : running_) {
    Require(seen.insert(sequence).second, "a sequence is listed twice");
    Require(sequence->state == Sequence::State::running, "a listed sequence is not running");
    Require(slots_.owner(sequence->slot) == sequence->id, "a slot has another owner");
    Require(sequence->progress.num_cached <= sequence->prefill->num_positions(),
            "more positions are cached than the prompt has");
  }
  Require(static_cast<int>(running_.size()) == slots_.num_used(), "a slot is used by nobody");
}

}  // namespace pyvlm
