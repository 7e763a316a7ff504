// Passes of probes over an engine whose probes end when the test says so.

#include "calibration/probe_pass.h"

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

Probe NumberedProbe(size_t index) {
  return {.id = std::to_string(index),
          .tokens = {1, static_cast<int32_t>(index) + 2},
          .decode_from = 2};
}

ProbeOutcome NumberedOutcome(const PuppetProbe& probe) {
  return {.losses = {static_cast<float>(probe.probe().tokens[1] - 2)}};
}

// RunProbes on a thread of its own, over the puppet or an engine around it.
class Pass {
 public:
  Pass(Engine& engine, size_t count, size_t window = 64)
      : done_(std::async(std::launch::async, [this, &engine, count, window] {
          return RunProbes(engine,
                           {.count = count,
                            .window = window,
                            .make = NumberedProbe,
                            .take =
                                [this](size_t index, const ProbeOutcome& outcome) {
                                  EXPECT_EQ(outcome.losses.at(0), static_cast<float>(index));
                                  taken_.push_back(index);
                                  return index == bad_ ? absl::DataLossError("bad outcome")
                                                       : absl::OkStatus();
                                },
                            .progress = {}},
                           stop_.get_token());
        })) {}

  void Stop() { stop_.request_stop(); }
  absl::Status Wait() { return done_.get(); }
  // After Wait().
  const std::vector<size_t>& taken() const { return taken_; }
  std::atomic<size_t> bad_ = ~size_t{0};

 private:
  std::stop_source stop_;
  std::vector<size_t> taken_;
  std::future<absl::Status> done_;
};

TEST(RunProbes, TakesOutcomesInOrderWhateverEndsFirst) {
  PuppetEngine engine;
  Pass pass(engine, 4);
  std::vector<std::shared_ptr<PuppetProbe>> probes;
  for (int i = 0; i < 4; ++i) probes.push_back(engine.TakeProbe());
  for (const size_t i : {2, 0, 3, 1}) probes[i]->End(NumberedOutcome(*probes[i]));
  EXPECT_EQ(pass.Wait(), absl::OkStatus());
  EXPECT_THAT(pass.taken(), ElementsAre(0, 1, 2, 3));
}

TEST(RunProbes, HasNoMoreThanTheWindowOutsideOfTheirTurn) {
  PuppetEngine engine;
  Pass pass(engine, 5, /*window=*/2);
  const auto first = engine.TakeProbe();
  const auto second = engine.TakeProbe();
  // The third waits for the first to be taken, so it is the fifth handle that never comes early.
  second->End(NumberedOutcome(*second));
  first->End(NumberedOutcome(*first));
  for (uint64_t handle = 3; handle <= 5; ++handle) {
    const auto next = engine.TakeProbe();
    EXPECT_EQ(next->handle(), handle);
    next->End(NumberedOutcome(*next));
  }
  EXPECT_EQ(pass.Wait(), absl::OkStatus());
  EXPECT_THAT(pass.taken(), ElementsAre(0, 1, 2, 3, 4));
}

TEST(RunProbes, AnErrorCancelsTheOthersAndWaitsForThem) {
  PuppetEngine engine;
  Pass pass(engine, 3);
  std::vector<std::shared_ptr<PuppetProbe>> probes;
  for (int i = 0; i < 3; ++i) probes.push_back(engine.TakeProbe());
  probes[0]->End(absl::UnavailableError("device lost"));
  ASSERT_TRUE(engine.AwaitCancel(probes[1]->handle()));
  ASSERT_TRUE(engine.AwaitCancel(probes[2]->handle()));
  probes[1]->End(absl::CancelledError("cancelled"));
  probes[2]->End(absl::CancelledError("cancelled"));
  EXPECT_EQ(pass.Wait(), absl::UnavailableError("device lost"));
  EXPECT_THAT(pass.taken(), IsEmpty());
}

