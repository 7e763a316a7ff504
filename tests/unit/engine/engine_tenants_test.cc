// Several tenants on one engine: shares, limits, whose request a full queue refuses, and that none
// of it shows in an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "engine/base/error.h"
#include "engine/batching/fairness/tenant_shares.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;

Request Of(const std::string& tenant, Request request, double weight = 1.0,
           int64_t max_kv_tokens = 0) {
  request.tenant = tenant;
  request.share = {.weight = weight, .max_kv_tokens = max_kv_tokens};
  return request;
}

// How many sequences ran in each step.
class StepSizes : public Observer {
 public:
  void OnStep(const StepReport& report) override {
    const std::lock_guard lock(mutex_);
    steps_.push_back(report.sequences_running);
  }
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent&) override {}
  std::vector<int32_t> steps() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }
  int32_t most() const { return std::ranges::max(steps()); }

 private:
  mutable std::mutex mutex_;
  std::vector<int32_t> steps_;
};

class EngineTenantsTest : public ::testing::Test {
 protected:
  TinyModel model_;
};

TEST_F(EngineTenantsTest, WhoElseIsServedChangesNoAnswer) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 6;
  options.max_step_tokens = 32;
  options = WithBlocks(options, 40);  // so few that some are preempted
  const auto engine = Start(options);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    Request request = Greedy(Prompt(10 + 13 * static_cast<int32_t>(i % 7), i), 20 + i % 9);
    request.output.logprobs = 0;
    requests.push_back(Of(i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c", request, 1.0 + i % 3));
  }
  const auto together = AskTogether(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].share = {};
    const auto alone = Ask(*engine, requests[i]);
    ASSERT_TRUE(alone.finished && together[i].finished) << together[i].status;
    EXPECT_EQ(together[i].ids, alone.ids);
    for (size_t j = 0; j < alone.logprobs.size(); ++j) {
      EXPECT_NEAR(together[i].logprobs[j].logprob, alone.logprobs[j].logprob, BatchTolerance());
    }
  }
  WaitUntilIdle(*engine);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
}

TEST_F(EngineTenantsTest, EqualPromptsOfTwoTenantsShareNothing) {
  const auto engine = Start(OptionsFor(model_));
  const std::vector<int32_t> prompt = Prompt(200, 1);
  EXPECT_EQ(Ask(*engine, Of("a", Greedy(prompt, 2))).started.at(0).cached_tokens, 0);
  EXPECT_EQ(Ask(*engine, Of("b", Greedy(prompt, 2))).started.at(0).cached_tokens, 0)
      << "another's prompt must not be felt";
  EXPECT_GE(Ask(*engine, Of("a", Greedy(prompt, 2))).started.at(0).cached_tokens, 180);
}

TEST_F(EngineTenantsTest, ATenantsLimitOfCachedTokensHoldsItsOwnBackAndNobodyElse) {
  const auto run = [this](int64_t max_kv_tokens) {
    StepSizes steps;
    const auto engine = Start(OptionsFor(model_), &steps);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 4; ++i) {
      requests.push_back(Of("a", Greedy(Prompt(30, i), 30), 1.0, max_kv_tokens));
    }
    for (const auto& answer : AskTogether(*engine, requests)) EXPECT_TRUE(answer.finished);
    return steps.most();
  };
  EXPECT_GT(run(0), 2);
  EXPECT_EQ(run(119), 1) << "60 tokens each: one at a time";
  EXPECT_EQ(run(120), 2);

  StepSizes steps;
  const auto engine = Start(OptionsFor(model_), &steps);
  const auto running = Submit(*engine, Of("a", Greedy(Prompt(20, 1), 3000), 1.0, 3100));
  running->WaitForIds(1);
  const auto behind = Submit(*engine, Of("a", Greedy(Prompt(90, 2), 3), 1.0, 3100));
  EXPECT_TRUE(Ask(*engine, Of("b", Greedy(Prompt(90, 3), 3))).finished);
  EXPECT_TRUE(behind->SoFar().started.empty());
  engine->Drain(Clock::now());
}

