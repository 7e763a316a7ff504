// Devices that fail, that are small, and several of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/base/error.h"
#include "engine/front/router.h"
#include "engine/front/step_engine.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/kernels/faulty_backend.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using testing::Ask;
using testing::Faults;
using testing::Greedy;
using ::testing::HasSubstr;
using testing::OptionsFor;
using testing::Prompt;
using testing::ReferenceOptionsFor;
using testing::Submit;
using testing::TinyModel;
using testing::WaitUntilIdle;

class DeviceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                               std::shared_ptr<Faults> faults,
                                               const std::string& name = "faulty") {
    auto checkpoint = Checkpoint::Open(options.model_dir);
    auto backend = MakeBackend({.name = "cpu", .num_threads = 1});
    if (!checkpoint.ok() || !backend.ok()) return absl::InternalError("no model or no CPU");
    return StepEngine::Create(
        options, *checkpoint,
        std::make_unique<testing::FaultyBackend>(*std::move(backend), std::move(faults), name));
  }
  std::unique_ptr<Engine> Start(const EngineOptions& options, std::shared_ptr<Faults> faults) {
    auto engine = Open(options, std::move(faults));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
  // Two engines behind a router; faults_[i] belongs to engine i.
  std::unique_ptr<Engine> StartTwo(const EngineOptions& options) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (const auto& faults : faults_) engines.push_back(Start(options, faults));
    return std::make_unique<Router>(std::move(engines), options.limits);
  }

  TinyModel model_;
  const std::shared_ptr<Faults> faults_[2] = {std::make_shared<Faults>(),
                                              std::make_shared<Faults>()};
};

TEST_F(DeviceTest, AStickyErrorFailsWhatRunsAndRefusesWhatComes) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 2;
  const auto engine = Start(options, faults_[0]);
  std::vector<std::shared_ptr<testing::Recorder>> all;
  for (uint32_t i = 0; i < 3; ++i) all.push_back(Submit(*engine, Greedy(Prompt(40, i), 3000)));
  all[0]->WaitForIds(all[0]->SoFar().ids.size() + 3);  // all have been taken in
  EXPECT_FALSE(engine->Snapshot().device_lost);
  faults_[0]->Break(absl::InternalError("an illegal memory access"));
  for (const auto& recorder : all) {
    const auto answer = recorder->Wait();
    const bool waited = recorder == all.back();
    EXPECT_TRUE(waited ? absl::IsUnavailable(answer.status) : absl::IsInternal(answer.status))
        << answer.status;
    EXPECT_EQ(GetErrorDetail(answer.status).retry_after.has_value(), waited);
    EXPECT_EQ(Reason(answer.status), "DEVICE_ERROR");
    EXPECT_FALSE(answer.finished);
    EXPECT_EQ(answer.so_far.output_tokens, static_cast<int32_t>(answer.ids.size()));
  }
  WaitUntilIdle(*engine);
  EXPECT_TRUE(engine->Snapshot().device_lost);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  const auto refused = Ask(*engine, Greedy(Prompt(10, 9), 1));
  EXPECT_THAT(refused.status, FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
  EXPECT_TRUE(GetErrorDetail(refused.status).retry_after);
  engine->Drain(Clock::now() + milliseconds(100));
}

