// Drafts on a GPU, where rows feel their neighbours.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/scripted_engine.h"
#include "tests/unit/engine/batching/oracle_drafts.h"

namespace eta::testing {
namespace {

// How often greedy answers differ on a GPU, whose sums go by the number of rows.
class SpeculationOnADevice : public ::testing::TestWithParam<DType> {};

TEST_P(SpeculationOnADevice, MostAnswersAreTheSame) {
  const char* const name = std::getenv("ETA_TEST_BACKEND");
  if (name == nullptr || std::string_view(name) != "cuda") {
    GTEST_SKIP() << "only on a GPU rows feel their neighbours";
  }
  const auto backend = MakeBackend({.name = "cuda", .compute = GetParam()});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_FALSE((*backend)->exact_rows());
  const TinyModel model({.num_layers = 4});
  constexpr int kRequests = 64;
  std::map<std::string, std::vector<int32_t>> texts;
  DraftCounts counts;
  const auto play = [&](const DraftOptions& drafts) {
    ScriptedEngine engine({.model_dir = model.path(),
                           .num_blocks = 400,
                           .batcher = {.max_running = 4, .max_step_tokens = 64},
                           .drafts = drafts},
                          **backend);
    for (int i = 0; i < kRequests; ++i) {
      Request request = Greedy(Prompt(20 + i, static_cast<uint32_t>(i)), 60);
      request.id = std::to_string(i);
      // Rows with sparser reads make drafts where a request reads more than these do.
      if (i % 2 == 1) request.attention.mode = AttentionMode::kFull;
      engine.Submit(request);
    }
    const Batcher& batcher = engine.dispatcher().batcher();
    while (batcher.num_running() + batcher.queue().size() > 0 && engine.Step().ok()) {
    }
    std::vector<std::vector<int32_t>> ids;
    for (size_t i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(engine.finished(i)) << engine.failure(i);
      ids.push_back(engine.ids(i));
      if (engine.finished(i)) counts.Add(engine.finished(i)->drafts);
      std::vector<int32_t>& text = texts[std::to_string(i)];
      text = Prompt(20 + static_cast<int32_t>(i), static_cast<uint32_t>(i));
      text.insert(text.end(), ids.back().begin(), ids.back().end());
    }
    return ids;
  };
  const auto plain = play({});
  const auto known = texts;
  const auto drafted = play({.speculation = eta::Speculation::kPrompt,
                             .length = 7,
                             .source = [&](const Request& request) {
                               return std::make_unique<Oracle>(known.at(request.id), 1000, 1);
                             }});
  const auto by_itself = play({.speculation = eta::Speculation::kSelf, .length = 4});
  EXPECT_GT(counts.made, 0);
  int different = 0;
  int different_by_itself = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    different += plain[i] != drafted[i] ? 1 : 0;
    different_by_itself += plain[i] != by_itself[i] ? 1 : 0;
  }
  std::printf(
      "%d of %d greedy answers differ, %d with drafts by sparser reads, %lld of %lld drafts "
      "accepted\n",
      different, kRequests, different_by_itself, static_cast<long long>(counts.accepted),
      static_cast<long long>(counts.drafted));
  // In bfloat16 tokens of a random model tie so often that most answers part somewhere, and what is
  // drafted behind that place is of another text.
  const bool exact = GetParam() == DType::kFloat32;
  EXPECT_LT(different, exact ? kRequests / 2 : kRequests);
  EXPECT_LT(different_by_itself, exact ? kRequests / 2 : kRequests);
  EXPECT_GT(counts.accepted, counts.drafted / (exact ? 5 : 20));
}

INSTANTIATE_TEST_SUITE_P(Compute, SpeculationOnADevice,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));

}  // namespace
}  // namespace eta::testing
