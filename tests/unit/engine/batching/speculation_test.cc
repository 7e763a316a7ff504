// Drafts change when tokens come and nothing else: random requests have the same tokens,
// log-probabilities and counts with long drafts that are often wrong as without any, whatever they
// ask for and whatever runs beside them.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/fake_format.h"
#include "tests/testing/engine/scripted_engine.h"
#include "tests/testing/kernels/deferring_backend.h"
#include "tests/testing/kernels/faulty_backend.h"
#include "tests/testing/process/long_run.h"
#include "tests/unit/engine/batching/oracle_drafts.h"

namespace eta::testing {
namespace {

constexpr int kMostTokens = 60;  // of an answer

using Random = std::mt19937;

int Any(Random& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}
bool Chance(Random& random, double share) {
  return std::uniform_real_distribution<double>(0.0, 1.0)(random) < share;
}

// What a request came to, but for what its steps and neighbours decide.
struct Answer {
  std::vector<int32_t> ids;
  std::string text;
  std::string logprobs;
  std::string failure;
  std::string end;
  AttentionSums attention;
  std::string layers;
  bool operator==(const Answer&) const = default;
};

struct Outcome {
  std::vector<Answer> answers;
  DraftCounts drafts;
  int32_t preemptions = 0;
  int steps = 0;
  bool automatic = false;  // as many drafts as pay, from wherever
};

Answer AnswerOf(const ScriptedEngine& engine, size_t handle) {
  Answer answer;
  answer.ids = engine.ids(handle);
  answer.text = engine.text(handle);
  answer.logprobs = engine.logprobs(handle);
  answer.failure = std::string(engine.failure(handle).message());
  if (!engine.finished(handle)) return answer;
  const FinishedEvent& event = *engine.finished(handle);
  answer.end = absl::StrFormat(
      "%d '%s' %d, %d tokens, full from %d", static_cast<int>(event.reason), event.matched_stop,
      event.matched_id.value_or(-1), event.output_tokens, event.full_from.value_or(-1));
  answer.attention = event.attention;
  // These depend on what of the prompt was found in the cache, and so on who came before.
  answer.attention.prefill_rows = 0;
  answer.attention.prefill_keys_attended = 0;
  answer.attention.prefill_keys_eligible = 0;
  answer.attention.prefill_density_sum = 0.0;
  for (const LayerDensity& layer : event.layers) {
    absl::StrAppendFormat(&answer.layers, "%a %a ", layer.head_density, layer.union_density);
  }
  return answer;
}

struct ModelCase {
  const char* name;
  TinyModelOptions model;
};

std::vector<ModelCase> Models() {
  return {
      {"predicts", {}},
      {"relative", {.model_type = "llama", .index = "outlier"}},
      {"special keys", {.sink_blocks = 1, .special_keys = "temper"}},
      {"windows",
       {.num_layers = 3,
        .model_type = "qwen3",
        .sliding_window = 40,
        .window_layers = {true, false, true},
        .index = "outlier"}},
      {"all windows", {.model_type = "mistral", .sliding_window = 24}},
      {"experts", {.model_type = "qwen3_moe", .num_experts = 6, .index = "outlier"}},
      {"sinks",
       {.head_dim = 64,
        .model_type = "gpt_oss",
        .attention_bias = true,
        .sliding_window = 40,
        .num_experts = 4,
        .index = "outlier",
        .tied = false}},
      {"gemma",
       {.num_layers = 3,
        .num_kv_heads = 1,
        .head_dim = 256,
        .model_type = "gemma3_text",
        .sliding_window = 40,
        .window_layers = {true, false, true},
        .index = "outlier"}},
  };
}

class Speculation : public ::testing::TestWithParam<const char*> {
 protected:
  Speculation() {
    for (const ModelCase& of : Models()) {
      models_.push_back(std::make_unique<TinyModel>(of.model));
    }
    const auto checkpoint = *Checkpoint::Open(models_[0]->path());
    tokenizer_ =
        *Tokenizer::Load(checkpoint.tokenizer_files(), *ParseModelConfig(checkpoint.config_json()));
    const std::string name = GetParam();
    const bool reference = name == "reference";
    auto backend = MakeBackend(
        {.name = reference ? "reference" : "cpu", .num_threads = 2, .compute = DType::kFloat32});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    if (name == "deferring") backend_ = std::make_shared<DeferringBackend>(backend_);
  }

