// The promises hold for whatever is served: number formats of cache, weights and files, and other
// shapes of the model.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

using Answer = Recorder::Answer;

// The embedded model as the server serves it by default: float16 KV.
EngineOptions Embedded(WeightFormat weights) {
  EngineOptions options;
  options.model_dir = ETA_SOURCE_DIR "/models/eta-27m";
  options.weights = weights;
  options.backend.num_threads = 2;
  options.kv_pool_bytes = int64_t{64} << 20;
  options.limits.max_context = 4096;
  return options;
}

// `length` bytes of `text` from `begin` on, moved to whole UTF-8 characters.
std::string Cut(const std::string& text, size_t begin, size_t length) {
  const auto whole = [&](size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    return at;
  };
  const size_t from = whole(begin);
  return text.substr(from, whole(begin + length) - from);
}

// Sixteen pieces of a story, about 10 to 280 tokens long, that begin at different places of it.
std::vector<Request> StoryRequests() {
  std::ifstream file(ETA_SOURCE_DIR "/deploy/samples/needle.txt");
  const std::string story{std::istreambuf_iterator<char>(file), {}};
  std::vector<Request> requests;
  for (size_t i = 0; i < 16; ++i) {
    Request request = Greedy({}, 4 + static_cast<int32_t>(i % 4));
    request.prompt = Cut(story, 400 * i, 40 + (i * 461) % 1000);
    request.output.logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSame(const Answer& got, const Answer& expected, const std::string& where) {
  ASSERT_TRUE(got.finished) << where << ": " << got.status;
  ASSERT_TRUE(expected.finished) << where << ": " << expected.status;
  EXPECT_EQ(got.ids, expected.ids) << where;
  EXPECT_EQ(got.text, expected.text) << where;
  ASSERT_EQ(got.logprobs.size(), expected.logprobs.size()) << where;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_NEAR(got.logprobs[i].logprob, expected.logprobs[i].logprob, BatchTolerance())
        << where << ", token " << i;
  }
}

class EmbeddedModel : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(EmbeddedModel, AnswersAloneInABatchInChunksAndFromSharedPrefixesAreTheSame) {
  std::vector<Answer> alone;
  bool pruned = false;
  {
    EngineOptions options = Embedded(GetParam());
    options.prefix_cache = false;
    const auto engine = Start(options);
    for (Request& request : StoryRequests()) {
      alone.push_back(Ask(*engine, std::move(request)));
      ASSERT_TRUE(alone.back().finished) << alone.back().status;
      EXPECT_FALSE(alone.back().text.empty());
      pruned = pruned || alone.back().finished->attention.union_density() < 1.0;
    }
  }
  EXPECT_TRUE(pruned) << "some prompt should be long enough for blocks to be left out";
  for (const int32_t step_tokens : {256, 24}) {
    EngineOptions options = Embedded(GetParam());
    options.max_step_tokens = step_tokens;
    options.max_running = 16;
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, StoryRequests());
    for (size_t i = 0; i < alone.size(); ++i) {
      ExpectSame(together[i], alone[i],
                 "request " + std::to_string(i) + ", steps of " + std::to_string(step_tokens));
    }
    if (step_tokens == 24) continue;
    int32_t cached = 0;
    const auto again = StoryRequests();
    for (size_t i = 0; i < alone.size(); ++i) {
      const Answer answer = Ask(*engine, again[i]);
      ExpectSame(answer, alone[i], "request " + std::to_string(i) + ", again");
      cached += answer.finished->cached_tokens;
    }
    EXPECT_GE(cached, 64 * 16) << "the prompts' full blocks should have been found";
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, EmbeddedModel,
                         ::testing::Values(WeightFormat::kNative, WeightFormat::kInt8,
                                           WeightFormat::kInt4),
                         [](const auto& test) { return std::string(Name(test.param)); });

TEST(CacheFormats, Bfloat16KeysAndValuesHalveTheCacheAndHardlyMoveTheAnswer) {
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  const auto exact = Start(options);
  options.kv_dtype = DType::kBFloat16;
  const auto rounded = Start(options);
  ASSERT_TRUE(exact && rounded);
  EXPECT_EQ(rounded->info().kv_dtype, DType::kBFloat16);
  EXPECT_GT(rounded->info().num_blocks, exact->info().num_blocks);

  int same = 0;
  int compared = 0;
  double moved = 0.0;
  int positions = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    Request request = Greedy(Prompt(20 + 9 * static_cast<int32_t>(seed), seed), 12);
    request.output.prompt_logprobs = 0;
    const Answer a = Ask(*exact, request);
    const Answer b = Ask(*rounded, request);
    ASSERT_TRUE(b.finished) << b.status;
    EXPECT_EQ(b.finished->attention.kv_bytes_dense * 2, a.finished->attention.kv_bytes_dense);
    // Tokens are compared up to the first that differs: what follows it has another history.
    for (size_t i = 0; i < a.ids.size(); ++i) {
      ++compared;
      if (a.ids[i] != b.ids[i]) break;
      ++same;
    }
    ASSERT_EQ(a.prefill.size(), b.prefill.size());
    for (size_t i = 0; i < a.prefill.size(); ++i) {
      for (size_t j = 0; j < a.prefill[i].prompt_logprobs.size(); ++j) {
        moved += std::abs(a.prefill[i].prompt_logprobs[j].logprob -
                          b.prefill[i].prompt_logprobs[j].logprob);
        ++positions;
      }
    }
  }
  EXPECT_GT(compared, 150);
  EXPECT_GE(same, compared * 9 / 10) << "nine tokens in ten, of " << compared;
  EXPECT_GT(moved, 0.0) << "the cache should have rounded";
  EXPECT_LT(moved / positions, 0.01) << "mean change of a prompt token's log-probability";
}

