// How passes end, are refused and are spread over devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "engine/base/error.h"
#include "engine/front/router.h"
#include "engine/front/step_engine.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"
#include "tests/testing/kernels/faulty_backend.h"

namespace eta::testing {
namespace {

using std::chrono::seconds;

Pass Losses(int32_t length, uint32_t seed) {
  Pass pass;
  pass.tokens = Prompt(length, seed);
  pass.decode_from = length;
  pass.loss_from = 0;
  return pass;
}

Pass Collecting(int32_t length, uint32_t seed) {
  Pass pass = Losses(length, seed);
  pass.bins = ScoreBins{.count = 256, .low = -8.0, .high = 8.0};
  return pass;
}

class PassLifecycle : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> Open(const EngineOptions& options, std::shared_ptr<Faults> faults) {
    auto checkpoint = Checkpoint::Open(options.model_dir);
    auto backend = MakeBackend({.name = "cpu", .num_threads = 1});
    auto engine =
        StepEngine::Create(options, *checkpoint,
                           std::make_unique<FaultyBackend>(*std::move(backend), std::move(faults)));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
  // Steps of 16 rows, so that a pass takes several.
  EngineOptions SmallSteps() {
    EngineOptions options = OptionsFor(model_);
    options.max_running = 4;
    options.max_step_tokens = 16;
    return options;
  }

  TinyModel model_;
  const std::shared_ptr<Faults> faults_[2] = {std::make_shared<Faults>(),
                                              std::make_shared<Faults>()};
};

TEST_F(PassLifecycle, CancellingEndsOnePassWhereverItStands) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto running = std::make_shared<PassRecorder>(32);
  const auto first = engine->SubmitPass(Collecting(200, 1), running).value();
  running->WaitUntilHeld();
  const auto waiting = std::make_shared<PassRecorder>();
  const auto second = engine->SubmitPass(Collecting(200, 2), waiting).value();
  const auto kept = SubmitPass(*engine, Collecting(60, 3));
  engine->Cancel(second);
  engine->Cancel(first);
  running->Release();
  for (const auto& recorder : {running, waiting}) {
    const auto outcome = recorder->Wait();
    EXPECT_THAT(outcome.status(), FailsFor(absl::StatusCode::kCancelled, "CLIENT_CANCELLED"));
  }
  EXPECT_TRUE(kept->Wait().ok());
  engine->Cancel(first);  // long gone
  EXPECT_TRUE(Measure(*engine, Losses(20, 4)).ok());
  EXPECT_EQ(running->ends(), 1);
  WaitUntilIdle(*engine);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  EXPECT_EQ(engine->Snapshot().passes_running + engine->Snapshot().passes_waiting, 0);
}

TEST_F(PassLifecycle, TheSnapshotTellsPassesFromRequests) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Losses(100, 1), held);
  held->WaitUntilHeld();
  const auto other = SubmitPass(*engine, Losses(100, 2));
  const EngineSnapshot snapshot = engine->Snapshot();
  EXPECT_EQ(snapshot.passes_running + snapshot.passes_waiting, 2);
  EXPECT_EQ(snapshot.running + snapshot.waiting, 0);
  held->Release();
  EXPECT_TRUE(other->Wait().ok());
}

TEST_F(PassLifecycle, DrainingEndsPassesAtOnceAndRequestsInTheirTime) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Losses(1000, 1), held);
  held->WaitUntilHeld();
  const auto answer = Submit(*engine, Greedy(Prompt(30, 1), 200));
  std::thread drain([&] { engine->Drain(Clock::now() + seconds(60)); });
  while (Reason(engine->SubmitPass(Losses(20, 2), held).status()) != "DRAINING") {
    std::this_thread::yield();
  }
  held->Release();
  EXPECT_THAT(held->Wait().status(), FailsFor(absl::StatusCode::kUnavailable, "DRAINING"));
  EXPECT_LT(held->progress().back(), 1000);
  EXPECT_TRUE(answer->Wait().finished);
  drain.join();
}

TEST_F(PassLifecycle, AnEngineThatGoesEndsItsPasses) {
  auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Losses(1000, 1), held);
  held->WaitUntilHeld();
  std::thread end([&] { engine.reset(); });
  held->Release();
  const auto outcome = held->Wait();
  end.join();
  EXPECT_TRUE(outcome.ok() || Reason(outcome.status()) == "DRAINING") << outcome.status();
}

TEST_F(PassLifecycle, ALostDeviceEndsPassesAndRefusesMore) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Losses(200, 1), held);
  held->WaitUntilHeld();
  const auto waiting = SubmitPass(*engine, Losses(200, 2));
  faults_[0]->Break(absl::InternalError("an illegal memory access"));
  held->Release();
  for (const auto& recorder : {held, waiting}) {
    const auto outcome = recorder->Wait();
    EXPECT_FALSE(outcome.ok());
    EXPECT_EQ(Reason(outcome.status()), "DEVICE_ERROR");
  }
  WaitUntilIdle(*engine);
  const auto refused = Measure(*engine, Losses(20, 3));
  EXPECT_THAT(refused.status(), FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
}

