// Deadlines that waiting for a slot leaves no time for are refused when they come, under a clock of
// the test's own: a step takes a second, an answer as many as it has tokens.
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/scripted_engine.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Greedy;
using testing::Prompt;
using testing::ScriptedEngine;
using testing::TinyModel;

class EngineAdmissionTest : public ::testing::Test {
 protected:
  // An engine of one slot, but for what `options` says.
  void Start(const BatcherOptions& options, int32_t num_blocks = 64) {
    engine_ = std::make_unique<ScriptedEngine>(
        ScriptedEngine::Options{
            .model_dir = model_.path(), .num_blocks = num_blocks, .batcher = options},
        *backend_);
  }
  void Start() { Start({.max_running = 1}); }

  // Its handle.
  size_t Submit(int32_t answer, milliseconds deadline, const std::string& tenant = "",
                int32_t prompt = 5) {
    Request request =
        Greedy(Prompt(prompt, static_cast<uint32_t>(engine_->num_requests())), answer);
    request.tenant = tenant;
    request.deadline = engine_->now() + deadline;
    engine_->Submit(std::move(request));
    return engine_->num_requests() - 1;
  }
  size_t Submit(int32_t answer) { return Submit(answer, std::chrono::hours(1)); }
  void Step(int times = 1) {
    for (int i = 0; i < times; ++i) ASSERT_TRUE(engine_->Step().ok());
  }
  std::string Reason(size_t handle) const { return Failure(handle).reason; }
  ErrorDetail Failure(size_t handle) const { return GetErrorDetail(engine_->failure(handle)); }
  int32_t running() const { return engine_->dispatcher().batcher().num_running(); }
  int32_t waiting() const { return engine_->dispatcher().batcher().queue().size(); }

  // Ten seconds in its slot, and the one after it just admitted.
  void LearnThatAnAnswerTakesTenSeconds() {
    Submit(10);
    Step(10);
    ASSERT_EQ(running(), 0);
    Submit(200);
    Step();
    ASSERT_EQ(running(), 1);
  }

  TinyModel model_;
  std::unique_ptr<Backend> backend_ = *MakeBackend({.name = "cpu", .num_threads = 1});
  std::unique_ptr<ScriptedEngine> engine_;
};

TEST_F(EngineAdmissionTest, WithoutAnEstimateNobodyIsRefusedAndTheDeadlineEndsTheWait) {
  Start();
  Submit(10);
  Step(3);
  const size_t behind = Submit(1, milliseconds(1));
  EXPECT_EQ(Reason(behind), "");
  EXPECT_EQ(waiting(), 1);
  Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(engine_->failure(behind)));
  EXPECT_EQ(Reason(behind), "DEADLINE_QUEUED");
}