TEST_F(EngineTenantsTest, SlotsOfATenantThatComesAndGoesAreKeptForItButNotForLong) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 4;
  StepSizes sizes;
  const auto engine = Start(options, &sizes);
  std::vector<Request> burst;
  for (uint32_t i = 0; i < 4; ++i) burst.push_back(Of("b", Greedy(Prompt(10, i), 4)));
  for (const auto& answer : AskTogether(*engine, burst)) EXPECT_TRUE(answer.finished);
  WaitUntilIdle(*engine);
  const auto burst_steps = static_cast<int64_t>(sizes.steps().size());

  std::vector<Request> backlog;
  for (uint32_t i = 0; i < 4; ++i) {
    backlog.push_back(Of("a", Greedy(Prompt(10, i), 3 * RecentPeak::kSteps)));
  }
  for (const auto& answer : AskTogether(*engine, backlog)) EXPECT_TRUE(answer.finished);

  const std::vector<int32_t> steps = sizes.steps();
  const auto begin = steps.begin() + burst_steps;
  const auto all = std::find(begin, steps.end(), 4);
  ASSERT_NE(all, steps.end());
  EXPECT_EQ(*std::max_element(begin, all), 2) << "half of the slots are its share";
  EXPECT_GT(all - begin, RecentPeak::kSteps / 2);
  EXPECT_LE(all - begin, RecentPeak::kSteps + 1);
}

TEST_F(EngineTenantsTest, OneRequestOverItsTenantsLimitIsRefusedAtOnce) {
  const auto engine = Start(OptionsFor(model_));
  const auto refused = Ask(*engine, Of("a", Greedy(Prompt(50, 1), 51), 1.0, 100));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status)) << refused.status;
  const ErrorDetail detail = GetErrorDetail(refused.status);
  EXPECT_EQ(detail.reason, "TENANT_KV");
  EXPECT_EQ(detail.field, "stopping.max_tokens");
  EXPECT_EQ(detail.metadata.at("quota"), "max_kv_tokens");
  EXPECT_EQ(detail.metadata.at("limit"), "100");
  EXPECT_EQ(detail.metadata.at("tokens"), "101");
  EXPECT_FALSE(detail.retry_after.has_value()) << "it will never fit";
  EXPECT_TRUE(Ask(*engine, Of("a", Greedy(Prompt(50, 1), 50), 1.0, 100)).finished);
}

TEST_F(EngineTenantsTest, AFullQueueRefusesTheNewestOfWhoeverHasMost) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  options.limits.max_waiting_requests = 4;
  const auto engine = Start(options);
  const auto running = std::make_shared<Recorder>();
  const auto handle = Submit(*engine, Of("a", Greedy(Prompt(10, 1), 4000)), running).value();
  running->WaitForIds(2);
  std::vector<std::shared_ptr<Recorder>> flood;
  for (uint32_t i = 0; i < 4; ++i) {
    flood.push_back(Submit(*engine, Of("a", Greedy(Prompt(10, i), 1))));
  }
  const auto one_more = Ask(*engine, Of("a", Greedy(Prompt(10, 9), 1)));
  EXPECT_EQ(Reason(one_more.status), "QUEUE_FULL") << "the newcomer of the tenant that has most";

  const auto other = Submit(*engine, Of("b", Greedy(Prompt(10, 10), 1)));
  const auto gone = flood[3]->Wait();
  EXPECT_THAT(gone.status, FailsFor(absl::StatusCode::kResourceExhausted, "QUEUE_FULL"));
  EXPECT_TRUE(GetErrorDetail(gone.status).retry_after.has_value());
  EXPECT_TRUE(gone.started.empty());
  const auto second = Submit(*engine, Of("b", Greedy(Prompt(10, 11), 1)));
  EXPECT_EQ(Reason(flood[2]->Wait().status), "QUEUE_FULL") << second->SoFar().status;
  const auto third = Ask(*engine, Of("b", Greedy(Prompt(10, 12), 1)));
  EXPECT_EQ(Reason(third.status), "QUEUE_FULL") << "two and two: it would have most";
  const auto heavy = Submit(*engine, Of("c", Greedy(Prompt(10, 13), 1), 4.0));
  EXPECT_FALSE(running->ended());
  engine->Cancel(handle);
  for (const auto& recorder : {other, heavy, flood[0]}) EXPECT_TRUE(recorder->Wait().finished);
}

