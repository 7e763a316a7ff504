// The engine with a float8_e4m3 cache and an int8 index. NarrowExactness, on the reference backend:
// what a token is rounded to depends on it alone, so nothing around a request changes its answer.
// CacheFormats, on the backend of OptionsFor, or the reference where that is the CPU: what the
// formats take and how far they move an answer; and the CPU's refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

EngineOptions Narrow(const TinyModel& model) {
  EngineOptions options = OptionsFor(model);
  options.backend = {.name = "reference"};
  options.kv_dtype = DType::kFloat8E4M3;
  options.index_dtype = DType::kInt8;
  return options;
}

// Eight greedy requests of ragged lengths; some attend fully, some in the paper's form.
std::vector<Request> NarrowRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request =
        Greedy(Prompt(5 + (i * 61) % 127, static_cast<uint32_t>(i)), 20 + 10 * (i % 4));
    if (i % 4 == 1) request.attention = {.mode = AttentionMode::kFull};
    if (i % 4 == 2) {
      request.attention = {.mode = AttentionMode::kDynamic,
                           .settings = {.z = 0.5f, .uniform_floor = false, .pinned_blocks = 1}};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

class NarrowExactness : public ::testing::Test {
 protected:
  std::vector<std::vector<int32_t>> Alone() {
    const auto engine = Start(Narrow(model_));
    std::vector<std::vector<int32_t>> ids;
    double union_density = 0.0;
    for (Request& request : NarrowRequests()) {
      const auto answer = Ask(*engine, std::move(request));
      EXPECT_TRUE(answer.finished) << answer.status;
      if (answer.finished) union_density += answer.finished->attention.union_density();
      ids.push_back(answer.ids);
      EXPECT_FALSE(ids.back().empty());
    }
    EXPECT_LT(union_density, 7.9) << "something should have been pruned";
    return ids;
  }

  // Returns the preemptions.
  int32_t ExpectTogether(const EngineOptions& options,
                         const std::vector<std::vector<int32_t>>& alone) {
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, NarrowRequests());
    int32_t preemptions = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
      if (together[i].finished) preemptions += together[i].finished->preemptions;
    }
    return preemptions;
  }

  TinyModel model_;
};

TEST_F(NarrowExactness, BatchesChunksPrefixesAndPreemptionDoNotMatter) {
  const auto alone = Alone();
  {
    SCOPED_TRACE("one batch");
    ExpectTogether(Narrow(model_), alone);
  }
  {
    SCOPED_TRACE("chunks of a prompt");
    EngineOptions options = Narrow(model_);
    options.max_step_tokens = 11;
    options.max_running = 5;
    ExpectTogether(options, alone);
  }
  {
    SCOPED_TRACE("preemption");
    EngineOptions options = WithBlocks(Narrow(model_), 16);
    options.max_step_tokens = 64;
    EXPECT_GT(ExpectTogether(options, alone), 0)
        << "16 blocks of 16 tokens should not have been enough";
  }
  {
    SCOPED_TRACE("shared prefixes");
    const auto engine = Start(Narrow(model_));
    int32_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      const auto requests = NarrowRequests();
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto answer = Ask(*engine, requests[i]);
        EXPECT_EQ(answer.ids, alone[i]) << "request " << i;
        ASSERT_TRUE(answer.finished) << answer.status;
        cached += answer.finished->cached_tokens;
      }
    }
    EXPECT_GT(cached, 200) << "the second round should have found its prompts";
  }
}

TEST(CacheFormats, EightBitsAreCountedAsTheyAreAndMoveTheAnswerLittle) {
  const TinyModel model({.head_dim = 64});
  EngineOptions options = OptionsFor(model);
  if (options.backend.name == "cpu") UseReference(options);
  options.kv_dtype = DType::kFloat16;
  const auto wide = Start(options);
  options.kv_dtype = DType::kFloat8E4M3;
  options.index_dtype = DType::kInt8;
  const auto narrow = Start(options);
  ASSERT_TRUE(wide && narrow);
  EXPECT_EQ(narrow->info().kv_dtype, DType::kFloat8E4M3);
  EXPECT_EQ(narrow->info().index_dtype, DType::kInt8);
  EXPECT_GT(narrow->info().num_blocks, wide->info().num_blocks);

  double moved = 0.0;
  int positions = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    Request request = Greedy(Prompt(90 + 40 * static_cast<int32_t>(seed), seed), 6);
    request.output.prompt_logprobs = 0;
    const auto a = Ask(*wide, request);
    const auto b = Ask(*narrow, request);
    ASSERT_TRUE(a.finished && b.finished) << b.status;
    // K and V of 64 elements: 2 bytes each, or 1 with an exponent for each of both.
    EXPECT_EQ(b.finished->attention.kv_bytes_dense * 256,
              a.finished->attention.kv_bytes_dense * 130);
    // mu, sigma and M, or half of the vectors and four scalars.
    EXPECT_EQ(b.finished->attention.index_bytes_read * 260,
              a.finished->attention.index_bytes_read * 144);
    EXPECT_GT(b.finished->attention.index_bytes_read, 0);
    ASSERT_EQ(a.prefill.size(), b.prefill.size());
    for (size_t i = 0; i < a.prefill.size(); ++i) {
      for (size_t j = 0; j < a.prefill[i].prompt_logprobs.size(); ++j, ++positions) {
        moved += std::abs(a.prefill[i].prompt_logprobs[j].logprob -
                          b.prefill[i].prompt_logprobs[j].logprob);
      }
    }
  }
  ASSERT_GT(positions, 0);
  EXPECT_GT(moved, 0.0);
  // bfloat16 has 4 bits of mantissa more and moves it by up to 0.01.
  EXPECT_LT(moved / positions, 0.16) << "mean change of a prompt token's log-probability";
}

TEST(CacheFormats, TheCpuRefusesEightBitsAtTheStart) {
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  options.backend = {.name = "cpu", .num_threads = 1};
  options.kv_dtype = DType::kFloat8E4M3;
  const absl::Status cache = Engine::Create(options).status();
  EXPECT_EQ(cache.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cache.message()), HasSubstr("kv_dtype: backend cpu has no float8_e4m3"));
  options.kv_dtype = DType::kFloat16;
  options.index_dtype = DType::kInt8;
  const absl::Status index = Engine::Create(options).status();
  EXPECT_EQ(index.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(index.message()), HasSubstr("index_dtype: backend cpu has no int8"));
}

}  // namespace
}  // namespace eta::testing
