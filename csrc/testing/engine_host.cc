#include "csrc/testing/engine_host.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace pyvlm {

EngineHost::EngineHost(std::shared_ptr<Runner> runner, EngineOptions options)
    : engine_(std::make_unique<Engine>(std::move(runner), options)) {}

SeqId EngineHost::Submit(const std::shared_ptr<const PreparedPrefill>& prefill) {
  std::vector<LeaseId> leases;
  for (const ImageInput& image : prefill->images()) {
    leases.push_back(image.kind == ImageInput::Kind::cached ? 0 : ++last_lease_);
  }
  const SeqId seq_id = engine_->Submit(prefill, leases);
  std::copy_if(leases.begin(), leases.end(), std::inserter(leases_, leases_.end()),
               [](LeaseId lease) { return lease != 0; });
  received_[seq_id];
  return seq_id;
}

void EngineHost::Pull() {
  const Outputs outputs = engine_->WaitOutputs(std::chrono::seconds(60));
  if (outputs.IsEmpty()) throw std::runtime_error("the engine gave nothing for a minute");
  for (const LeaseId lease : outputs.released) {
    if (leases_.erase(lease) == 0) was_released_twice_ = true;
  }
  for (const TokenOutput& output : outputs.tokens) {
    Received& received = received_.at(output.seq_id);
    received.token_ids.insert(received.token_ids.end(), output.token_ids.begin(),
                              output.token_ids.end());
    received.last = output;
    if (output.finish_reason != FinishReason::none) ++received.num_finishes;
  }
}

const EngineHost::Received& EngineHost::Finish(SeqId seq_id) {
  Received& received = received_.at(seq_id);
  while (received.num_finishes == 0) Pull();
  return received;
}

void EngineHost::FinishAll() {
  for (const auto& [seq_id, received] : received_) Finish(seq_id);
}

const EngineHost::Received& EngineHost::Generate(SeqId seq_id, int num_tokens) {
  Received& received = received_.at(seq_id);
  while (received.num_finishes == 0 && static_cast<int>(received.token_ids.size()) < num_tokens) {
    Pull();
  }
  return received;
}

}  // namespace pyvlm
