// Requests that wait for a device which is lost go on on another one, as who they were; what has
// begun, and what nobody can take, is told why.
#include <gmock/gmock.h>

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
using testing::FaultyBackend;
using testing::Greedy;
using testing::OptionsFor;
using testing::Prompt;
using testing::Recorder;
using testing::TinyModel;
using testing::WaitUntilIdle;

struct Asked {
  uint64_t handle = 0;
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
};

class MovedRequests : public ::testing::Test {
 protected:
  // Two devices with a slot each: a long answer on the first, a shorter one on the second. Both
  // are in the middle of a step, however fast the machine is.
  void SetUp() override {
    options_.max_running = 1;
    std::vector<std::unique_ptr<Engine>> engines;
    for (const auto& faults : faults_) engines.push_back(Open(faults));
    router_ = std::make_unique<Router>(std::move(engines), options_.limits);
    long_ = Submit(Greedy(Prompt(30, 1), 3900));
    short_ = Submit(Greedy(Prompt(30, 2), 3500));
    long_.recorder->WaitForIds(1);
    short_.recorder->WaitForIds(1);
    for (size_t device : {0, 1}) AwaitWaiting(device, 0);
    for (const auto& faults : faults_) faults->Hold();
  }
  void TearDown() override {
    for (const auto& faults : faults_) faults->Release();
  }

  std::unique_ptr<Engine> Open(std::shared_ptr<Faults> faults) {
    const auto checkpoint = Checkpoint::Open(model_.path());
    auto backend = MakeBackend({.name = "cpu", .num_threads = 1});
    EXPECT_TRUE(checkpoint.ok() && backend.ok());
    auto engine =
        StepEngine::Create(options_, *checkpoint,
                           std::make_unique<FaultyBackend>(*std::move(backend), std::move(faults)));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  Asked Submit(Request request) {
    Asked asked;
    const auto handle = testing::Submit(*router_, std::move(request), asked.recorder);
    EXPECT_TRUE(handle.ok()) << handle.status();
    asked.handle = handle.value_or(0);
    return asked;
  }
  // It waits for the second device, which has less to do.
  Asked SubmitWaiting(uint32_t seed, int32_t max_tokens) {
    const int32_t waiting = router_->Devices()[1].waiting;
    const Asked asked = Submit(Greedy(Prompt(20, seed), max_tokens));
    EXPECT_EQ(router_->Devices()[1].waiting, waiting + 1);
    return asked;
  }
  void Lose(size_t device) {
    faults_[device]->Break(absl::InternalError("it fell off the bus"));
    faults_[device]->Release();
  }
  void CancelLong() {
    router_->Cancel(long_.handle);
    faults_[0]->Release();
  }
  void WaitUntilLost(size_t device) {
    while (!router_->Devices()[device].device_lost) std::this_thread::sleep_for(milliseconds(1));
    AwaitWaiting(device, 0);
  }
  // A device tells the client first, then its snapshot says so too.
  void AwaitWaiting(size_t device, int32_t count) {
    while (router_->Devices()[device].waiting != count)
      std::this_thread::sleep_for(milliseconds(1));
  }

  const TinyModel model_;
  EngineOptions options_ = OptionsFor(model_);
  const std::shared_ptr<Faults> faults_[2] = {std::make_shared<Faults>(),
                                              std::make_shared<Faults>()};
  std::unique_ptr<Router> router_;
  Asked long_, short_;
};

// bad input: Device | lost | INTERNAL for what runs; what waits goes on elsewhere, else
//   UNAVAILABLE, NOT_SERVING, exit code 3 | FailpointDevice.ThatIsLostEndsTheProcess
TEST_F(MovedRequests, GoOnOnAnotherDevice) {
  const auto alone = Ask(*Open(std::make_shared<Faults>()), Greedy(Prompt(20, 3), 9));
  const Asked waiting = SubmitWaiting(3, 9);
  Lose(1);
  EXPECT_TRUE(absl::IsInternal(short_.recorder->Wait().status)) << "it had begun";
  WaitUntilLost(1);
  EXPECT_FALSE(waiting.recorder->ended());
  CancelLong();
  const auto moved = waiting.recorder->Wait();
  ASSERT_TRUE(moved.finished) << moved.status;
  EXPECT_EQ(moved.ids, alone.ids);
  EXPECT_EQ(moved.started.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(long_.recorder->Wait().status));
  WaitUntilIdle(*router_);
}

TEST_F(MovedRequests, AreCancelledByTheHandleThatTheyHad) {
  const Asked waiting = SubmitWaiting(3, 9);
  Lose(1);
  WaitUntilLost(1);
  AwaitWaiting(0, 1);
  router_->Cancel(waiting.handle);
  faults_[0]->Release();
  EXPECT_TRUE(absl::IsCancelled(waiting.recorder->Wait().status));
  EXPECT_FALSE(long_.recorder->ended());
  CancelLong();
  EXPECT_TRUE(absl::IsCancelled(long_.recorder->Wait().status));
}

TEST_F(MovedRequests, EndWithUnavailableWhereNoDeviceIsLeft) {
  const Asked waiting = SubmitWaiting(3, 9);
  Lose(1);
  WaitUntilLost(1);
  Lose(0);
  const auto answer = waiting.recorder->Wait();
  EXPECT_THAT(answer.status, FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
  EXPECT_TRUE(GetErrorDetail(answer.status).retry_after);
  EXPECT_TRUE(answer.started.empty());
  EXPECT_TRUE(absl::IsInternal(long_.recorder->Wait().status)) << "it had begun";
}

TEST_F(MovedRequests, EndWithUnavailableWhereTheOthersAreFull) {
  TearDown();
  options_.limits.max_waiting_requests = 1;
  SetUp();
  const Asked first = SubmitWaiting(3, 9);
  const Asked second = Submit(Greedy(Prompt(20, 4), 9));
  EXPECT_EQ(router_->Devices()[0].waiting, 1);
  Lose(1);
  const auto answer = first.recorder->Wait();
  EXPECT_THAT(answer.status, FailsFor(absl::StatusCode::kUnavailable, "DEVICE_ERROR"));
  CancelLong();
  EXPECT_TRUE(second.recorder->Wait().finished);
}

TEST_F(MovedRequests, OfARouterThatGoesAreTold) {
  const Asked waiting = SubmitWaiting(3, 9);
  Lose(1);
  faults_[0]->Release();
  router_.reset();
  EXPECT_TRUE(absl::IsUnavailable(waiting.recorder->Wait().status));
}

TEST(RoutedRequests, ACancelFindsARequestWhereverItIs) {
  RoutedRequests routed;
  const uint64_t handle = routed.Open();
  EXPECT_NE(routed.Open(), handle);
  EXPECT_FALSE(routed.Enter(handle, 1, {.engine = 1, .handle = 70}));
  EXPECT_FALSE(routed.Enter(handle, 0, {.engine = 0, .handle = 7})) << "late";
  const auto place = routed.Cancel(handle);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->engine, 1u);
  EXPECT_EQ(place->handle, 70u);
  EXPECT_TRUE(routed.Enter(handle, 2, {.engine = 0, .handle = 8}))
      << "cancelled while it moved: it is to be cancelled there";
  routed.Close(handle);
  EXPECT_FALSE(routed.Cancel(handle));
  EXPECT_FALSE(routed.Enter(handle, 3, {}));
}

}  // namespace
}  // namespace eta