TEST(RunProbes, AnOutcomeThatIsRefusedEndsThePass) {
  PuppetEngine engine;
  Pass pass(engine, 2);
  pass.bad_ = 0;
  const auto first = engine.TakeProbe();
  const auto second = engine.TakeProbe();
  first->End(NumberedOutcome(*first));
  ASSERT_TRUE(engine.AwaitCancel(second->handle()));
  second->End(absl::CancelledError("cancelled"));
  EXPECT_EQ(pass.Wait(), absl::DataLossError("bad outcome"));
}

TEST(RunProbes, StopCancelsAllAndReturnsOnceTheyEnded) {
  PuppetEngine engine;
  Pass pass(engine, 2);
  const auto first = engine.TakeProbe();
  const auto second = engine.TakeProbe();
  pass.Stop();
  ASSERT_TRUE(engine.AwaitCancel(first->handle()));
  ASSERT_TRUE(engine.AwaitCancel(second->handle()));
  first->End(absl::CancelledError("cancelled"));
  second->End(NumberedOutcome(*second));
  EXPECT_EQ(pass.Wait().code(), absl::StatusCode::kCancelled);
}

TEST(RunProbes, ReturnsWhatTheEngineRefusesWith) {
  PuppetEngine engine;
  engine.Drain(Clock::now());
  Pass pass(engine, 2);
  EXPECT_EQ(GetErrorDetail(pass.Wait()).reason, "DRAINING");
}

// Refuses probes beyond `room` that have not ended.
class CrowdedEngine final : public Engine {
 public:
  CrowdedEngine(PuppetEngine& inner, int room) : inner_(inner), room_(room) {}

  const EngineInfo& info() const override { return inner_.info(); }
  const Limits& limits() const override { return inner_.limits(); }
  absl::StatusOr<uint64_t> Submit(Request request, std::shared_ptr<EventSink> sink) override {
    return inner_.Submit(std::move(request), std::move(sink));
  }
  absl::StatusOr<uint64_t> SubmitProbe(Probe probe, std::shared_ptr<ProbeSink> sink) override {
    if (room_ == 0) {
      return MakeError(absl::StatusCode::kResourceExhausted, "full", {.reason = "QUEUE_FULL"});
    }
    --room_;
    return inner_.SubmitProbe(std::move(probe), std::make_shared<Leaving>(*this, std::move(sink)));
  }
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override {
    return inner_.Tokenize(text);
  }
  void Cancel(uint64_t handle) override { inner_.Cancel(handle); }
  void Drain(Clock::time_point deadline) override { inner_.Drain(deadline); }
  EngineSnapshot Snapshot() const override { return inner_.Snapshot(); }

 private:
  class Leaving final : public ProbeSink {
   public:
    Leaving(CrowdedEngine& engine, std::shared_ptr<ProbeSink> sink)
        : engine_(engine), sink_(std::move(sink)) {}
    void OnProgress(int32_t rows_done) override { sink_->OnProgress(rows_done); }
    void OnEnded(absl::StatusOr<ProbeOutcome> outcome) override {
      ++engine_.room_;
      sink_->OnEnded(std::move(outcome));
    }

   private:
    CrowdedEngine& engine_;
    std::shared_ptr<ProbeSink> sink_;
  };

  PuppetEngine& inner_;
  std::atomic<int> room_;
};

TEST(RunProbes, WaitsForItsOwnWhereTheQueueIsFull) {
  PuppetEngine puppet;
  CrowdedEngine engine(puppet, 2);
  Pass pass(engine, 5);
  for (int i = 0; i < 5; ++i) {
    const auto probe = puppet.TakeProbe();
    ASSERT_NE(probe, nullptr);
    probe->End(NumberedOutcome(*probe));
  }
  EXPECT_EQ(pass.Wait(), absl::OkStatus());
}

TEST(RunProbes, AQueueFullOfOthersIsAnError) {
  PuppetEngine puppet;
  CrowdedEngine engine(puppet, 0);
  Pass pass(engine, 1);
  EXPECT_EQ(GetErrorDetail(pass.Wait()).reason, "QUEUE_FULL");
}

}  // namespace
}  // namespace eta::testing
