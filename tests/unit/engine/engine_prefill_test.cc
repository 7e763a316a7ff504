// What happens to a request while its prompt is being prefilled: ended, preempted, joined.
#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"

namespace eta {
namespace {

using testing::Ask;
using testing::Greedy;
using testing::OptionsFor;
using testing::Prompt;
using testing::Recorder;
using testing::Start;
using testing::Submit;
using testing::TinyModel;
using testing::WaitUntilIdle;

// Keeps the step reports, and holds the engine still right after chosen steps, so that a test can
// act in the middle of a prefill however fast the machine is.
class StepGate : public Observer {
 public:
  // Steps are numbered among those with prefill rows, from 1.
  explicit StepGate(std::set<int> hold_after) : hold_after_(std::move(hold_after)) {}

  void OnStep(const StepReport& report) override {
    std::unique_lock lock(mutex_);
    reports_.push_back(report);
    if (report.prefill_rows == 0 || !hold_after_.contains(++prefill_steps_)) return;
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
  }
  void OnRequestEnd(const Request& request, const absl::Status& status,
                    const FinishedEvent&) override {
    std::lock_guard lock(mutex_);
    if (!status.ok() && request.id == "ended") reports_at_end_ = reports_.size();
    changed_.notify_all();
  }

  void WaitUntilHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_; });
  }
  void Release() {
    std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::vector<StepReport> reports() {
    std::lock_guard lock(mutex_);
    return reports_;
  }
  // How many steps had been reported when the request "ended" did.
  size_t reports_at_end() {
    std::lock_guard lock(mutex_);
    return reports_at_end_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> hold_after_;
  std::vector<StepReport> reports_;
  size_t reports_at_end_ = 0;
  int prefill_steps_ = 0;
  bool held_ = false;
};

class Prefill : public ::testing::Test {
 protected:
  // Steps of 16 rows over blocks of 16 tokens.
  EngineOptions SmallSteps() {
    EngineOptions options = OptionsFor(model_);
    options.max_step_tokens = 16;
    options.max_running = 4;
    return options;
  }

  TinyModel model_;
};

// A mate of 4 prompt tokens decodes while `lengthy` is prefilled; the engine is held when two of
// its chunks are done, until it is cancelled or, if it has so much `time`, past its deadline.
Recorder::Answer EndDuringPrefill(const EngineOptions& options, Request lengthy,
                                  std::optional<std::chrono::milliseconds> time = {}) {
  StepGate gate({1, 3});
  const auto engine = Start(options, &gate);
  const auto mate_recorder = std::make_shared<Recorder>();
  const auto mate = testing::Submit(*engine, Greedy(Prompt(4, 1), 2000), mate_recorder);
  EXPECT_TRUE(mate.ok());
  gate.WaitUntilHeld();
  lengthy.id = "ended";
  if (time) lengthy.deadline = Clock::now() + *time;
  const auto recorder = std::make_shared<Recorder>();
  const auto handle = testing::Submit(*engine, lengthy, recorder);
  EXPECT_TRUE(handle.ok()) << handle.status();
  gate.Release();
  gate.WaitUntilHeld();
  const auto before = gate.reports().back();
  EXPECT_GT(before.blocks_used, 20) << "the whole prompt has its blocks";
  EXPECT_FALSE(recorder->ended());
  if (time) {
    std::this_thread::sleep_until(lengthy.deadline);
  } else {
    engine->Cancel(handle.value_or(0));
  }
  gate.Release();
  const Recorder::Answer answer = recorder->Wait();
  const size_t ids = mate_recorder->SoFar().ids.size();
  mate_recorder->WaitForIds(ids + 2);  // a step has begun and been reported since
  engine->Cancel(*mate);
  mate_recorder->Wait();
  WaitUntilIdle(*engine);

  const auto reports = gate.reports();
  EXPECT_EQ(gate.reports_at_end(), 3u) << "no step between the end's cause and the end";
  if (reports.size() > 3) {
    EXPECT_EQ(reports[3].blocks_used, 1) << "only the mate's";
    EXPECT_EQ(reports[3].prefill_rows, 0);
    EXPECT_EQ(reports[3].decode_rows, 1);
  } else {
    ADD_FAILURE() << "no step after the end";
  }
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);

  // What had been prefilled is whole and may be used again.
  lengthy.deadline = Clock::time_point::max();
  const Recorder::Answer again = Ask(*engine, lengthy);
  const Recorder::Answer expected = Ask(*Start(options), lengthy);
  EXPECT_GT(again.started.at(0).cached_tokens, 0);
  EXPECT_EQ(again.ids, expected.ids);
  return answer;
}

