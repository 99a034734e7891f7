#include "csrc/engine/mailbox.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

namespace pyvlm {
namespace {

using std::chrono::milliseconds;

TokenOutput Delta(SeqId id, std::vector<std::int32_t> token_ids,
                  FinishReason reason = FinishReason::none) {
  TokenOutput output;
  output.seq_id = id;
  output.token_ids = std::move(token_ids);
  output.finish_reason = reason;
  return output;
}

ErrorCode CodeOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return ErrorCode::kEngineFailed;
}

TEST_CASE("ids count from one and a rejected submit uses none") {
  Mailbox mailbox(2);
  CHECK(mailbox.Submit(std::make_unique<Sequence>()) == 1);
  CHECK(mailbox.Submit(std::make_unique<Sequence>()) == 2);
  CHECK(CodeOf([&] { mailbox.Submit(std::make_unique<Sequence>()); }) == ErrorCode::kQueueFull);
  CHECK(CodeOf([&] { mailbox.CheckOpen(); }) == ErrorCode::kQueueFull);
  CHECK(mailbox.num_undrained() == 2);
  CHECK(mailbox.Take(false).submitted.size() == 2);

  // A sequence is open until its last output has been pulled.
  mailbox.Deliver({{Delta(1, {}, FinishReason::stop)}, {}});
  CHECK(CodeOf([&] { mailbox.CheckOpen(); }) == ErrorCode::kQueueFull);
  CHECK(mailbox.WaitOutputs(milliseconds(0)).tokens.size() == 1);
  CHECK(mailbox.Submit(std::make_unique<Sequence>()) == 3);
}

TEST_CASE("log probabilities are merged with their tokens") {
  Mailbox mailbox(1);
  mailbox.Submit(std::make_unique<Sequence>());
  for (const std::int32_t id : {5, 6, 7}) {
    TokenOutput output = Delta(1, {id});
    output.logprobs.push_back({.token_id = id, .logprob = -1.0 * id, .top = {{id, 0.0}}});
    mailbox.Deliver({{std::move(output)}, {}});
  }
  mailbox.Deliver({{Delta(1, {}, FinishReason::stop)}, {}});
  const Outputs outputs = mailbox.WaitOutputs(milliseconds(0));
  REQUIRE(outputs.tokens.size() == 1);
  REQUIRE(outputs.tokens[0].logprobs.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(outputs.tokens[0].logprobs[i].token_id == outputs.tokens[0].token_ids[i]);
  }
}

TEST_CASE("outputs of a sequence are merged until pulled") {
  Mailbox mailbox(4);
  mailbox.Submit(std::make_unique<Sequence>());
  mailbox.Submit(std::make_unique<Sequence>());
  mailbox.Deliver({{Delta(1, {10}), Delta(2, {20})}, {5}});
  mailbox.Deliver({{Delta(1, {11}, FinishReason::length)}, {6}});
  const Outputs outputs = mailbox.WaitOutputs(milliseconds(0));
  REQUIRE(outputs.tokens.size() == 2);
  CHECK(outputs.tokens[0].token_ids == std::vector<std::int32_t>{10, 11});
  CHECK(outputs.tokens[0].finish_reason == FinishReason::length);
  CHECK(outputs.tokens[1].token_ids == std::vector<std::int32_t>{20});
  CHECK(outputs.released == std::vector<LeaseId>{5, 6});
  CHECK(mailbox.WaitOutputs(milliseconds(1)).IsEmpty());
}

TEST_CASE("cancel is idempotent and ignores unknown ids") {
  Mailbox mailbox(4);
  mailbox.Cancel(7);
  const SeqId id = mailbox.Submit(std::make_unique<Sequence>());
  mailbox.Cancel(id);
  mailbox.Cancel(id);
  CHECK(mailbox.Take(false).cancelled == std::set<SeqId>{id});
  mailbox.Deliver({{Delta(id, {}, FinishReason::cancelled)}, {}});
  mailbox.WaitOutputs(milliseconds(0));
  mailbox.Cancel(id);
  CHECK(mailbox.Take(false).cancelled.empty());
}

TEST_CASE("after the end what is left can be pulled, then calls throw") {
  for (const bool has_failed : {false, true}) {
    Mailbox mailbox(4);
    mailbox.Submit(std::make_unique<Sequence>());
    std::optional<Error> failure;
    if (has_failed) failure = Error(ErrorCode::kEngineDead, "lost");
    const ErrorCode code = has_failed ? ErrorCode::kEngineDead : ErrorCode::kDraining;
    CHECK(mailbox.Refuse(failure).submitted.size() == 1);
    CHECK(CodeOf([&] { mailbox.Submit(std::make_unique<Sequence>()); }) == code);
    mailbox.Deliver({{Delta(1, {}, FinishReason::cancelled)}, {}});
    mailbox.Stop();
    CHECK(mailbox.WaitOutputs(milliseconds(0)).tokens.size() == 1);
    for (int i = 0; i < 2; ++i) {
      CHECK(CodeOf([&] { mailbox.WaitOutputs(milliseconds(0)); }) == code);
    }
  }
}

TEST_CASE("between the last output and the end nobody gets an empty result") {
  Mailbox mailbox(4);
  mailbox.Submit(std::make_unique<Sequence>());
  mailbox.Refuse(Error(ErrorCode::kEngineDead, "lost"));
  mailbox.Deliver({{Delta(1, {}, FinishReason::error)}, {}});
  CHECK(mailbox.WaitOutputs(milliseconds(0)).tokens.size() == 1);
  std::thread engine([&] {
    std::this_thread::sleep_for(milliseconds(20));
    mailbox.Stop();
  });
  CHECK(CodeOf([&] { mailbox.WaitOutputs(milliseconds(0)); }) == ErrorCode::kEngineDead);
  engine.join();
}

TEST_CASE("waiters are woken by outputs, by arrivals and by the end") {
  Mailbox mailbox(4);
  std::atomic<bool> has_taken{false};
  std::thread engine([&] {
    mailbox.Take(true);
    has_taken = true;
    mailbox.Deliver({{Delta(1, {1})}, {}});
    while (!mailbox.Take(true).closed) {
    }
    mailbox.Stop();
  });
  mailbox.Submit(std::make_unique<Sequence>());
  CHECK(mailbox.WaitOutputs(std::chrono::seconds(60)).tokens.size() == 1);
  CHECK(has_taken);
  std::thread waiter([&] {
    CHECK(CodeOf([&] { mailbox.WaitOutputs(std::chrono::seconds(60)); }) == ErrorCode::kDraining);
  });
  mailbox.Close();
  waiter.join();
  engine.join();
}

}  // namespace
}  // namespace pyvlm
