// Passes of passes over an engine whose passes end when the test says so.

#include "calibration/calibrate/pass_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "tests/testing/engine/puppet_engine.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Pass NumberedPass(size_t index) {
  return {.id = std::to_string(index),
          .tokens = {1, static_cast<int32_t>(index) + 2},
          .decode_from = 2};
}

PassOutcome NumberedOutcome(const PuppetPass& pass) {
  return {.losses = {static_cast<float>(pass.pass().tokens[1] - 2)}};
}

// RunPasses on a thread of its own, over the puppet or an engine around it.
class BatchRun {
 public:
  BatchRun(Engine& engine, size_t count, size_t window = 64)
      : done_(std::async(std::launch::async, [this, &engine, count, window] {
          return RunPasses(engine,
                           {.count = count,
                            .window = window,
                            .make = NumberedPass,
                            .collect =
                                [this](size_t index, const PassOutcome& outcome) {
                                  EXPECT_EQ(outcome.losses.at(0), static_cast<float>(index));
                                  collected_.push_back(index);
                                  return index == bad_ ? absl::DataLossError("bad outcome")
                                                       : absl::OkStatus();
                                },
                            .progress = {}},
                           stop_.get_token());
        })) {}

  void Stop() { stop_.request_stop(); }
  absl::Status Wait() { return done_.get(); }
  // After Wait().
  const std::vector<size_t>& collected() const { return collected_; }
  std::atomic<size_t> bad_ = ~size_t{0};

 private:
  std::stop_source stop_;
  std::vector<size_t> collected_;
  std::future<absl::Status> done_;
};

TEST(RunPasses, TakesOutcomesInOrderWhateverEndsFirst) {
  PuppetEngine engine;
  BatchRun batch(engine, 4);
  std::vector<std::shared_ptr<PuppetPass>> passes;
  for (int i = 0; i < 4; ++i) passes.push_back(engine.TakePass());
  for (const size_t i : {2, 0, 3, 1}) passes[i]->End(NumberedOutcome(*passes[i]));
  EXPECT_EQ(batch.Wait(), absl::OkStatus());
  EXPECT_THAT(batch.collected(), ElementsAre(0, 1, 2, 3));
}

TEST(RunPasses, HasNoMoreThanTheWindowOutsideOfTheirTurn) {
  PuppetEngine engine;
  BatchRun batch(engine, 5, /*window=*/2);
  const auto first = engine.TakePass();
  const auto second = engine.TakePass();
  // The third waits for the first to be taken, so it is the fifth handle that never comes early.
  second->End(NumberedOutcome(*second));
  first->End(NumberedOutcome(*first));
  for (uint64_t handle = 3; handle <= 5; ++handle) {
    const auto next = engine.TakePass();
    EXPECT_EQ(next->handle(), handle);
    next->End(NumberedOutcome(*next));
  }
  EXPECT_EQ(batch.Wait(), absl::OkStatus());
  EXPECT_THAT(batch.collected(), ElementsAre(0, 1, 2, 3, 4));
}

TEST(RunPasses, AnErrorCancelsTheOthersAndWaitsForThem) {
  PuppetEngine engine;
  BatchRun batch(engine, 3);
  std::vector<std::shared_ptr<PuppetPass>> passes;
  for (int i = 0; i < 3; ++i) passes.push_back(engine.TakePass());
  passes[0]->End(absl::UnavailableError("device lost"));
  ASSERT_TRUE(engine.AwaitCancel(passes[1]->handle()));
  ASSERT_TRUE(engine.AwaitCancel(passes[2]->handle()));
  passes[1]->End(absl::CancelledError("cancelled"));
  passes[2]->End(absl::CancelledError("cancelled"));
  EXPECT_EQ(batch.Wait(), absl::UnavailableError("device lost"));
  EXPECT_THAT(batch.collected(), IsEmpty());
}

TEST(RunPasses, AnOutcomeThatIsRefusedEndsThePass) {
  PuppetEngine engine;
  BatchRun batch(engine, 2);
  batch.bad_ = 0;
  const auto first = engine.TakePass();
  const auto second = engine.TakePass();
  first->End(NumberedOutcome(*first));
  ASSERT_TRUE(engine.AwaitCancel(second->handle()));
  second->End(absl::CancelledError("cancelled"));
  EXPECT_EQ(batch.Wait(), absl::DataLossError("bad outcome"));
}