TEST_F(PassLifecycle, AStepWithoutMemoryCostsAPassAndNoRequest) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Collecting(200, 1), held);
  held->WaitUntilHeld();
  const auto next = SubmitPass(*engine, Losses(40, 2));
  faults_[0]->FailNextFinish(absl::ResourceExhaustedError("scratch"));
  held->Release();
  const auto outcome = held->Wait();
  EXPECT_THAT(outcome.status(), FailsFor(absl::StatusCode::kResourceExhausted, "DEVICE_ERROR"));
  EXPECT_TRUE(next->Wait().ok());
  EXPECT_TRUE(Ask(*engine, Greedy(Prompt(30, 1), 5)).finished);
  WaitUntilIdle(*engine);
  EXPECT_FALSE(engine->Snapshot().device_lost);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
}

TEST_F(PassLifecycle, CellsThatDoNotFitEndTheirPassAlone) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  faults_[0]->memory = 0;
  const auto outcome = Measure(*engine, Collecting(50, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(outcome.status())) << outcome.status();
  EXPECT_TRUE(Measure(*engine, Losses(50, 1)).ok());
}

TEST_F(PassLifecycle, CellsOfTheUsualSizeFitBesideAPoolThatTakesAllThereIs) {
  EngineOptions options = SmallSteps();
  faults_[0]->memory = int64_t{64} << 20;
  options.kv_pool_bytes = 0;
  options.kv_pool_fraction = 1.0;
  const auto engine = Open(options, faults_[0]);
  Pass pass = Losses(50, 1);
  pass.bins = ScoreBins();
  const auto outcome = Measure(*engine, pass);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
}

TEST_F(PassLifecycle, OneTextsNanIsItsOwn) {
  TinyModelOptions with_nan;
  with_nan.tied = false;
  with_nan.nan_embedding = 5;
  const TinyModel model(with_nan);
  EngineOptions options = OptionsFor(model);
  options.allow_nonfinite_weights = true;
  const auto engine = Start(options);
  Pass bad = Losses(60, 1);
  bad.tokens[10] = 5;
  const auto first = SubmitPass(*engine, bad);
  const auto second = SubmitPass(*engine, Losses(60, 2));
  EXPECT_EQ(Reason(first->Wait().status()), "NONFINITE_LOGITS");
  EXPECT_TRUE(second->Wait().ok());
}

TEST_F(PassLifecycle, WhatAPassMayAskForIsBounded) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto refusal = [&](const std::function<void(Pass&)>& change) {
    Pass pass = Collecting(100, 1);
    change(pass);
    const absl::Status status = Measure(*engine, pass).status();
    const ErrorDetail detail = GetErrorDetail(status);
    return detail.field.empty() ? detail.reason : detail.field;
  };
  EXPECT_EQ(refusal([](Pass&) {}), "");
  EXPECT_EQ(refusal([](Pass& p) { p.tokens.clear(); }), "tokens");
  EXPECT_EQ(refusal([](Pass& p) { p.tokens.resize(5000, 300); }), "tokens");
  EXPECT_EQ(refusal([](Pass& p) { p.tokens[7] = -1; }), "tokens[7]");
  EXPECT_EQ(refusal([](Pass& p) { p.tokens[7] = 1 << 30; }), "tokens[7]");
  EXPECT_EQ(refusal([](Pass& p) { p.decode_from = -1; }), "decode_from");
  EXPECT_EQ(refusal([](Pass& p) { p.decode_from = 101; }), "decode_from");
  EXPECT_EQ(refusal([](Pass& p) { p.loss_from = -1; }), "loss_from");
  EXPECT_EQ(refusal([](Pass& p) { p.loss_from = 100; }), "loss_from");
  const auto without_losses = [](Pass& p) {
    p.loss_from.reset();
    p.logit_rows = {5};
  };
  EXPECT_EQ(refusal(without_losses), "logit_rows");
  for (const std::vector<int32_t>& rows :
       {std::vector<int32_t>{9}, {-1}, {99}, {12, 11}, {12, 12}, {1 << 30}}) {
    const auto spoil = [&rows](Pass& p) {
      p.loss_from = 10;
      p.logit_rows = rows;
    };
    EXPECT_EQ(refusal(spoil), "logit_rows") << rows.front();
  }
  const auto beyond_memory = [&](Pass& p) {
    const int64_t row_bytes = engine->info().config.vocab_size * int64_t{sizeof(float)};
    p.loss_from = 0;
    p.logit_rows.assign(static_cast<size_t>(kMaxPassLogitBytes / row_bytes) + 1, 7);
  };
  EXPECT_EQ(refusal(beyond_memory), "logit_rows");
  EXPECT_EQ(refusal([](Pass& p) { p.collect_from = -1; }), "collect_from");
  EXPECT_EQ(refusal([](Pass& p) { p.collect_from = 101; }), "collect_from");
  EXPECT_EQ(refusal([](Pass& p) { p.bins->count = 0; }), "bins.count");
  EXPECT_EQ(refusal([](Pass& p) { p.bins->count = 1 << 30; }), "bins.count");
  EXPECT_EQ(refusal([](Pass& p) { p.bins->low = std::nan(""); }), "bins");
  EXPECT_EQ(refusal([](Pass& p) { p.bins->high = p.bins->low; }), "bins");
  EXPECT_EQ(refusal([](Pass& p) { p.attention.settings.z = 17.0f; }), "attention.z");
  EXPECT_EQ(refusal([](Pass& p) { p.attention.mode = AttentionMode::kProfile; }),
            "attention.profile");
}