// bad input: Deadlines and clients | a deadline shorter than the predicted wait and prefill |
//   RESOURCE_EXHAUSTED at once, DEADLINE_TOO_SHORT | BadClientTest.DeadlinesTooShortForTheWork
TEST_F(EngineAdmissionTest, ADeadlineShorterThanTheWaitForASlotIsRefusedAndOneJustLongerIsNot) {
  Start();
  LearnThatAnAnswerTakesTenSeconds();
  const size_t refused = Submit(1, milliseconds(9'999));
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->failure(refused))) << engine_->failure(refused);
  EXPECT_EQ(Reason(refused), "DEADLINE_TOO_SHORT");
  EXPECT_EQ(Failure(refused).metadata.at("predicted_ms"), "10000");
  EXPECT_EQ(Failure(refused).retry_after, seconds(10));
  EXPECT_EQ(waiting(), 0);

  const size_t first = Submit(1, seconds(10));
  EXPECT_EQ(Reason(first), "");
  EXPECT_EQ(Reason(Submit(1, milliseconds(19'999))), "DEADLINE_TOO_SHORT") << "one is before it";
  const size_t second = Submit(1, seconds(20));
  EXPECT_EQ(waiting(), 2);

  Step(4);
  const size_t later = Submit(1, milliseconds(25'999));
  EXPECT_EQ(Failure(later).metadata.at("predicted_ms"), "26000") << "four seconds have passed";

  Step(6);  // it took longer than was thought
  EXPECT_EQ(Reason(first), "DEADLINE_QUEUED");
  EXPECT_EQ(Reason(second), "");
}

TEST_F(EngineAdmissionTest, AFreeSlotIsNotWaitedFor) {
  Start({.max_running = 2});
  Submit(8);
  Submit(8);
  Step(8);
  ASSERT_EQ(running(), 0);
  Submit(200);
  Submit(200);
  Step();
  EXPECT_EQ(Reason(Submit(1, milliseconds(3'999))), "DEADLINE_TOO_SHORT") << "two in eight seconds";
  engine_->Cancel(2);
  EXPECT_EQ(Reason(Submit(1, milliseconds(1))), "") << "one has just come free";
  EXPECT_EQ(Reason(Submit(1, milliseconds(1))), "DEADLINE_TOO_SHORT") << "and is taken";
}

TEST_F(EngineAdmissionTest, AReaderThatFallsBehindLeavesItsSlotToOthers) {
  Start();
  LearnThatAnAnswerTakesTenSeconds();
  engine_->SetCongested(1, true);
  Step();
  const size_t other = Submit(1, seconds(2));
  EXPECT_EQ(Reason(other), "");
  Step();
  EXPECT_EQ(engine_->ids(other).size(), 1u);
}

TEST_F(EngineAdmissionTest, AnEstimateFromBeforeAnIdleTimeRefusesNobodyAndIsMadeAnew) {
  Start();
  LearnThatAnAnswerTakesTenSeconds();
  engine_->Cancel(1);
  Step(32);
  Submit(4);
  Step();
  const size_t behind = Submit(1, milliseconds(1));
  EXPECT_EQ(Reason(behind), "");
  Step(4);
  EXPECT_EQ(Reason(behind), "DEADLINE_QUEUED");
  Submit(200);
  Step();
  EXPECT_EQ(Reason(Submit(1, milliseconds(3'999))), "DEADLINE_TOO_SHORT");
  EXPECT_EQ(Reason(Submit(1, seconds(4))), "");
}

TEST_F(EngineAdmissionTest, WaitingForBlocksIsWaitingForASlot) {
  Start({.max_running = 4}, /*num_blocks=*/5);  // of 16 tokens
  const auto submit = [&](milliseconds deadline) { return Submit(8, deadline, "", 40); };
  submit(std::chrono::hours(1));
  submit(std::chrono::hours(1));
  submit(std::chrono::hours(1));
  Step();
  ASSERT_EQ(running(), 1) << "three blocks each, and one in reserve";
  ASSERT_EQ(waiting(), 2);
  Step(8);
  ASSERT_EQ(running(), 1);
  ASSERT_EQ(waiting(), 1);
  EXPECT_EQ(Reason(submit(milliseconds(15'999))), "DEADLINE_TOO_SHORT");
  EXPECT_EQ(Reason(submit(seconds(16))), "");
}

TEST_F(EngineAdmissionTest, ABacklogOfAnotherTenantCountsForNoMoreThanItsRounds) {
  Start();
  LearnThatAnAnswerTakesTenSeconds();
  for (int i = 0; i < 6; ++i) Submit(250, std::chrono::hours(1), "a");
  EXPECT_EQ(Reason(Submit(250, milliseconds(69'999), "a")), "DEADLINE_TOO_SHORT")
      << "six before it";
  EXPECT_EQ(Reason(Submit(250, milliseconds(29'999), "b")), "DEADLINE_TOO_SHORT");
  EXPECT_EQ(Reason(Submit(250, seconds(30), "b")), "") << "two before it: what costs as much as it";
}

TEST_F(EngineAdmissionTest, WhoIsDisplacedFromAFullQueueEndsUnlessItRuns) {
  Start();
  Submit(2);
  Step(2);
  const size_t running = Submit(200);
  Step();
  const size_t waiting = Submit(1);
  Batcher& batcher = engine_->dispatcher().batcher();
  const WaitEstimate estimate = batcher.queue().wait_estimate();
  EXPECT_EQ(estimate.RetryAfter(0, 2), seconds(4)) << "two, and two seconds for each";
  batcher.DrainLeft();
  for (const size_t handle : {running, waiting, size_t{99}}) {
    batcher.Refuse(handle, absl::ResourceExhaustedError("displaced"));
  }
  EXPECT_TRUE(engine_->failure(running).ok()) << "it has its slot";
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->failure(waiting)));
  EXPECT_EQ(batcher.DrainLeft(), std::vector<uint64_t>{waiting});
}

}  // namespace
}  // namespace eta