uintmax_t WeightFileBytes(const TinyModel& model, int& num_files) {
  uintmax_t bytes = 0;
  num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(model.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    bytes += entry.file_size();
    ++num_files;
  }
  return bytes;
}

TEST(FileFormats, TheSameWeightsAnswerTheSameFromEveryFileFormat) {
  const TinyModel plain({.coarse_weights = true});
  int num_files = 0;
  const uintmax_t plain_bytes = WeightFileBytes(plain, num_files);
  EXPECT_EQ(num_files, 1);
  const auto engine = Start(OptionsFor(plain));
  std::vector<Answer> expected;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    Request request = Greedy(Prompt(150, seed), 16);
    request.output.logprobs = 0;
    expected.push_back(Ask(*engine, request));
  }
  struct Case {
    const char* name;
    DType dtype;
    int32_t shards;
  };
  for (const Case& c : {Case{"float16", DType::kFloat16, 1}, Case{"bfloat16", DType::kBFloat16, 1},
                        Case{"float32, sharded", DType::kFloat32, 3},
                        Case{"bfloat16, sharded", DType::kBFloat16, 2}}) {
    SCOPED_TRACE(c.name);
    const TinyModel model({.coarse_weights = true, .dtype = c.dtype, .shards = c.shards});
    const uintmax_t bytes = WeightFileBytes(model, num_files);
    EXPECT_EQ(num_files, c.shards);
    EXPECT_EQ(bytes < plain_bytes * 6 / 10, c.dtype != DType::kFloat32) << "16 bits are half of 32";
    const auto other = Start(OptionsFor(model));
    ASSERT_TRUE(other);
    EXPECT_NE(other->info().model_fingerprint, engine->info().model_fingerprint);
    // Exact products on cuda keep weights of any format as float32.
    if (c.dtype != DType::kFloat32 && OptionsFor(model).backend.name == "cpu") {
      EXPECT_LT(other->info().weight_bytes, engine->info().weight_bytes * 6 / 10);
    }
    for (uint32_t seed = 0; seed < 4; ++seed) {
      Request request = Greedy(Prompt(150, seed), 16);
      request.output.logprobs = 0;
      ExpectSame(Ask(*other, request), expected[seed], "prompt " + std::to_string(seed));
    }
  }
}

struct Shape {
  const char* name;
  TinyModelOptions options;
};