  Request RandomRequest(Random& random, const ModelConfig& config, int longest) {
    Request request =
        Greedy(Prompt(Any(random, 1, longest), static_cast<uint32_t>(Any(random, 0, 5))),
               Any(random, 1, kMostTokens));
    request.output.text = true;
    request.output.logprobs = Any(random, 0, 3);
    request.output.layer_statistics = Chance(random, 0.3);
    request.sampling.seed = static_cast<uint64_t>(Any(random, 1, 1 << 20));
    if (Chance(random, 0.5)) {
      request.sampling.temperature = 0.2f + 0.2f * static_cast<float>(Any(random, 0, 4));
      if (Chance(random, 0.5)) request.sampling.top_k = Any(random, 2, 50);
      if (Chance(random, 0.5)) request.sampling.top_p = 0.9f;
      if (Chance(random, 0.3)) request.sampling.min_p = 0.02f;
    }
    if (Chance(random, 0.4)) {
      request.sampling.repetition_penalty = 1.0f + 0.2f * static_cast<float>(Any(random, 0, 3));
      request.sampling.presence_penalty = 0.3f * static_cast<float>(Any(random, 0, 3));
      request.sampling.frequency_penalty = 0.3f * static_cast<float>(Any(random, 0, 3));
    }
    if (Chance(random, 0.2)) request.sampling.bias = {{Any(random, 3, 500), 4.0f}};
    request.stopping.ignore_eos = Chance(random, 0.7);
    if (Chance(random, 0.3))
      request.stopping.min_tokens = Any(random, 0, request.stopping.max_tokens);
    if (Chance(random, 0.1)) request.stopping.stop_strings = {"e", "th"};
    if (Chance(random, 0.2)) request.stopping.stop_ids = {Any(random, 3, 300), Any(random, 3, 300)};
    Attend(random, config, request);
    if (Chance(random, 0.25)) {
      const auto least = static_cast<size_t>(Any(random, 1, 9));
      const auto most = least + static_cast<size_t>(Any(random, 0, 20));
      formats_.push_back(std::make_shared<FakeFormat>(
          *tokenizer_, FakeFormat::Options{.judge = Digits(least, most)}));
      request.format = formats_.back();
    }
    return request;
  }

  static void Attend(Random& random, const ModelConfig& config, Request& request) {
    if (config.num_full_layers() == 0) return;
    if (Chance(random, 0.2)) {
      request.attention.mode = AttentionMode::kFull;
      return;
    }
    AttentionSettings& settings = request.attention.settings;
    request.attention.mode = AttentionMode::kDynamic;
    settings.offset = 0.5f * static_cast<float>(Any(random, -8, 2));
    settings.pinned_blocks = Any(random, 0, 2);
    settings.sink_blocks = Any(random, 0, 1);
    settings.confirm = Chance(random, 0.3);
    settings.shared_reads = Chance(random, 0.3);
    settings.sparse_prefill = Chance(random, 0.3);
    if (Chance(random, 0.3)) settings.min_mass = Chance(random, 0.5) ? 0.999f : 0.5f;
    if (config.gate == Gate::kSilu) settings.uniform_floor = Chance(random, 0.5);
    // So wide that drafts by sparser reads read clearly less.
    if (config.has_predictor && settings.pinned_blocks == 1) settings.z = 2.5f;
    if (Chance(random, 0.1) && settings.min_mass) request.attention.begin = Begin::kFull;
  }