// bad input: Device | memory short in a step all the same | it is repeated without the youngest
//   request: UNAVAILABLE, RetryInfo, tokens emitted |
//   FailpointCall.ADeviceThatIsShortOfMemoryInAStepLosesOneRequest
TEST_F(DeviceTest, AStepWithoutMemoryCostsTheLatestRequestAndNothingElse) {
  const auto engine = Start(OptionsFor(model_), faults_[0]);
  const auto alone = Ask(*engine, Greedy(Prompt(60, 1), 300));
  const auto first = Submit(*engine, Greedy(Prompt(60, 1), 300));
  first->WaitForIds(3);
  const auto second = Submit(*engine, Greedy(Prompt(60, 2), 3000));
  second->WaitForIds(3);
  faults_[0]->FailNextFinish(absl::ResourceExhaustedError("scratch"));
  const auto gone = second->Wait();
  EXPECT_THAT(gone.status, FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
  EXPECT_TRUE(GetErrorDetail(gone.status).retry_after);
  EXPECT_EQ(gone.so_far.output_tokens, static_cast<int32_t>(gone.ids.size()));
  const auto kept = first->Wait();
  ASSERT_TRUE(kept.finished) << kept.status;
  EXPECT_EQ(kept.ids, alone.ids) << "the step that failed was repeated, not counted";
  EXPECT_EQ(kept.finished->attention.kv_bytes_read, alone.finished->attention.kv_bytes_read);
  EXPECT_FALSE(engine->Snapshot().device_lost);
  EXPECT_TRUE(Ask(*engine, Greedy(Prompt(60, 3), 3)).finished);
}

TEST_F(DeviceTest, ThePoolIsAShareOfWhatTheModelLeavesUnlessItsBytesAreGiven) {
  EngineOptions options = OptionsFor(model_);
  faults_[0]->memory = int64_t{256} << 20;
  options.kv_pool_bytes = 0;
  options.kv_pool_fraction = 0.5;
  const size_t half = Start(options, faults_[0])->info().kv_bytes;
  EXPECT_LT(half, size_t{128} << 20) << "weights and workspace come first";
  EXPECT_GT(half, size_t{64} << 20);
  options.kv_pool_fraction = 0.25;
  EXPECT_NEAR(static_cast<double>(Start(options, faults_[0])->info().kv_bytes),
              static_cast<double>(half) / 2, 1 << 20);
  options.kv_pool_bytes = int64_t{16} << 20;
  EXPECT_LE(Start(options, faults_[0])->info().kv_bytes, size_t{16} << 20);
}

TEST_F(DeviceTest, ADeviceThatIsTooSmallSaysHowMuchWasWantedAndHowMuchIsFree) {
  EngineOptions options = OptionsFor(model_);
  faults_[0]->memory = 1000;
  absl::Status status = Open(options, faults_[0]).status();
  EXPECT_THAT(status, FailsSaying(absl::StatusCode::kResourceExhausted, "weights"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes are free"));
  faults_[0]->memory = int64_t{100} << 20;
  options.kv_pool_bytes = int64_t{200} << 20;
  status = Open(options, faults_[0]).status();
  EXPECT_THAT(status, FailsSaying(absl::StatusCode::kResourceExhausted, "209715200 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv_pool_bytes"));
  options.kv_pool_bytes = 100;
  EXPECT_TRUE(absl::IsInvalidArgument(Open(options, faults_[0]).status()));
}

TEST_F(DeviceTest, ChoicesThatTheBackendDoesNotHaveAreRefused) {
  const auto refusal = [this](auto change) {
    EngineOptions options = ReferenceOptionsFor(model_);
    change(options);
    return GetErrorDetail(Engine::Create(options).status()).field;
  };
  EXPECT_EQ(refusal([](EngineOptions& o) { o.devices = {1}; }), "device");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.devices = {0, 1}; }), "device");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.devices = {}; }), "device");
  EXPECT_EQ(refusal([](EngineOptions& o) {
              o.backend.name = "cuda", o.devices = {1, 1};
            }),
            "device");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.backend.name = "cuda", o.devices = {-1}; }), "device");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.backend.compute = DType::kFloat32; }), "compute");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.kv_pool_fraction = 0.0; }), "kv_pool_fraction");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.max_step_tokens = 3; }), "max_step_tokens");
}