void ExpectEndedDuringPrefill(const Recorder::Answer& answer) {
  ASSERT_EQ(answer.started.size(), 1u);
  ASSERT_FALSE(answer.prefill.empty());
  EXPECT_GT(answer.prefill.back().done, 0);
  EXPECT_LT(answer.prefill.back().done, answer.prefill.back().total);
  EXPECT_TRUE(answer.ids.empty());
  EXPECT_TRUE(answer.text.empty());
  EXPECT_FALSE(answer.finished);
  EXPECT_EQ(answer.so_far.output_tokens, 0);
}

// bad input: Deadlines and clients | a client that cancels or vanishes in the middle | CANCELLED in
//   metrics and log; blocks and place free before the next step |
//   BadClientTest.ClientsThatCancelOrVanish
TEST_F(Prefill, CancellingMidPromptFreesTheBlocksBeforeTheNextStep) {
  const auto answer = EndDuringPrefill(SmallSteps(), Greedy(Prompt(400, 2), 5));
  EXPECT_TRUE(absl::IsCancelled(answer.status)) << answer.status;
  ExpectEndedDuringPrefill(answer);
}

// bad input: Deadlines and clients | a deadline that passes in the middle | DEADLINE_EXCEEDED,
//   blocks free before the next step | OnePlaceTest.ADeadlineThatPassesInTheMiddleEndsTheWork
TEST_F(Prefill, ADeadlineMidPromptFreesTheBlocksBeforeTheNextStep) {
  const auto answer =
      EndDuringPrefill(SmallSteps(), Greedy(Prompt(400, 2), 5), std::chrono::seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status)) << answer.status;
  EXPECT_EQ(GetErrorDetail(answer.status).reason, "DEADLINE_DECODING");
  ExpectEndedDuringPrefill(answer);
}