  Outcome Play(const std::vector<std::pair<int, Request>>& script,
               const std::multimap<int, size_t>& pauses, const ScriptedEngine::Options& options) {
    ScriptedEngine engine(options, *backend_);
    Outcome outcome;
    size_t submitted = 0;
    for (int step = 0; step < 5000; ++step) {
      for (; submitted < script.size() && script[submitted].first <= step; ++submitted) {
        engine.Submit(script[submitted].second);
      }
      for (auto [pause, end] = pauses.equal_range(step); pause != end; ++pause) {
        if (pause->second < submitted) engine.SetCongested(pause->second, step % 2 == 0);
      }
      const auto stepped = engine.Step();
      EXPECT_TRUE(stepped.ok()) << stepped.status();
      ++outcome.steps;
      const Batcher& batcher = engine.dispatcher().batcher();
      const bool empty = batcher.num_running() + batcher.queue().size() == 0;
      if (!stepped.ok() || (submitted == script.size() && empty)) break;
    }
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0);
    for (size_t i = 0; i < engine.num_requests(); ++i) {
      outcome.answers.push_back(AnswerOf(engine, i));
      if (engine.finished(i)) outcome.drafts.Add(engine.finished(i)->drafts);
    }
    outcome.preemptions = engine.preemptions();
    return outcome;
  }

  // A batch of requests with and without drafts. Returns what was drafted.
  Outcome ExpectTheSame(uint32_t seed, size_t count) {
    Random random(seed);
    const size_t which = static_cast<size_t>(Any(random, 0, static_cast<int>(models_.size()) - 1));
    ScriptedEngine::Options options{.model_dir = models_[which]->path(), .num_blocks = 200};
    const auto checkpoint = *Checkpoint::Open(options.model_dir);
    const ModelConfig config = *ParseModelConfig(checkpoint.config_json());
    options.batcher = {.max_running = Any(random, 1, 6),
                       .max_step_tokens = Any(random, 6, 64),
                       .prefix_cache = Chance(random, 0.7),
                       .shadow_rate = 0.0};
    const int longest = std::string_view(GetParam()) == "reference" ? 100 : 200;
    std::vector<std::pair<int, Request>> script;
    for (size_t i = 0; i < count; ++i) {
      script.push_back({Any(random, 0, 10), RandomRequest(random, config, longest)});
      script.back().second.id = "r" + std::to_string(i);
    }
    std::stable_sort(script.begin(), script.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::multimap<int, size_t> pauses;
    for (int i = 0; i < 4 && Chance(random, 0.5); ++i) {
      pauses.insert({Any(random, 1, 15), static_cast<size_t>(Any(random, 0, 5))});
    }
    for (size_t i = 0; i < count; ++i) pauses.insert({17, i});  // all go on
    for (size_t i = 0; i < count; ++i) pauses.insert({61, i});
    const Outcome plain = Play(script, pauses, options);

    // As few blocks as hold the longest request, or as many as all need.
    if (Chance(random, 0.7)) {
      size_t most = 0;
      for (const auto& [step, request] : script) {
        most = std::max(most, std::get<1>(request.prompt).size() +
                                  static_cast<size_t>(request.stopping.max_tokens));
      }
      const int groups = config.num_full_layers() == config.num_layers ? 1 : config.num_layers;
      options.num_blocks = groups * (static_cast<int>(most) / 16 + 2 + Any(random, 0, 4));
    }
    std::map<std::string, std::vector<int32_t>> texts;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int32_t>& text = texts[script[i].second.id];
      text = std::get<1>(script[i].second.prompt);
      const std::vector<int32_t>& ids = plain.answers[i].ids;
      text.insert(text.end(), ids.begin(), ids.end());
    }
    options.drafts = {.speculation = eta::Speculation::kPrompt, .length = Any(random, 1, 9)};
    if (Chance(random, 0.5)) {
      options.drafts.speculation = eta::Speculation::kSelf;
    } else {
      options.drafts.source = [&](const Request& request) {
        return std::make_unique<Oracle>(texts.at(request.id), config.vocab_size, seed);
      };
    }
    const bool automatic = Chance(random, 0.3);
    if (automatic) {
      options.drafts.speculation = eta::Speculation::kAuto;
      options.drafts.exact = true;
      options.drafts.length = 0;
    }
    Outcome drafted = Play(script, pauses, options);
    drafted.automatic = automatic;
    for (size_t i = 0; i < count; ++i) {
      const Answer& a = plain.answers[i];
      const Answer& b = drafted.answers[i];
      const std::string where = absl::StrCat("case ", seed, ", model ", Models()[which].name,
                                             ", request ", i, ": ", a.failure);
      EXPECT_EQ(a.ids, b.ids) << where;
      EXPECT_EQ(a.text, b.text) << where;
      EXPECT_EQ(a.logprobs, b.logprobs) << where;
      EXPECT_EQ(a.failure, b.failure) << where;
      EXPECT_EQ(a.end, b.end) << where;
      EXPECT_EQ(a.layers, b.layers) << where;
      EXPECT_EQ(a.attention, b.attention)
          << where << a.attention.decode_rows << " rows, " << b.attention.decode_rows;
    }
    return drafted;
  }