// On a GPU kernels are loaded and products chosen when they are first needed.
TEST_F(DeviceTest, AGpuTakesItsFirstStepsBeforeAnybodys) {
  const auto cold = Start(OptionsFor(model_), faults_[0]);
  EXPECT_EQ(faults_[0]->finishes, 0);
  for (const bool two_blocks : {true, false}) {
    EngineOptions options = OptionsFor(model_);
    options.max_step_tokens = 64;
    if (two_blocks) options.kv_pool_bytes = cold->info().kv_bytes / cold->info().num_blocks * 2;
    const int before = faults_[1]->finishes;
    const auto warm = Open(options, faults_[1], "cuda").value();
    EXPECT_GT(faults_[1]->finishes, before + 2);
    EXPECT_EQ(warm->Snapshot().steps, 0);
    EXPECT_EQ(warm->Snapshot().blocks_free, warm->info().num_blocks);
    const Request request = Greedy(Prompt(20, 1), 8);
    EXPECT_EQ(Ask(*warm, request).ids, Ask(*cold, request).ids);
  }
}

TEST_F(DeviceTest, AGpuThatCannotComputeIsRefusedAtTheStart) {
  faults_[0]->Break(absl::InternalError("an illegal memory access"));
  const auto engine = Open(OptionsFor(model_), faults_[0], "cuda");
  EXPECT_TRUE(absl::IsInternal(engine.status()));
  EXPECT_THAT(engine.status().message(), HasSubstr("first steps: an illegal memory access"));
}

TEST_F(DeviceTest, TwinsShareOnePrefill) {
  for (const bool together : {true, false}) {
    EngineOptions options = OptionsFor(model_);
    options.max_step_tokens = 64;
    const auto engine = Start(options, faults_[0]);
    const auto expected = Ask(*engine, Greedy(Prompt(1000, 1), 5)).ids;
    // Another beginning, so that nothing is cached; 62 full blocks of 16.
    std::vector<std::shared_ptr<testing::Recorder>> twins;
    for (int i = 0; i < 3; ++i) {
      auto prompt = Prompt(1000, 2);
      if (i == 2) prompt[500] = 299;  // shares the first 31 blocks only
      twins.push_back(Submit(*engine, Greedy(prompt, 5)));
      if (!together && i == 0) twins[0]->WaitForStart();
    }
    EXPECT_EQ(twins[0]->Wait().finished->cached_tokens, 0);
    EXPECT_EQ(twins[1]->Wait().finished->cached_tokens, 992);
    EXPECT_EQ(twins[2]->Wait().finished->cached_tokens, 496);
    EXPECT_EQ(twins[1]->Wait().ids, twins[0]->Wait().ids);
    EXPECT_EQ(Ask(*engine, Greedy(Prompt(1000, 1), 5)).ids, expected);
  }
}

TEST_F(DeviceTest, ATwinGoesOnWhenTheOneItWaitsForIsGone) {
  EngineOptions options = OptionsFor(model_);
  options.max_step_tokens = 64;
  const auto engine = Start(options, faults_[0]);
  const auto leader = std::make_shared<testing::Recorder>();
  const auto handle = testing::Submit(*engine, Greedy(Prompt(3000, 1), 900), leader).value();
  const auto twin = Submit(*engine, Greedy(Prompt(3000, 1), 900));
  leader->WaitForStart();
  engine->Cancel(handle);
  EXPECT_TRUE(absl::IsCancelled(leader->Wait().status));
  const auto slow = std::make_shared<testing::Recorder>();
  slow->SetCongested(true);
  ASSERT_TRUE(testing::Submit(*engine, Greedy(Prompt(3000, 2), 5), slow).ok());
  const auto reader = Submit(*engine, Greedy(Prompt(3000, 2), 5));
  EXPECT_EQ(twin->Wait().ids.size(), 900u);
  EXPECT_EQ(reader->Wait().ids.size(), 5u) << "nobody waits for a slow reader";
  slow->SetCongested(false);
  EXPECT_EQ(slow->Wait().ids, reader->Wait().ids);
}

