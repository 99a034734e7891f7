// Operations of the engine's host side behind plain functions, for bench/native_ops.py to time.
// Handles are made and freed by the caller; one thread at a time. Loops are inside, so that a call
// from Python costs little beside what is timed.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "csrc/engine/prompt_work.h"
#include "csrc/engine/sampler.h"
#include "csrc/engine/scheduler.h"
#include "csrc/engine/slot_table.h"
#include "csrc/testing/prefills.h"

namespace {

struct SamplerBench {
  std::vector<float> logits;
  pyvlm::SamplerState state;
  pyvlm::Sampler sampler;
};

// Sequences that decode, and others that wait because no slot is free.
struct SchedulerBench {
  SchedulerBench(int num_slots, int num_waiting)
      : info(pyvlm::FakeRunner::SmallInfo(num_slots, 1 << 20)), scheduler(info, 1e5) {
    for (int i = 0; i < num_slots + num_waiting; ++i) Add();
    for (int i = 0; i < num_slots; ++i) Step();
  }

  void Add() {
    auto sequence = std::make_unique<pyvlm::Sequence>();
    sequence->id = sequences.size() + 1;
    sequence->prefill = pyvlm::TestText(1, 1, 1);
    scheduler.Add(sequence.get());
    sequences.push_back(std::move(sequence));
  }

  std::size_t Step() {
    const pyvlm::StepPlan plan = scheduler.Schedule(0);
    for (const pyvlm::WorkUnit& unit : plan.units) {
      pyvlm::Advance(unit, info, unit.sequence->progress);
    }
    return plan.decode.size();
  }

  pyvlm::RunnerInfo info;
  pyvlm::Scheduler scheduler;
  std::vector<std::unique_ptr<pyvlm::Sequence>> sequences;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT SamplerBench* sampler_new(const float* logits, std::size_t vocab_size, float temperature,
                                 int top_k, float top_p, float min_p, float repetition_penalty,
                                 const std::int32_t* history, std::size_t history_size) {
  const pyvlm::SamplingParams params{.temperature = temperature,
                                     .top_k = top_k,
                                     .top_p = top_p,
                                     .min_p = min_p,
                                     .repetition_penalty = repetition_penalty,
                                     .seed = 1};
  params.Validate();
  return new SamplerBench{{logits, logits + vocab_size},
                          pyvlm::SamplerState(params, 1, {history, history_size}),
                          {}};
}

// The same draw `repeat` times: the state does not advance.
EXPORT std::int32_t sampler_sample(SamplerBench* bench, int repeat) {
  std::int32_t token = -1;
  for (int i = 0; i < repeat; ++i) token = bench->sampler.Sample(bench->logits, bench->state);
  return token;
}

// The next draw of the sequence.
EXPORT std::int32_t sampler_advance(SamplerBench* bench) {
  const std::int32_t token = bench->sampler.Sample(bench->logits, bench->state);
  bench->state.Append(token);
  return token;
}

EXPORT void sampler_free(SamplerBench* bench) { delete bench; }

// All slots are given and taken back `repeat` times. Returns the number of free slots seen while
// all were given, plus what is missing at the end: 0 if the table is right.
EXPORT int slots_cycle(int num_slots, int repeat) {
  pyvlm::SlotTable table(num_slots);
  std::vector<pyvlm::SlotId> slots(static_cast<std::size_t>(num_slots));
  int wrong = 0;
  for (int i = 0; i < repeat; ++i) {
    for (std::size_t k = 0; k < slots.size(); ++k) slots[k] = table.Acquire(k + 1);
    wrong += table.num_free();
    for (std::size_t k = 0; k < slots.size(); ++k) table.Release(slots[k], k + 1);
  }
  table.CheckInvariants();
  return wrong + table.num_used();
}

EXPORT SchedulerBench* scheduler_new(int num_slots, int num_waiting) {
  return new SchedulerBench(num_slots, num_waiting);
}

// Plans `repeat` steps; the number of rows that the last one decodes.
EXPORT std::size_t scheduler_steps(SchedulerBench* bench, int repeat) {
  std::size_t num_rows = 0;
  for (int i = 0; i < repeat; ++i) num_rows = bench->Step();
  return num_rows;
}

EXPORT std::size_t scheduler_num_waiting(const SchedulerBench* bench) {
  return bench->scheduler.waiting().size();
}

EXPORT void scheduler_free(SchedulerBench* bench) { delete bench; }