  std::vector<std::unique_ptr<TinyModel>> models_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<Backend> backend_;
  std::vector<std::shared_ptr<FakeFormat>> formats_;
};

// A few hundred requests; with ETA_TEST_LONG 2,000 on the CPU and on the reference.
TEST_P(Speculation, ChangesNoTokenNoProbabilityAndNoCount) {
  const bool reference = std::string_view(GetParam()) == "reference";
  const int rounds = Rounds(reference ? 10 : 40, 500);
  DraftCounts drafts;
  int64_t automatic = 0;
  int32_t preemptions = 0;
  for (int i = 0; i < rounds && !HasFailure(); ++i) {
    const Outcome outcome = ExpectTheSame(static_cast<uint32_t>(i), 4);
    drafts.Add(outcome.drafts);
    if (outcome.automatic) automatic += outcome.drafts.drafted;
    preemptions += outcome.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(drafts.accepted, drafts.drafted / 5);
  EXPECT_LT(drafts.accepted, drafts.drafted * 4 / 5);
  EXPECT_GT(drafts.steps_saved, 0);
  EXPECT_GT(drafts.kv_bytes_rejected, 0);
  EXPECT_GT(drafts.made, drafts.drafted / 20) << "many of them by sparser reads";
  EXPECT_GT(drafts.kv_bytes_made, 0);
  EXPECT_GT(automatic, 0);
  std::printf(
      "%d requests, %lld of %lld drafts accepted, %lld rows made some, %lld automatic, %d "
      "preemptions\n",
      4 * rounds, static_cast<long long>(drafts.accepted), static_cast<long long>(drafts.drafted),
      static_cast<long long>(drafts.made), static_cast<long long>(automatic), preemptions);
}

TEST(SpeculationOfBoundAnswers, MasksBehindDraftsAreThoseOfTheTokens) {
  const TinyModel model;
  const auto checkpoint = *Checkpoint::Open(model.path());
  const ModelConfig config = *ParseModelConfig(checkpoint.config_json());
  const auto tokenizer = *Tokenizer::Load(checkpoint.tokenizer_files(), config);
  const auto id_of = [&](std::string_view text) {
    for (int32_t id = 3; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->PieceBytes(id) == text) return id;
    }
    return -1;
  };
  const std::vector<int32_t> digits = {id_of("4"), id_of("2"), id_of("1")};
  const int32_t letter = id_of("a");
  Request request = Greedy(Prompt(9, 1), 64);
  request.stopping.ignore_eos = false;
  request.format =
      std::make_shared<FakeFormat>(*tokenizer, FakeFormat::Options{.judge = Digits(2, 3)});
  request.stopping.min_tokens = 3;
  BoundAnswer ahead(request, config, *tokenizer);
  BoundAnswer single(request, config, *tokenizer);
  EXPECT_EQ(ahead.CountFitting(digits), 3u);
  EXPECT_EQ(ahead.CountFitting(std::vector<int32_t>{digits[0], letter, digits[1]}), 1u);
  ahead.Expect(digits);
  ahead.Fill();
  for (size_t i = 0; i <= digits.size(); ++i) {
    single.Fill();
    EXPECT_EQ(ahead.next(i), single.next()) << i;
    EXPECT_TRUE(std::ranges::equal(ahead.mask(i), single.mask())) << i;
    EXPECT_EQ(ahead.may_draw(i), single.may_draw());
    if (i < digits.size()) {
      EXPECT_TRUE(single.Accept(digits[i]).ok());
    }
  }
  EXPECT_TRUE(ahead.Accept(digits[0]).ok()) << "nothing has changed";
  EXPECT_EQ(ahead.CountFitting(digits), 2u);

  ahead.Expect(std::span(digits).first(2), 2);
  ahead.Fill();
  EXPECT_FALSE(ahead.may_draw(1)) << "it was not wanted";
  EXPECT_TRUE(std::ranges::equal(ahead.mask(2), single.mask()));

  ahead.Expect(std::vector<int32_t>{letter, digits[0]});
  ahead.Fill();
  EXPECT_TRUE(ahead.may_draw(0));
  EXPECT_FALSE(ahead.may_draw(1)) << "the draft before it cannot come";
  EXPECT_FALSE(ahead.may_draw(2));
}

// A text of two tokens repeats itself.
TEST(SpeculationOfTheText, SavesStepsOfWhoWantsIt) {
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  if (BatchTolerance() > 0.0) GTEST_SKIP() << "rows are not exact on this backend";
  options.speculation = EngineOptions().speculation;
  const auto automatic = Start(options);
  options.speculation = eta::Speculation::kOff;
  const auto engine = Start(options);
  for (uint32_t seed = 1; seed < 4; ++seed) {
    Request request = Greedy(Prompt(40, seed), 200);
    request.sampling.bias = {{100, 90.0f}, {101, 90.0f}};
    const Recorder::Answer plain = Ask(*engine, request);
    EXPECT_EQ(plain.finished->drafts, DraftCounts());
    const Recorder::Answer drafted = Ask(*automatic, request);
    EXPECT_EQ(drafted.ids, plain.ids);
    EXPECT_GT(drafted.finished->drafts.accepted, 0);
    EXPECT_GT(drafted.finished->drafts.steps_saved, 0);
    request.speculation = eta::Speculation::kOff;
    EXPECT_EQ(Ask(*automatic, request).finished->drafts, DraftCounts());
    request.speculation = eta::Speculation::kPrompt;
    const Recorder::Answer wanted = Ask(*engine, request);
    EXPECT_EQ(wanted.ids, plain.ids);
    EXPECT_GT(wanted.finished->drafts.accepted, 0);
  }
}

// bad input: Server | --speculation=self with a model whose rows select nothing | does not start,
//   UNSUPPORTED_BY_MODEL, field `speculation`
TEST(SpeculationBySparserReads, IsOfModelsWhoseRowsSelect) {
  const TinyModel windows({.model_type = "mistral", .sliding_window = 24});
  EngineOptions options = OptionsFor(windows);
  options.speculation = eta::Speculation::kSelf;
  const auto refused = Engine::Create(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(GetErrorDetail(refused.status()).reason, "UNSUPPORTED_BY_MODEL");
  EXPECT_EQ(GetErrorDetail(refused.status()).field, "speculation");
  const TinyModel plain({.model_type = "llama", .index = "outlier"});
  options = OptionsFor(plain);
  options.speculation = eta::Speculation::kSelf;
  const auto engine = Start(options);
  Request request = Greedy(Prompt(100, 1), 40);
  request.attention.mode = AttentionMode::kFull;
  const Recorder::Answer answer = Ask(*engine, request);
  EXPECT_TRUE(answer.finished.has_value());
  request.speculation = eta::Speculation::kOff;
  EXPECT_EQ(Ask(*engine, request).ids, answer.ids);
}

// A step without drafts may have the memory.
TEST(SpeculationOfTheText, GivesWayToTheDevice) {
  const TinyModel model;
  const auto faults = std::make_shared<Faults>();
  FaultyBackend backend(*MakeBackend({.name = "cpu", .num_threads = 1}), faults);
  ScriptedEngine engine({.model_dir = model.path(),
                         .batcher = {.max_running = 2, .max_step_tokens = 48},
                         .drafts = {.speculation = eta::Speculation::kPrompt,
                                    .length = 7,
                                    .source =
                                        [](const Request&) {
                                          return std::make_unique<Oracle>(std::vector<int32_t>(),
                                                                          1000, 1);
                                        }}},
                        backend);
  Request request = Greedy(Prompt(40, 1), 200);
  request.id = "r0";
  engine.Submit(request);
  for (int step = 0; step < 20; ++step) ASSERT_TRUE(engine.Step().ok());
  const size_t before = engine.ids(0).size();
  faults->FailNextFinish(absl::ResourceExhaustedError("scratch"));
  for (int step = 0; step < 21; ++step) ASSERT_TRUE(engine.Step().ok());
  EXPECT_TRUE(engine.failure(0).ok()) << engine.failure(0);
  EXPECT_EQ(engine.ids(0).size(), before + 20) << "a token a step";
}

// Wherever a request stops between the rows that make its drafts, its blocks go back.
TEST(SpeculationBySparserReads, LeavesNothingBehindWhenItIsCancelled) {
  const TinyModel model({.model_type = "llama", .index = "outlier"});
  const auto backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  int64_t made = 0;
  for (int steps = 1; steps < 24; ++steps) {
    ScriptedEngine engine({.model_dir = model.path(),
                           .num_blocks = 40,
                           .batcher = {.max_running = 2, .max_step_tokens = 64},
                           .drafts = {.speculation = eta::Speculation::kSelf, .length = 6}},
                          *backend);
    Request request = Greedy(Prompt(58, 1), 100);
    request.attention.mode = AttentionMode::kFull;
    engine.Submit(request);
    request.prompt = Prompt(30, 2);
    engine.Submit(request);
    for (int step = 0; step < steps; ++step) ASSERT_TRUE(engine.Step().ok());
    engine.Cancel(0);
    ASSERT_TRUE(engine.Step().ok());
    EXPECT_FALSE(engine.failure(0).ok());
    while (!engine.finished(1) && engine.Step().ok()) {
    }
    ASSERT_TRUE(engine.finished(1)) << engine.failure(1);
    made += engine.finished(1)->drafts.made;
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0) << steps;
  }
  EXPECT_GT(made, 0);
}

// A step whose rows make drafts is short only if no other verifies any in it.
TEST(SpeculationBySparserReads, MakesTheDraftsOfAllSequencesInTheSameSteps) {
  const TinyModel model({.model_type = "llama", .index = "outlier"});
  const auto backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  ScriptedEngine engine({.model_dir = model.path(),
                         .num_blocks = 100,
                         .batcher = {.max_running = 4, .max_step_tokens = 64},
                         .drafts = {.speculation = eta::Speculation::kSelf, .length = 3}},
                        *backend);
  const auto submit = [&](int32_t length, uint32_t seed) {
    Request request = Greedy(Prompt(length, seed), 120);
    request.attention.mode = AttentionMode::kFull;
    request.stopping.ignore_eos = true;
    engine.Submit(request);
  };
  submit(58, 1);
  submit(30, 2);
  for (int step = 0; step < 12; ++step) ASSERT_TRUE(engine.Step().ok());
  submit(45, 3);  // in the middle of the others
  submit(21, 4);
  for (int step = 0; step < 40; ++step) ASSERT_TRUE(engine.Step().ok());
  const std::vector<int64_t>& made = engine.drafts_made();
  // What is drafted may end an answer or be cut, so that single rows are missing here and there.
  const auto all = std::count(made.end() - 30, made.end(), 4);
  const auto some =
      std::count_if(made.end() - 30, made.end(), [](int64_t rows) { return rows > 0 && rows < 4; });
  EXPECT_GE(all, 15) << "three steps of four make drafts";
  EXPECT_EQ(some, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, Speculation, ::testing::Values("cpu", "reference", "deferring"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace eta::testing
