// What a request is admitted on where other requests hold a part of its prompt, step by step.
#include <gtest/gtest.h>

#include <functional>
#include <span>

#include "engine/batching/prefix_key.h"
#include "engine/request/request_validation.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/scripted_engine.h"

namespace eta::testing {
namespace {

constexpr int32_t kSharedBlock = 16;

class SharingTest : public ::testing::Test {
 protected:
  const BlockPool& pool() { return engine_.dispatcher().pool(); }
  const Batcher& batcher() { return engine_.dispatcher().batcher(); }

  // Its handle.
  size_t Submit(std::vector<int32_t> prompt, int32_t answer, Priority priority) {
    Request request = Greedy(std::move(prompt), answer);
    request.priority = priority;
    engine_.Submit(std::move(request));
    return engine_.num_requests() - 1;
  }
  size_t Submit(std::vector<int32_t> prompt, int32_t answer) {
    return Submit(std::move(prompt), answer, Priority::kNormal);
  }
  void StepUntil(const std::function<bool()>& done) {
    for (int steps = 0; !done(); ++steps) {
      ASSERT_LT(steps, 200);
      ASSERT_TRUE(engine_.Step().ok());
    }
  }

  TinyModel model_;
  std::unique_ptr<Backend> backend_ = *MakeBackend({.name = "cpu", .num_threads = 1});
  ScriptedEngine engine_{{.model_dir = model_.path(),
                          .num_blocks = 12,
                          .batcher = {.max_running = 4, .max_step_tokens = kSharedBlock / 2}},
                         *backend_};
};

// Of five cached blocks of a prompt the first is nobody's, and goes to a request of the same step:
// the other four, which are held, are not reached without it, and would be missing.
TEST_F(SharingTest, BlocksBehindOneThatMayBeGivenAwayAreNotCountedOn) {
  const std::vector<int32_t> prompt = Prompt(5 * kSharedBlock + 1, 1);
  const size_t holder = Submit(prompt, 12);
  StepUntil([&] { return batcher().num_running() == 1; });
  // Overtakes it. Its prompt is that first block alone, which it computes itself, being its last:
  // so the copy that is kept for others is not the holder's.
  const size_t first = Submit({prompt.begin(), prompt.begin() + kSharedBlock}, 1, Priority::kHigh);
  StepUntil([&] { return engine_.ids(first).size() == 1; });
  const size_t later = Submit(Prompt(4 * kSharedBlock + 1, 2), 1);
  StepUntil([&] { return engine_.ids(later).size() == 1 && !engine_.ids(holder).empty(); });
  const auto keys =
      PrefixKeys("", engine_.config().rope_theta, ResolveAttention({}, engine_.config()),
                 engine_.config().gate, prompt, kSharedBlock);
  ASSERT_EQ(pool().FindPrefix(keys).num_blocks, 5);
  ASSERT_EQ(pool().FindPrefix(std::span(keys).first(1)).num_held, 0);
  ASSERT_EQ(pool().num_used(), 6);
  ASSERT_EQ(pool().num_free(), 1);

  const size_t evicting = Submit(Prompt(2 * kSharedBlock, 3), 1);
  const size_t sharing = Submit(prompt, 12);
  ASSERT_TRUE(engine_.Step().ok());
  EXPECT_EQ(batcher().num_running(), 2);
  EXPECT_EQ(batcher().queue().size(), 1);
  StepUntil([&] { return batcher().num_running() + batcher().queue().size() == 0; });
  EXPECT_EQ(engine_.ids(evicting).size(), 1u);
  EXPECT_EQ(engine_.ids(sharing), engine_.ids(holder));
}

// Who reads the events knows which beginnings of prompts are cached, and for whom.
TEST(KvEvents, TheEngineTellsThePromptsBlocksByTheirTokens) {
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  options.kv_events = std::make_shared<KvEventLog>();
  const auto engine = Start(options);
  const std::vector<int32_t> prompt = Prompt(3 * kSharedBlock + 1, 1);
  const auto ask = [&](const std::string& tenant) {
    Request request = Greedy(prompt, 2);
    request.tenant = tenant;
    Ask(*engine, std::move(request));
    WaitUntilIdle(*engine);
    return options.kv_events->TakeSnapshot().blocks;
  };
  const std::vector<KvBlockPtr> blocks = ask("acme");
  ASSERT_EQ(blocks.size(), 3u);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(i * kSharedBlock);
    EXPECT_EQ(blocks[i]->tokens, std::vector(begin, begin + kSharedBlock));
    const auto parent = i == 0 ? std::nullopt : std::optional(blocks[i - 1]->hash);
    EXPECT_EQ(blocks[i]->parent, parent);
  }
  EXPECT_EQ(ask("acme").size(), 3u) << "the same blocks again";
  EXPECT_EQ(ask("trial").size(), 6u) << "another tenant shares nothing";
}

}  // namespace
}  // namespace eta::testing
