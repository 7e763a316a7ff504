// Where a router sends a request whose prompt an engine has seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "engine/checkpoint/checkpoint.h"
#include "engine/front/router.h"
#include "engine/front/step_engine.h"
#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

// Counts the requests that an engine has ended.
class Ends final : public Observer {
 public:
  void OnStep(const StepReport&) override {}
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent&) override {
    ++number_;
  }
  int number() const { return number_; }

 private:
  std::atomic<int> number_ = 0;
};

// Two engines. The first has seen the prompt of `known_`, and has 100 tokens more to do than the
// second, which is less than that prompt.
class RouterTest : public ::testing::Test {
 protected:
  void Start(const TinyModel& model, const std::function<void(EngineOptions&)>& change = {}) {
    EngineOptions options = OptionsFor(model);
    if (change) change(options);
    const auto checkpoint = Checkpoint::Open(options.model_dir).value();
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < 2; ++i) {
      auto backend = MakeBackend({.name = "cpu", .num_threads = 1});
      ASSERT_TRUE(backend.ok()) << backend.status();
      auto engine = StepEngine::Create(options, checkpoint, *std::move(backend), &ends_[i]);
      ASSERT_TRUE(engine.ok()) << engine.status();
      engines.push_back(*std::move(engine));
    }
    engine_ = std::make_unique<Router>(std::move(engines), options.limits);
    ASSERT_TRUE(Ask(*engine_, known_).finished);
    WaitUntilIdle(*engine_);
    // Their readers are behind, so that they stay.
    for (const int32_t max_tokens : {3000, 2900}) {
      stay_.push_back(std::make_shared<Recorder>());
      stay_.back()->SetCongested(true);
      const Request request = Greedy(Prompt(20, static_cast<uint32_t>(max_tokens)), max_tokens);
      ASSERT_TRUE(Submit(*engine_, request, stay_.back()).ok());
    }
  }

  // The engine that answered it. Waits until that has nothing of it any more.
  size_t PlaceOf(const Request& request) {
    const int ended = ends_[1].number();
    EXPECT_TRUE(Ask(*engine_, request).finished);
    const auto rests = [](const EngineSnapshot& engine) {
      return engine.running + engine.waiting == 1;
    };
    for (;;) {
      const std::vector<EngineSnapshot> devices = engine_->Devices();
      if (std::all_of(devices.begin(), devices.end(), rests)) return ends_[1].number() - ended;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const Request known_ = Greedy(Prompt(300, 1), 5);
  Ends ends_[2];
  std::unique_ptr<Engine> engine_;
  std::vector<std::shared_ptr<Recorder>> stay_;
};

TEST_F(RouterTest, APromptComesBackWhereItsBlocksAre) {
  Start(TinyModel());
  EXPECT_EQ(PlaceOf(known_), 0u);
}

TEST_F(RouterTest, BlocksUnderAnotherKeyAreNoReason) {
  Start(TinyModel());
  Request other = known_;
  other.attention.settings.offset = 0.5f;
  EXPECT_EQ(PlaceOf(other), 1u);
  other = known_;
  other.attention = Frozen(engine_->info().config, "frozen");
  EXPECT_EQ(PlaceOf(other), 1u);
  other = known_;
  other.stopping.max_tokens = 725;  // with the prompt one more than the trained length
  EXPECT_EQ(PlaceOf(other), 1u);
  other = known_;
  other.tenant = "acme";
  EXPECT_EQ(PlaceOf(other), 1u);
  other = known_;
  other.output.prompt_logprobs = 0;  // is not taken from the cache
  EXPECT_EQ(PlaceOf(other), 1u);
}

TEST_F(RouterTest, WithoutAGateProfilesHaveTheBlocksOfAllOthers) {
  Start(TinyModel({.has_predictor = false}));
  Request other = known_;
  other.attention = Frozen(engine_->info().config, "frozen");
  other.attention.settings.offset = 0.5f;
  EXPECT_EQ(PlaceOf(other), 0u);
}

TEST_F(RouterTest, WithoutAPrefixCacheNothingIsCredited) {
  Start(TinyModel(), [](EngineOptions& options) { options.prefix_cache = false; });
  EXPECT_EQ(PlaceOf(known_), 1u);
}

}  // namespace
}  // namespace eta::testing
