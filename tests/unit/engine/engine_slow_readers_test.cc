// What slow readers hold while others wait, and what they get when they read again, step by step.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/scripted_engine.h"

namespace eta::testing {
namespace {

constexpr int32_t kReadersBlock = 16;

class SlowReadersTest : public ::testing::Test {
 protected:
  void Start(int32_t num_blocks) {
    engine_ = std::make_unique<ScriptedEngine>(
        ScriptedEngine::Options{.model_dir = model_.path(),
                                .num_blocks = num_blocks,
                                .batcher = {.max_running = 2,
                                            .max_step_tokens = 64,
                                            .max_congestion = std::chrono::hours(1)}},
        *backend_);
  }
  const Batcher& batcher() { return engine_->dispatcher().batcher(); }

  size_t Submit(const std::string& tenant, Request request) {
    request.tenant = tenant;
    engine_->Submit(std::move(request));
    return engine_->num_requests() - 1;
  }
  void StepUntil(const std::function<bool()>& done, int most = 2000) {
    for (int steps = 0; !done(); ++steps) {
      ASSERT_LT(steps, most);
      ASSERT_TRUE(engine_->Step().ok());
      EXPECT_LE(batcher().num_running() - batcher().num_paused(), 2) << "more than there are slots";
    }
  }
  void Finish() {
    StepUntil([&] { return batcher().num_running() + batcher().queue().size() == 0; });
    EXPECT_EQ(engine_->dispatcher().pool().num_used(), 0);
  }

  TinyModel model_;
  std::unique_ptr<Backend> backend_ = *MakeBackend({.name = "cpu", .num_threads = 1});
  std::unique_ptr<ScriptedEngine> engine_;
};

TEST_F(SlowReadersTest, TheBlocksOfOneThatIsBehindForLongGoToWhoWaits) {
  Start(12);
  const Request request = Greedy(Prompt(9 * kReadersBlock, 1), 20);
  const size_t slow = Submit("a", request);
  StepUntil([&] { return engine_->ids(slow).size() > 1; });
  engine_->SetCongested(slow, true);
  const size_t other = Submit("b", Greedy(Prompt(4 * kReadersBlock, 2), 8));
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(engine_->preemptions(), 0) << "a moment is not long";
  StepUntil([&] { return engine_->ids(other).size() == 8; }, 40);
  EXPECT_EQ(engine_->preemptions(), 1);

  engine_->SetCongested(slow, false);
  Finish();
  const size_t again = Submit("c", request);
  Finish();
  EXPECT_EQ(engine_->ids(slow).size(), 20u);
  EXPECT_EQ(engine_->ids(slow), engine_->ids(again)) << "nothing of the answer is lost";
}

TEST_F(SlowReadersTest, ThoseThatComeBackTogetherTakeNoSlotsFromOthers) {
  Start(128);
  std::vector<size_t> slow;
  for (uint32_t i = 0; i < 6; ++i) {
    slow.push_back(Submit("a", Greedy(Prompt(10, i), 200)));
    StepUntil([&] { return !engine_->ids(slow.back()).empty(); });
    engine_->SetCongested(slow.back(), true);
  }
  ASSERT_TRUE(engine_->Step().ok());
  EXPECT_EQ(batcher().num_paused(), 6);

  for (const size_t handle : slow) engine_->SetCongested(handle, false);
  const size_t other = Submit("b", Greedy(Prompt(10, 7), 20));
  StepUntil([&] { return engine_->ids(other).size() == 20; }, 40);
  Finish();
  for (const size_t handle : slow) EXPECT_EQ(engine_->ids(handle).size(), 200u);
}

}  // namespace
}  // namespace eta::testing