std::vector<Shape> Shapes() {
  return {{"OneLayerGroupOfEightHead96Block32",
           {.num_layers = 1,
            .model_dim = 72,
            .ffn_dim = 97,
            .num_query_heads = 8,
            .num_kv_heads = 1,
            .head_dim = 96,
            .block_size = 32,
            .tied = false}},
          {"NoGroupsHead128Block4",
           {.num_layers = 3,
            .model_dim = 50,
            .ffn_dim = 33,
            .num_query_heads = 2,
            .num_kv_heads = 2,
            .head_dim = 128,
            .block_size = 4}},
          {"GroupOfThreeHead16Block128",
           {.num_layers = 2,
            .model_dim = 31,
            .ffn_dim = 129,
            .num_query_heads = 6,
            .num_kv_heads = 2,
            .head_dim = 16,
            .block_size = 128,
            .tied = false}}};
}

class Geometry : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr int32_t kPromptTokens = 603;
  static constexpr int32_t kOutputTokens = 12;

  static Request Make(AttentionMode mode) {
    Request request = Greedy(Prompt(kPromptTokens, 5), kOutputTokens);
    request.attention.mode = mode;
    request.output.logprobs = 0;
    return request;
  }
};

TEST_P(Geometry, ServesFullAndDynamicAndAnswersTheSameInChunksAndFromSharedPrefixes) {
  const TinyModel model(GetParam().options);
  const int32_t block_size = GetParam().options.block_size;
  const auto engine = Start(OptionsFor(model));
  EngineOptions options = OptionsFor(model);
  options.max_step_tokens = 70;
  options.max_running = 4;
  const auto chunked = Start(options);
  ASSERT_TRUE(engine && chunked);
  const std::vector<Request> both = {Make(AttentionMode::kFull), Make(AttentionMode::kDynamic)};
  const auto together = AskTogether(*chunked, both);
  const Answer full = Ask(*engine, both[0]);
  ASSERT_TRUE(full.finished) << full.status;
  EXPECT_EQ(full.finished->attention.union_density(), 1.0);
  EXPECT_EQ(full.finished->attention.head_density(), 1.0);
  const Answer dynamic = Ask(*engine, both[1]);
  ASSERT_TRUE(dynamic.finished) << dynamic.status;
  EXPECT_EQ(dynamic.ids.size(), static_cast<size_t>(kOutputTokens));
  EXPECT_EQ(dynamic.finished->cached_tokens, (kPromptTokens - 1) / block_size * block_size);
  EXPECT_LT(dynamic.finished->attention.head_density(), 1.0) << "something should be pruned";
  EXPECT_GT(dynamic.finished->attention.head_density(), 0.0);
  ExpectSame(together[0], full, "full, in chunks");
  ExpectSame(together[1], dynamic, "dynamic, in chunks");
}

TEST_P(Geometry, ThresholdsBelowEveryBoundReadExactlyWhatFullReads) {
  TinyModelOptions low = GetParam().options;
  low.threshold_bias = -100.0f;
  const TinyModel model(low);
  const auto engine = Start(OptionsFor(model));
  ASSERT_TRUE(engine);
  const Answer full = Ask(*engine, Make(AttentionMode::kFull));
  const Answer dynamic = Ask(*engine, Make(AttentionMode::kDynamic));
  ASSERT_TRUE(full.finished && dynamic.finished);
  const AttentionSums& f = full.finished->attention;
  const AttentionSums& d = dynamic.finished->attention;
  EXPECT_EQ(d.decode_rows, kOutputTokens - 1);
  EXPECT_EQ(d.decode_rows, f.decode_rows);
  EXPECT_EQ(d.kv_bytes_read, f.kv_bytes_read);
  EXPECT_EQ(d.kv_bytes_dense, f.kv_bytes_dense);
  EXPECT_EQ(d.head_density(), 1.0);
  EXPECT_EQ(d.union_density(), 1.0);
  EXPECT_GT(d.index_bytes_read, 0);
  EXPECT_EQ(dynamic.ids, full.ids);
}

TEST_P(Geometry, TheReferenceBackendGivesTheSameAnswer) {
  const TinyModel model(GetParam().options);
  EngineOptions options = OptionsFor(model);
  options.max_step_tokens = 128;  // backends have defaults of their own
  const auto engine = Start(options);
  UseReference(options);
  const auto reference = Start(options);
  ASSERT_TRUE(engine && reference);
  Request request = Greedy(Prompt(300, 6), 3);
  request.output.prompt_logprobs = 0;
  const Answer expected = Ask(*reference, request);
  const Answer got = Ask(*engine, request);
  ASSERT_TRUE(expected.finished) << expected.status;
  ASSERT_EQ(got.prefill.size(), expected.prefill.size());
  size_t compared = 0;
  for (size_t i = 0; i < got.prefill.size(); ++i) {
    for (size_t j = 0; j < got.prefill[i].prompt_logprobs.size(); ++j, ++compared) {
      EXPECT_NEAR(got.prefill[i].prompt_logprobs[j].logprob,
                  expected.prefill[i].prompt_logprobs[j].logprob, 1e-3);
    }
  }
  EXPECT_EQ(compared, 299u);
  EXPECT_EQ(got.ids, expected.ids);
}

