// A plan that counts on blocks which the pool does not have costs one request or pass, and neither
// its batch mates nor the process.
#include <gmock/gmock.h>

#include "engine/base/error.h"
#include "engine/batching/blocks/block_pool.h"
#include "kernels/system/failpoint.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"
#include "tests/testing/engine/scripted_engine.h"
#include "tests/testing/kernels/deferring_backend.h"

namespace eta {
namespace {

using testing::DeferringBackend;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Prompt;
using testing::ScriptedEngine;
using testing::TinyModel;

TEST(BlockPoolAllocate, GivesAllOrNothing) {
  BlockPool pool(3);
  std::vector<int32_t> held;
  ASSERT_TRUE(pool.Allocate(2, held));
  EXPECT_THAT(held, ElementsAre(0, 1));
  std::vector<int32_t> more;
  EXPECT_FALSE(pool.Allocate(2, more));
  EXPECT_THAT(more, IsEmpty());
  EXPECT_EQ(pool.num_free(), 1);
  pool.ReleaseLast(1, held);
  EXPECT_THAT(held, ElementsAre(0));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(pool.Allocate(0, more));
  EXPECT_THAT(more, IsEmpty());
}

// Prepare and Submit let none in; a scheduler that found one all the same would plan no row for it,
// and no step would end it.
// bad input: Prompts | a sequence without tokens inside the engine | INTERNAL, for that one alone
TEST(SequenceWithoutTokens, CostsItselfAlone) {
  const TinyModel model;
  const auto backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  ScriptedEngine engine(
      {.model_dir = model.path(), .num_blocks = 16, .batcher = {.max_running = 1}}, *backend);
  Request request = testing::Greedy({}, 4);
  request.id = "0";
  engine.Submit(request);
  request = testing::Greedy(Prompt(5, 1), 4);
  request.id = "1";
  engine.Submit(request);
  for (int step = 0; step < 8; ++step) ASSERT_TRUE(engine.Step().ok());
  EXPECT_THAT(engine.failure(0), FailsFor(absl::StatusCode::kInternal, "INTERNAL_ERROR"));
  EXPECT_TRUE(engine.failure(1).ok()) << engine.failure(1);
  EXPECT_EQ(engine.ids(1).size(), 4u) << "it has the slot at once";
  EXPECT_EQ(engine.dispatcher().pool().num_used(), 0);
}

#ifdef ETA_FAILPOINTS
class MiscountedBlocks : public ::testing::Test {
 protected:
  static constexpr size_t kRequests = 3;

  ~MiscountedBlocks() override { DisarmFailpoints(); }

  struct Outcome {
    std::vector<std::vector<int32_t>> ids;
    std::vector<absl::Status> failures;
    absl::StatusOr<PassOutcome> pass = absl::UnknownError("not run");
  };
  // Three requests, the second a step after the first, and a pass, until nothing is left.
  Outcome Play(Backend& backend) {
    ScriptedEngine engine({.model_dir = model_.path(),
                           .num_blocks = 64,
                           .batcher = {.max_running = 4, .max_step_tokens = 48}},
                          backend);
    const auto recorder = std::make_shared<testing::PassRecorder>();
    for (int step = 0; step < 5000; ++step) {
      if (step < static_cast<int>(kRequests)) {
        Request request = testing::Greedy(Prompt(20, static_cast<uint32_t>(step)), 40);
        request.id = std::to_string(step);
        engine.Submit(request);
      }
      if (step == 1) {
        Pass pass;
        pass.tokens = Prompt(60, 9);
        pass.decode_from = 40;
        engine.SubmitPass(std::move(pass), recorder);
      }
      const auto ran = engine.Step();
      EXPECT_TRUE(ran.ok()) << ran.status();
      const Dispatcher& dispatcher = engine.dispatcher();
      const Batcher& batcher = dispatcher.batcher();
      const bool idle = batcher.num_running() + batcher.queue().size() == 0;
      if (!ran.ok() || (step > 3 && idle && dispatcher.passes().empty())) break;
    }
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0) << "what the failed one held is free";
    Outcome outcome;
    for (size_t i = 0; i < kRequests; ++i) {
      outcome.ids.push_back(engine.ids(i));
      outcome.failures.push_back(engine.failure(i));
    }
    outcome.pass = recorder->Wait();
    return outcome;
  }

  // Each block in turn is one that the pool does not have.
  void MissEachBlock(Backend& backend, bool always_costs_one) {
    const Outcome whole = Play(backend);
    EXPECT_TRUE(whole.pass.ok()) << whole.pass.status();
    size_t failed_requests = 0;
    size_t failed_passes = 0;
    int64_t blocks = 0;
    while (true) {
      SCOPED_TRACE(blocks);
      const int64_t before = FailpointStrikes(Failpoint::kEngineBlock);
      ArmFailpoint(Failpoint::kEngineBlock, {.after = blocks, .times = 1});
      const Outcome outcome = Play(backend);
      DisarmFailpoints();
      if (FailpointStrikes(Failpoint::kEngineBlock) == before) break;
      ++blocks;
      size_t failed = 0;
      const auto fails = [&](const absl::Status& status) {
        EXPECT_THAT(status, FailsFor(absl::StatusCode::kInternal, "INTERNAL_ERROR"));
        ++failed;
      };
      for (size_t i = 0; i < kRequests; ++i) {
        if (outcome.failures[i].ok()) {
          EXPECT_EQ(outcome.ids[i], whole.ids[i]) << "request " << i;
        } else {
          fails(outcome.failures[i]);
          ++failed_requests;
        }
      }
      if (!outcome.pass.ok()) {
        fails(outcome.pass.status());
        ++failed_passes;
      }
      EXPECT_LE(failed, 1u);
      EXPECT_GE(failed, always_costs_one ? 1u : 0u);
    }
    EXPECT_GT(blocks, 12);
    EXPECT_GE(failed_requests, 3u);
    EXPECT_GE(failed_passes, 1u);
  }

  static std::shared_ptr<Backend> Open() {
    return *MakeBackend({.name = "cpu", .num_threads = 1, .compute = DType::kFloat32});
  }
  const TinyModel model_;
};

TEST_F(MiscountedBlocks, CostOneRequestOrPass) {
  const auto backend = Open();
  MissEachBlock(*backend, /*always_costs_one=*/true);
}

// A step that is prepared while another one runs is given up, and costs nobody anything.
TEST_F(MiscountedBlocks, CostNoMoreWhereStepsArePrepared) {
  DeferringBackend backend(Open());
  MissEachBlock(backend, /*always_costs_one=*/false);
}
#endif

}  // namespace
}  // namespace eta