TEST_F(PassLifecycle, APassThatThePoolCannotHoldIsRefused) {
  const auto engine = Start(WithBlocks(SmallSteps(), 10));
  const auto outcome = Measure(*engine, Losses(161, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(outcome.status()));
  EXPECT_EQ(Reason(outcome.status()), "KV_POOL_TOO_SMALL");
  EXPECT_TRUE(Measure(*engine, Losses(160, 1)).ok());
}

TEST_F(PassLifecycle, TheQueueOfPassesIsBounded) {
  const auto engine = Open(SmallSteps(), faults_[0]);
  const auto held = std::make_shared<PassRecorder>(16);
  SubmitPass(*engine, Losses(30, 1), held);
  held->WaitUntilHeld();
  const auto others = std::make_shared<PassRecorder>();
  for (int i = 1; i < Engine::kMaxPasses; ++i) {
    ASSERT_TRUE(engine->SubmitPass(Losses(1, 1), others).ok()) << i;
  }
  const auto refused = engine->SubmitPass(Losses(1, 1), others);
  EXPECT_THAT(refused.status(), FailsFor(absl::StatusCode::kResourceExhausted, "QUEUE_FULL"));
  EXPECT_TRUE(GetErrorDetail(refused.status()).retry_after);
  held->Release();
  EXPECT_TRUE(held->Wait().ok());
}

TEST_F(PassLifecycle, ARouterSpreadsPassesCancelsTheRightOneAndAvoidsALostDevice) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (const auto& faults : faults_) engines.push_back(Open(SmallSteps(), faults));
  Router engine(std::move(engines), Limits());
  std::vector<std::shared_ptr<PassRecorder>> held;
  std::vector<uint64_t> handles;
  for (const int32_t length : {200, 40, 40, 40}) {  // 200 | 40 + 40 + 40
    const bool holds = held.size() < 2;             // the first of each device
    held.push_back(holds ? std::make_shared<PassRecorder>(16) : std::make_shared<PassRecorder>());
    const auto handle = engine.SubmitPass(Losses(length, 1), held.back()).value();
    handles.push_back(handle);
  }
  held[0]->WaitUntilHeld();
  held[1]->WaitUntilHeld();
  const auto devices = engine.Devices();
  EXPECT_EQ(devices[0].passes_running + devices[0].passes_waiting, 1);
  EXPECT_EQ(devices[1].passes_running + devices[1].passes_waiting, 3);
  EXPECT_EQ(engine.Snapshot().passes_running + engine.Snapshot().passes_waiting, 4);
  engine.Cancel(handles[2]);
  for (const auto& recorder : held) recorder->Release();
  for (size_t i = 0; i < held.size(); ++i) {
    const auto outcome = held[i]->Wait();
    EXPECT_EQ(outcome.ok(), i != 2) << outcome.status();
  }
  faults_[0]->Break(absl::InternalError("an illegal memory access"));
  WaitUntilIdle(engine);
  while (!engine.Devices()[0].device_lost) {  // until one is sent there
    const auto outcome = Measure(engine, Losses(40, 2));
    EXPECT_TRUE(outcome.ok() || Reason(outcome.status()) == "DEVICE_ERROR") << outcome.status();
  }
  EXPECT_TRUE(Measure(engine, Losses(40, 3)).ok());
  faults_[1]->Break(absl::InternalError("an illegal memory access"));
  EXPECT_EQ(Reason(Measure(engine, Losses(40, 4)).status()), "DEVICE_ERROR");
  while (!engine.Snapshot().device_lost) std::this_thread::yield();
  EXPECT_EQ(Reason(Measure(engine, Losses(40, 5)).status()), "DEVICE_ERROR");
}

TEST_F(PassLifecycle, TokenizeGivesAPromptsTokens) {
  const auto engine = Start(OptionsFor(model_));
  const std::string text = "Once upon a time there was a little threshold.";
  const auto ids = engine->Tokenize(text).value();
  ASSERT_EQ(engine->info().beginning.size(), 1u);
  EXPECT_EQ(ids.front(), engine->info().beginning.front());
  Request request = Greedy({}, 8);
  request.prompt = text;
  const auto of_text = Ask(*engine, request);
  request.prompt = ids;
  const auto of_ids = Ask(*engine, request);
  EXPECT_EQ(of_text.started[0].prompt_tokens, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(of_text.ids, of_ids.ids);
  EXPECT_EQ(GetErrorDetail(engine->Tokenize("").status()).field, "text");
  EXPECT_EQ(GetErrorDetail(engine->Tokenize("\xff").status()).field, "text");
  EXPECT_EQ(GetErrorDetail(engine->Tokenize(std::string(1 << 20, 'x')).status()).field, "text");
}

}  // namespace
}  // namespace eta::testing