std::vector<Shape> Families() {
  return {{"LlamaWithBiases",
           {.num_query_heads = 4,
            .num_kv_heads = 1,
            .head_dim = 64,
            .model_type = "llama",
            .attention_bias = true,
            .tied = false}},
          {"Mistral", {.head_dim = 128, .model_type = "mistral"}},
          {"Qwen2GroupOfSeven",
           {.model_dim = 56,
            .num_query_heads = 7,
            .num_kv_heads = 1,
            .head_dim = 64,
            .model_type = "qwen2"}},
          {"Qwen3GroupOfSixteen",
           {.num_query_heads = 16,
            .num_kv_heads = 1,
            .head_dim = 96,
            .model_type = "qwen3",
            .attention_bias = true,
            .tied = false}},
          {"Qwen3MoeThreeOfEight",
           {.num_layers = 3,
            .head_dim = 64,
            .model_type = "qwen3_moe",
            .num_experts = 8,
            .experts_per_token = 3,
            .dense_layers = 1,
            .tied = false}},
          {"SmolLM3SecondLayerWithoutRope",
           {.num_layers = 3,
            .num_query_heads = 4,
            .num_kv_heads = 1,
            .head_dim = 64,
            .model_type = "smollm3",
            .no_rope_layer_interval = 2}}};
}

class Family : public ::testing::TestWithParam<Shape> {
 protected:
  // With every attention that the model has.
  static std::vector<Request> Requests(const ModelConfig& config) {
    auto profile = std::make_shared<ThresholdProfile>();
    profile->name = "frozen";
    profile->num_layers = config.num_layers;
    profile->num_query_heads = config.num_query_heads;
    profile->relative_c = -2.0f;
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) {
      Request request = Greedy(Prompt(1 + (i * 97) % 331, static_cast<uint32_t>(i)), 8 + i);
      if (i % 3 == 0) request.attention = {.mode = AttentionMode::kFull};
      if (i % 3 == 1) request.attention = {.mode = AttentionMode::kProfile, .profile = profile};
      request.output.logprobs = 0;
      requests.push_back(std::move(request));
    }
    return requests;
  }
};

TEST_P(Family, AnswersAloneInChunksAndFromSharedPrefixesAreTheReferences) {
  const TinyModel model(GetParam().options);
  EngineOptions options = OptionsFor(model);
  const auto engine = Start(options);
  options.max_step_tokens = 50;
  options.max_running = 5;
  const auto chunked = Start(options);
  options = ReferenceOptionsFor(model);
  const auto reference = Start(options);
  ASSERT_TRUE(engine && chunked && reference);
  const auto requests = Requests(engine->info().config);
  const auto together = AskTogether(*chunked, requests);
  bool pruned = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string where = "request " + std::to_string(i);
    const Answer alone = Ask(*engine, requests[i]);
    ExpectSame(together[i], alone, where + ", in chunks");
    ExpectSame(Ask(*engine, requests[i]), alone, where + ", again");
    pruned = pruned || alone.finished->attention.head_density() < 1.0;
    const Answer judge = Ask(*reference, requests[i]);
    ASSERT_TRUE(judge.finished) << judge.status;
    ASSERT_EQ(judge.logprobs.size(), alone.logprobs.size());
    for (size_t t = 0; t < judge.logprobs.size() && judge.ids[t] == alone.ids[t]; ++t) {
      EXPECT_NEAR(judge.logprobs[t].logprob, alone.logprobs[t].logprob, 1e-3) << where;
    }
  }
  EXPECT_TRUE(pruned) << "some prompt should be long enough for blocks to be left out";
}

INSTANTIATE_TEST_SUITE_P(Families, Family, ::testing::ValuesIn(Families()),
                         [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(Shapes, Geometry, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace eta::testing