std::vector<TokenDetail> PromptLogprobs(const Recorder::Answer& answer) {
  std::vector<TokenDetail> details;
  int32_t done = 0;
  for (const PrefillEvent& event : answer.prefill) {
    EXPECT_GT(event.done, done) << "progress only grows";
    // Each row tells of the token after it; the last row's is not part of the prompt.
    const int32_t told = event.done - done - (event.done == event.total ? 1 : 0);
    EXPECT_EQ(static_cast<int32_t>(event.prompt_logprobs.size()), told);
    done = event.done;
    details.insert(details.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  }
  return details;
}

TEST_F(Prefill, PreemptionMidPromptRepeatsNoPromptLogprobAndLosesNone) {
  std::ifstream file(ETA_SOURCE_DIR "/deploy/samples/needle.txt");
  const std::string story{std::istreambuf_iterator<char>(file), {}};
  Request observed = Greedy({}, 8);
  observed.prompt = story.substr(0, 1400);
  observed.output.prompt_logprobs = 3;
  const auto plenty = Start(SmallSteps());
  const auto expected = Ask(*plenty, observed);
  ASSERT_TRUE(expected.finished) << expected.status;
  const int32_t prompt_tokens = expected.finished->prompt_tokens;
  ASSERT_GT(prompt_tokens, 300) << "still in prefill when the blocks run out";

  // The first request, of 7 blocks, needs a ninth after some twenty steps; there is one to spare.
  const int32_t pool = 7 + (prompt_tokens + 15) / 16 + 1;
  StepGate gate({1});
  const auto engine = Start(testing::WithBlocks(SmallSteps(), pool), &gate);
  const auto first = Submit(*engine, Greedy(Prompt(111, 1), 60));
  gate.WaitUntilHeld();
  const auto second = Submit(*engine, observed);
  gate.Release();
  const auto got = second->Wait();
  ASSERT_TRUE(got.finished) << got.status;
  EXPECT_EQ(first->Wait().ids.size(), 60u);
  EXPECT_EQ(got.finished->preemptions, 1);
  int32_t prefill_rows = 0;
  for (const StepReport& report : gate.reports()) prefill_rows += report.prefill_rows;
  EXPECT_GT(prefill_rows, 111 + prompt_tokens) << "some of the prompt was computed twice";
  EXPECT_LT(prefill_rows, 111 + 2 * prompt_tokens) << "the prompt was not done when preempted";

  const auto a = PromptLogprobs(expected);
  const auto b = PromptLogprobs(got);
  EXPECT_EQ(a.size(), static_cast<size_t>(prompt_tokens) - 1);
  ASSERT_EQ(b.size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(b[i].id, a[i].id) << "token " << i + 1;
    EXPECT_EQ(b[i].logprob, a[i].logprob) << "token " << i + 1;
    ASSERT_EQ(b[i].top.size(), 3u);
    EXPECT_EQ(b[i].top[0].id, a[i].top[0].id);
  }
  EXPECT_EQ(got.ids, expected.ids);
  EXPECT_EQ(got.text, expected.text);
}

TEST_F(Prefill, TwinsThatPrefillSideBySideAnswerTheSameAndShareAfterwards) {
  const Request twin = Greedy(Prompt(100, 3), 10);
  Request scored = twin;
  scored.output.prompt_logprobs = 0;  // shares nothing, so it does not wait for the first either
  EngineOptions options = SmallSteps();
  options.max_step_tokens = 64;  // the second step ends one prompt and begins the other
  const auto expected = Ask(*Start(options), twin);
  StepGate gate({1, 3});
  const auto engine = Start(options, &gate);
  const auto mate = Submit(*engine, Greedy(Prompt(4, 1), 40));
  gate.WaitUntilHeld();
  const auto one = Submit(*engine, twin);
  const auto other = Submit(*engine, scored);
  gate.Release();
  gate.WaitUntilHeld();
  EXPECT_EQ(one->SoFar().ids.size(), 1u);
  const auto half_way = other->SoFar();
  EXPECT_TRUE(half_way.ids.empty());
  EXPECT_EQ(half_way.prefill.size(), 1u) << "it computes its prompt itself";
  const auto late = Submit(*engine, twin);
  gate.Release();
  for (const auto& recorder : {one, other, late}) {
    const auto answer = recorder->Wait();
    ASSERT_TRUE(answer.finished) << answer.status;
    EXPECT_EQ(answer.ids, expected.ids);
  }
  EXPECT_EQ(one->Wait().started[0].cached_tokens, 0);
  EXPECT_EQ(other->Wait().started[0].cached_tokens, 0);
  EXPECT_EQ(late->Wait().started[0].cached_tokens, 96) << "uses what the first has done";
  mate->Wait();
  WaitUntilIdle(*engine);
  const EngineSnapshot snapshot = engine->Snapshot();
  EXPECT_EQ(snapshot.blocks_used, 0);
  EXPECT_EQ(snapshot.blocks_cached, 6) << "one copy of the prompt's six full blocks";
  EXPECT_EQ(snapshot.blocks_free, engine->info().num_blocks - 6);
  const auto again = Ask(*engine, twin);
  EXPECT_EQ(again.started.at(0).cached_tokens, 96);
  EXPECT_EQ(again.ids, expected.ids);
}

}  // namespace
}  // namespace eta
