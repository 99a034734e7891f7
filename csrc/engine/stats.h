#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/engine/row_cache.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// Durations, counted by size.
struct TimeHistogram {
  // Upper bounds, inclusive, of all buckets but the last, which has none.
  static constexpr std::array<TimeUs, 15> kBounds = {
      100,    250,     500,     1'000,   2'500,     5'000,     10'000,    25'000,
      50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000, 10'000'000};

  void Add(TimeUs duration) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), duration);
    ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
    sum += duration;
  }

  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  TimeUs sum = 0;
};

// A snapshot, taken by the engine thread when a step is planned and when it is done, before the
// outputs of that moment can be pulled: whoever has seen the last output of a sequence sees its
// slot and leases freed here.
struct EngineStats {
  // Now.
  bool is_alive = true;         // false once the engine has stopped, for whatever reason
  int num_waiting = 0;          // submitted, no slot yet
  int num_running = 0;          // own a slot
  int num_slots = 0;            //
  int capacity = 0;             // positions per slot
  std::int64_t num_cached = 0;  // positions in use, over all slots
  std::int64_t num_leases = 0;  // buffers borrowed from the host
  // Since the start.
  std::uint64_t num_submitted = 0;
  std::uint64_t num_stopped = 0;            // finished by a stop id
  std::uint64_t num_length = 0;             // finished by max_new_tokens
  std::uint64_t num_cancelled = 0;          // finished by cancel or shutdown
  std::uint64_t num_failed = 0;             // finished by an error, deadlines included
  std::uint64_t num_prompt_tokens = 0;      // logical ids of cached prompts
  std::uint64_t num_prefill_positions = 0;  // positions computed by prefill
  std::uint64_t num_generated_tokens = 0;   // emitted, stop ids excluded
  std::uint64_t num_steps = 0;
  std::uint64_t num_encode_units = 0;
  std::uint64_t num_prefill_chunks = 0;
  std::uint64_t num_decode_retries = 0;     // decode steps repeated row by row
  std::vector<std::uint64_t> decode_width;  // [num_slots + 1] decode steps by number of rows
  TimeUs encode_us = 0;
  TimeUs prefill_us = 0;
  TimeUs decode_us = 0;
  TimeUs max_step_us = 0;
  TimeHistogram step_us;  // planning, running and applying of each of num_steps
  // Both kinds; entries and bytes are zero again once the engine has stopped.
  RowCache::Stats image_cache;
};

}  // namespace pyvlm