TEST_F(EngineTenantsTest, ABacklogOfOneTenantDoesNotMakeAnothersDeadlineTooShort) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 2;
  options.max_step_tokens = 16;
  const auto engine = Start(options);
  const auto begin = Clock::now();
  EXPECT_TRUE(Ask(*engine, Of("a", Greedy(Prompt(2000, 1), 1))).finished);
  const auto once = Clock::now() - begin;
  std::vector<std::shared_ptr<Recorder>> backlog;
  for (uint32_t i = 0; i < 60; ++i) {
    backlog.push_back(Submit(*engine, Of("a", Greedy(Prompt(2000, i + 2), 1))));
  }
  Request request = Of("a", Greedy(Prompt(40, 100), 1));
  request.deadline = Clock::now() + 6 * once;
  EXPECT_EQ(Reason(Ask(*engine, request).status), "DEADLINE_TOO_SHORT");
  request = Of("b", Greedy(Prompt(40, 100), 1));
  request.deadline = Clock::now() + 6 * once;
  EXPECT_NE(Reason(Ask(*engine, request).status), "DEADLINE_TOO_SHORT");
  engine->Drain(Clock::now());
}

TEST_F(EngineTenantsTest, TellsWhatEachTenantHas) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  const auto engine = Start(options);
  const auto running = Submit(*engine, Of("a", Greedy(Prompt(10, 1), 4000), 2.0));
  running->WaitForIds(2);
  const auto waiting = Submit(*engine, Of("b", Greedy(Prompt(70, 2), 1)));
  std::map<std::string, TenantQueue> tenants;
  for (const TenantQueue& tenant : engine->Tenants()) tenants[tenant.tenant] = tenant;
  ASSERT_EQ(tenants.size(), 2u);
  EXPECT_EQ(tenants["a"].running, 1);
  EXPECT_EQ(tenants["a"].waiting, 0);
  EXPECT_EQ(tenants["a"].kv_tokens, 4010);
  EXPECT_EQ(tenants["a"].weight, 2.0);
  EXPECT_EQ(tenants["b"].running, 0);
  EXPECT_EQ(tenants["b"].waiting, 1);
  EXPECT_EQ(tenants["b"].waiting_tokens, 70);
  engine->Drain(Clock::now());
}

// Between Check, Prepare and Submit the caller learns what a request costs. Until Submit nothing
// waits, and nobody but the caller is told anything.
TEST_F(EngineTenantsTest, WhatAPromptCostsIsKnownBeforeItIsQueued) {
  const auto engine = Start(OptionsFor(model_));
  const Request ids = Greedy(Prompt(33, 1), 5);
  EXPECT_EQ(engine->Check(ids).value_or(0), 33);
  EXPECT_EQ(engine->Prepare(ids)->prompt_tokens(), 33);

  Request request = ids;
  std::string text;
  while (text.size() < 1000) text += "so many words ";
  request.prompt = text;
  const auto least = engine->Check(request);
  const auto prepared = engine->Prepare(request);
  ASSERT_TRUE(least.ok() && prepared.ok()) << least.status() << prepared.status();
  EXPECT_GT(*least, 10);
  EXPECT_GT(prepared->prompt_tokens(), *least);
  EXPECT_EQ(prepared->prompt, *engine->Tokenize(text));
  EXPECT_EQ(engine->Snapshot().waiting, 0);

  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(*prepared, recorder).ok());
  EXPECT_EQ(recorder->Wait().started.at(0).prompt_tokens, prepared->prompt_tokens());
}

TEST_F(EngineTenantsTest, ATextThatCannotFitIsRefusedByItsBytes) {
  EngineOptions options = OptionsFor(model_);
  options.limits.max_prompt_bytes = 1 << 20;
  const auto engine = Start(options);
  Request request = Greedy(Prompt(1, 1), 5);
  request.prompt = std::string(1 << 20, ' ');
  for (const absl::Status& status :
       {engine->Check(request).status(), engine->Prepare(request).status()}) {
    EXPECT_EQ(Reason(status), "CONTEXT_TOO_LONG");
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("at least"));
  }
}

}  // namespace
}  // namespace eta::testing