TEST(PrefixDirectory, KnowsTheLeadingPiecesOfEachEngine) {
  const std::vector<int32_t> prompt(50, 7);
  const auto pieces_of = [](const std::string& tenant, const std::vector<int32_t>& tokens) {
    return PrefixDirectory::Pieces(PrefixKeys(tenant, 10000.0f, {}, Gate::kSilu, tokens, 16));
  };
  const auto pieces = pieces_of("", prompt);
  ASSERT_EQ(pieces.size(), 3u);
  PrefixDirectory directory;
  directory.Remember({pieces[0], pieces[1]}, 5);
  directory.Remember({pieces[0]}, 63);
  EXPECT_EQ(directory.Seen(pieces, 5), 2u);
  EXPECT_EQ(directory.Seen(pieces, 63), 1u);
  EXPECT_EQ(directory.Seen(pieces, 0), 0u);
  EXPECT_EQ(directory.Seen(pieces_of("tenant", prompt), 5), 0u);
  std::vector<int32_t> other = prompt;
  other.insert(other.begin(), 8);
  EXPECT_EQ(directory.Seen(pieces_of("", other), 5), 0u);
  for (uint64_t i = 0; i < PrefixDirectory::kMaxPieces; ++i) directory.Remember({i}, 1);
  EXPECT_EQ(directory.Seen(pieces, 5), 0u) << "old pieces are forgotten";
}

TEST_F(DeviceTest, ARouterSpreadsRequestsAndBringsAPromptBackToItsBlocks) {
  const auto engine = StartTwo(OptionsFor(model_));
  EXPECT_EQ(engine->Devices().size(), 2u);
  std::vector<std::shared_ptr<testing::Recorder>> running;
  std::vector<uint64_t> handles;
  for (uint32_t i = 0; i < 4; ++i) {
    running.push_back(std::make_shared<testing::Recorder>());
    handles.push_back(
        testing::Submit(*engine, Greedy(Prompt(300, i), 3700), running.back()).value());
  }
  for (const auto& recorder : running) recorder->WaitForIds(2);
  for (const EngineSnapshot& device : engine->Devices()) EXPECT_EQ(device.running, 2);
  for (const uint64_t handle : handles) engine->Cancel(handle);
  for (uint32_t i = 0; i < 4; ++i) {
    WaitUntilIdle(*engine);
    Request request = Greedy(Prompt(300, i), 3700);
    request.stopping.stop_ids = {running[i]->SoFar().ids[0]};
    const auto again = Ask(*engine, request);
    EXPECT_EQ(again.finished->cached_tokens, 288) << "prompt " << i;
    EXPECT_EQ(again.finished->output_tokens, 1);
  }
  const EngineSnapshot sum = engine->Snapshot();
  EXPECT_EQ(sum.blocks_used + sum.blocks_cached + sum.blocks_free, engine->info().num_blocks);
}

TEST_F(DeviceTest, ARoutersHandlesCancelTheRightRequest) {
  const auto engine = StartTwo(OptionsFor(model_));
  std::vector<std::shared_ptr<testing::Recorder>> recorders;
  std::vector<uint64_t> handles;
  for (uint32_t i = 0; i < 4; ++i) {
    recorders.push_back(std::make_shared<testing::Recorder>());
    handles.push_back(
        testing::Submit(*engine, Greedy(Prompt(30, i), 4000), recorders.back()).value());
  }
  for (const size_t i : {2u, 1u, 3u, 0u}) {
    EXPECT_FALSE(recorders[i]->ended());
    engine->Cancel(handles[i]);
    EXPECT_TRUE(absl::IsCancelled(recorders[i]->Wait().status));
  }
}