TEST(RunPasses, StopCancelsAllAndReturnsOnceTheyEnded) {
  PuppetEngine engine;
  BatchRun batch(engine, 2);
  const auto first = engine.TakePass();
  const auto second = engine.TakePass();
  batch.Stop();
  ASSERT_TRUE(engine.AwaitCancel(first->handle()));
  ASSERT_TRUE(engine.AwaitCancel(second->handle()));
  first->End(absl::CancelledError("cancelled"));
  second->End(NumberedOutcome(*second));
  EXPECT_EQ(batch.Wait().code(), absl::StatusCode::kCancelled);
}

TEST(RunPasses, ReturnsWhatTheEngineRefusesWith) {
  PuppetEngine engine;
  engine.Drain(Clock::now());
  BatchRun batch(engine, 2);
  EXPECT_EQ(GetErrorDetail(batch.Wait()).reason, "DRAINING");
}

// Refuses passes beyond `room` that have not ended.
class CrowdedEngine final : public Engine {
 public:
  CrowdedEngine(PuppetEngine& inner, int room) : inner_(inner), room_(room) {}

  const EngineInfo& info() const override { return inner_.info(); }
  const Limits& limits() const override { return inner_.limits(); }
  FormatCompiler& formats() override { return inner_.formats(); }
  absl::StatusOr<int64_t> Check(const Request& request) const override {
    return inner_.Check(request);
  }
  absl::StatusOr<PreparedRequest> Prepare(Request request) const override {
    return inner_.Prepare(std::move(request));
  }
  absl::StatusOr<uint64_t> Submit(PreparedRequest request,
                                  std::shared_ptr<EventSink> sink) override {
    return inner_.Submit(std::move(request), std::move(sink));
  }
  absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) override {
    if (room_ == 0) {
      return MakeError(absl::StatusCode::kResourceExhausted, "full", {.reason = "QUEUE_FULL"});
    }
    --room_;
    return inner_.SubmitPass(std::move(pass), std::make_shared<Leaving>(*this, std::move(sink)));
  }
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override {
    return inner_.Tokenize(text);
  }
  absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids,
                                         bool special_tokens) const override {
    return inner_.Detokenize(ids, special_tokens);
  }
  void Cancel(uint64_t handle) override { inner_.Cancel(handle); }
  void Drain(Clock::time_point deadline) override { inner_.Drain(deadline); }
  EngineSnapshot Snapshot() const override { return inner_.Snapshot(); }

 private:
  class Leaving final : public PassSink {
   public:
    Leaving(CrowdedEngine& engine, std::shared_ptr<PassSink> sink)
        : engine_(engine), sink_(std::move(sink)) {}
    void OnProgress(int32_t rows_done) override { sink_->OnProgress(rows_done); }
    void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
      ++engine_.room_;
      sink_->OnEnded(std::move(outcome));
    }

   private:
    CrowdedEngine& engine_;
    std::shared_ptr<PassSink> sink_;
  };

  PuppetEngine& inner_;
  std::atomic<int> room_;
};

TEST(RunPasses, WaitsForItsOwnWhereTheQueueIsFull) {
  PuppetEngine puppet;
  CrowdedEngine engine(puppet, 2);
  BatchRun batch(engine, 5);
  for (int i = 0; i < 5; ++i) {
    const auto pass = puppet.TakePass();
    ASSERT_NE(pass, nullptr);
    pass->End(NumberedOutcome(*pass));
  }
  EXPECT_EQ(batch.Wait(), absl::OkStatus());
}

TEST(RunPasses, AQueueFullOfOthersIsAnError) {
  PuppetEngine puppet;
  CrowdedEngine engine(puppet, 0);
  BatchRun batch(engine, 1);
  EXPECT_EQ(GetErrorDetail(batch.Wait()).reason, "QUEUE_FULL");
}

}  // namespace
}  // namespace eta::testing