TEST_F(DeviceTest, WhereOneDeviceIsLostTheOtherGoesOn) {
  const auto engine = StartTwo(OptionsFor(model_));
  const auto first = Submit(*engine, Greedy(Prompt(300, 1), 3000));
  const auto second = Submit(*engine, Greedy(Prompt(300, 2), 1000));
  first->WaitForIds(2);
  second->WaitForIds(2);
  faults_[0]->Break(absl::InternalError("device lost"));
  EXPECT_THAT(first->Wait().status, FailsFor(absl::StatusCode::kInternal, "DEVICE_ERROR"));
  EXPECT_EQ(second->Wait().ids.size(), 1000u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(Ask(*engine, Greedy(Prompt(300, 1), 5)).finished) << "also what the lost one knew";
  }
  EXPECT_TRUE(engine->Devices()[0].device_lost);
  EXPECT_FALSE(engine->Snapshot().device_lost);
  faults_[1]->Break(absl::InternalError("device lost"));
  EXPECT_TRUE(absl::IsInternal(Ask(*engine, Greedy(Prompt(300, 3), 5)).status));
  WaitUntilIdle(*engine);
  EXPECT_TRUE(engine->Snapshot().device_lost);
  const auto refused = Ask(*engine, Greedy(Prompt(300, 3), 5));
  EXPECT_THAT(refused.status, FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
}

TEST_F(DeviceTest, ARouterMakesNobodyGiveWayWhileAnotherDeviceHasRoom) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  options.limits.max_waiting_requests = 2;
  const auto engine = StartTwo(options);
  const auto submit = [&](const std::string& tenant, uint32_t seed, int32_t max_tokens) {
    Request request = Greedy(Prompt(30, seed), max_tokens);
    request.tenant = tenant;
    return Submit(*engine, std::move(request));
  };
  // One long request on the first device; on the second one that runs and two that wait, which
  // together stand for fewer tokens.
  std::vector<std::shared_ptr<testing::Recorder>> recorders = {submit("busy", 1, 4000),
                                                               submit("busy", 2, 1200)};
  for (const auto& recorder : recorders) recorder->WaitForIds(2);
  for (uint32_t seed = 3; seed <= 4; ++seed) recorders.push_back(submit("busy", seed, 1200));
  recorders.push_back(submit("other", 5, 300));
  recorders[0]->WaitForIds(recorders[0]->SoFar().ids.size() + 5);  // all have been taken in
  recorders[1]->WaitForIds(recorders[1]->SoFar().ids.size() + 5);
  engine->Drain(Clock::now());
  for (const auto& recorder : recorders) {
    EXPECT_NE(Reason(recorder->Wait().status), "QUEUE_FULL");
  }
}

TEST_F(DeviceTest, ARoutersLimitsHoldForTheWholeAndItsDrainForAll) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  options.limits.max_waiting_requests = 1;  // each engine's share of two
  const auto engine = StartTwo(options);
  std::vector<std::shared_ptr<testing::Recorder>> recorders;
  for (uint32_t i = 0; i < 2; ++i) {
    recorders.push_back(Submit(*engine, Greedy(Prompt(30, i), 4000)));
  }
  for (const auto& recorder : recorders) recorder->WaitForIds(2);
  for (uint32_t i = 2; i < 4; ++i) {
    recorders.push_back(Submit(*engine, Greedy(Prompt(30, i), 4000)));
    EXPECT_FALSE(recorders.back()->ended()) << "one may wait at each";
  }
  const auto refused = Ask(*engine, Greedy(Prompt(30, 9), 5));
  EXPECT_EQ(Reason(refused.status), "QUEUE_FULL");
  EXPECT_TRUE(GetErrorDetail(refused.status).retry_after);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(*engine, Greedy({}, 5)).status));
  engine->Drain(Clock::now());
  for (const auto& recorder : recorders) EXPECT_TRUE(absl::IsUnavailable(recorder->Wait().status));
  EXPECT_EQ(Reason(Ask(*engine, Greedy(Prompt(30, 9), 5)).status), "DRAINING");
}

}  // namespace
}  // namespace eta
