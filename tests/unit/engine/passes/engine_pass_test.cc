// What passes measure: the same as a run by hand, whatever else the engine does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "engine/passes/pass_cells.h"
#include "engine/request/request_validation.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"

namespace eta::testing {
namespace {

constexpr ScoreBins kBins = {.count = 256, .low = -8.0, .high = 8.0};

std::shared_ptr<const ThresholdProfile> MakeProfile(const ModelConfig& config, bool head_z) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = "frozen";
  profile->num_layers = config.num_layers;
  profile->num_query_heads = config.num_query_heads;
  for (int i = 0; i < config.num_layers * config.num_query_heads; ++i) {
    profile->thresholds.push_back(0.2f + 0.1f * static_cast<float>(i % 5));
    if (head_z) profile->head_z.push_back(0.25f * static_cast<float>(i % 7));
  }
  return profile;
}

// Every kind of attention and everything that can be measured, in ragged lengths.
std::vector<Pass> RaggedPasses(const ModelConfig& config) {
  std::vector<Pass> passes;
  for (int i = 0; i < 8; ++i) {
    Pass pass;
    const int32_t length = 40 + (i * 67) % 190;
    pass.tokens = Prompt(length, static_cast<uint32_t>(100 + i));
    pass.decode_from = i % 4 == 3 ? length : length / 2 + i;
    if (i % 4 == 0) pass.attention = {.settings = {.z = 0.0f, .pinned_blocks = 0}};
    if (i % 4 == 1) pass.attention = {.mode = AttentionMode::kFull};
    if (i % 4 == 2) {
      pass.attention = {.mode = AttentionMode::kProfile,
                        .profile = MakeProfile(config, i % 8 == 2)};
    }
    if (i != 3) pass.loss_from = i * 3;
    if (i % 3 != 0) {
      for (int32_t row = i * 3; row + 1 < length; row += 1 + i % 4) pass.logit_rows.push_back(row);
    }
    pass.top = i % 2 == 0;
    pass.recall = i % 3 == 0;
    if (i % 2 == 1) {
      pass.bins = kBins;
      pass.collect_from = i % 4 == 1 ? 0 : 17;
    }
    passes.push_back(std::move(pass));
  }
  return passes;
}

// The same by hand: the prompt rows as one chunk or two, every decode row in a step of its own.
class HandRun {
 public:
  explicit HandRun(const EngineOptions& options) {
    backend_ = MakeBackend(options.backend).value();
    const auto checkpoint = Checkpoint::Open(options.model_dir);
    model_ = Model::Load(*checkpoint, *backend_, {.max_rows = 512, .max_context = 4096}).value();
    cache_ = KvCache::Create(*backend_, config(), MakeKvGeometry(config(), options.kv_dtype), 64)
                 .value();
    for (int32_t i = 0; i < 64; ++i) blocks_.push_back(i);
  }
  const ModelConfig& config() const { return model_->config(); }

  PassOutcome Measure(const Pass& pass) {
    PassOutcome outcome;
    const auto heads =
        static_cast<size_t>(config().num_layers) * static_cast<size_t>(config().num_query_heads);
    if (pass.recall) {
      outcome.above.resize(heads);
      outcome.above_admitted.resize(heads);
    }
    std::unique_ptr<Buffer> cells;
    if (pass.bins) {
      outcome.cells.resize(static_cast<size_t>(PassCells::Count(config(), *pass.bins)));
      const size_t bytes = outcome.cells.size() * sizeof(uint64_t);
      cells = backend_->Allocate(bytes).value();
      backend_->Upload(cells->data(), outcome.cells.data(), bytes);
    }
    const auto num_tokens = static_cast<int32_t>(pass.tokens.size());
    for (int32_t begin = 0; begin < num_tokens;) {
      const bool prefill = begin < pass.decode_from;
      int32_t end = prefill ? pass.decode_from : begin + 1;
      if (pass.bins && begin < pass.collect_from) end = std::min(end, pass.collect_from);
      Rows(pass, begin, end, cells.get(), outcome);
      begin = end;
    }
    if (cells) {
      backend_->Download(outcome.cells.data(), cells->data(),
                         outcome.cells.size() * sizeof(uint64_t));
      outcome.collected_rows = pass.decode_from - pass.collect_from;
    }
    EXPECT_TRUE(backend_->Finish().ok());
    return outcome;
  }

 private:
  void Rows(const Pass& pass, int32_t begin, int32_t end, Buffer* cells, PassOutcome& outcome) {
    const ResolvedAttention attention = ResolveAttention(pass.attention, config());
    SequenceRows rows = {.num_rows = end - begin,
                         .position = begin,
                         .kind = begin < pass.decode_from ? RowKind::kPrefill : RowKind::kDecode,
                         .rope_theta = config().rope_theta,
                         .block_table = blocks_};
    attention.ApplyTo(rows);
    rows.calibrate = cells != nullptr && begin >= pass.collect_from && begin < pass.decode_from;
    const int32_t n = rows.num_rows;
    std::vector<int32_t> attended(static_cast<size_t>(config().num_layers * n * 4));
    std::vector<int32_t> read(static_cast<size_t>(config().num_layers * n * 2));
    std::vector<int32_t> values(read.size());
    ForwardOutputs outputs = {.tokens_attended = attended.data(),
                              .tokens_read = read.data(),
                              .values_read = values.data()};
    if (pass.recall) {
      outputs.above = outcome.above.data();
      outputs.above_admitted = outcome.above_admitted.data();
    }
    if (cells != nullptr) {
      outputs.cells = cells->as<uint64_t>();
      outputs.bins = *pass.bins;
    }
    const std::span tokens = std::span(pass.tokens).subspan(begin, n);
    ASSERT_TRUE(model_->Forward({tokens, std::span(&rows, 1)}, *cache_, outputs).ok());
    const auto last = static_cast<int32_t>(pass.tokens.size()) - 1;
    for (int32_t position = begin; position < end && position < last; ++position) {
      if (!pass.loss_from || position < *pass.loss_from) continue;
      SampleRow sample = {.forced = pass.tokens[static_cast<size_t>(position) + 1],
                          .num_logprobs = 0};
      SampleRow greedy = {.temperature = 0.0f};
      model_->ComputeLogits(std::vector<int32_t>{position - begin});
      model_->Sample(std::span(&sample, 1));
      model_->Sample(std::span(&greedy, 1));
      ASSERT_TRUE(model_->Finish().ok());
      outcome.losses.push_back(-sample.logprob);
      if (pass.top) outcome.top.push_back(greedy.token == sample.forced ? 1 : 0);
      if (!std::ranges::binary_search(pass.logit_rows, position)) continue;
      outcome.logits.resize(outcome.logits.size() + static_cast<size_t>(config().vocab_size));
      model_->ComputeLogits(std::vector<int32_t>{position - begin});
      model_->DownloadLogits(0, &*(outcome.logits.end() - config().vocab_size));
    }
    ASSERT_TRUE(model_->Finish().ok());
    if (rows.kind != RowKind::kDecode) return;
    outcome.attention.Add(CountDecodeRow(config(), cache_->geometry(), rows.attention, end,
                                         {attended.data(), read.data(), values.data()}));
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> blocks_;
};

// `tolerance`: of sums whose order follows the batch.
void ExpectSameOutcome(const absl::StatusOr<PassOutcome>& got, const PassOutcome& expected,
                       const std::string& where) {
  ASSERT_TRUE(got.ok()) << where << ": " << got.status();
  const double tolerance = BatchTolerance();
  ASSERT_EQ(got->losses.size(), expected.losses.size()) << where;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    ASSERT_NEAR(got->losses[i], expected.losses[i], tolerance) << where << ", loss " << i;
  }
  EXPECT_EQ(got->top, expected.top) << where;
  ASSERT_EQ(got->logits.size(), expected.logits.size()) << where;
  for (size_t i = 0; i < expected.logits.size(); ++i) {
    ASSERT_NEAR(got->logits[i], expected.logits[i], 4 * tolerance) << where << ", logit " << i;
  }
  EXPECT_EQ(got->attention.decode_rows, expected.attention.decode_rows) << where;
  EXPECT_EQ(got->attention.kv_bytes_dense, expected.attention.kv_bytes_dense) << where;
  EXPECT_EQ(got->collected_rows, expected.collected_rows) << where;
  ASSERT_EQ(got->cells.size(), expected.cells.size()) << where;
  if (tolerance > 0.0) return;
  EXPECT_EQ(got->attention.kv_bytes_read, expected.attention.kv_bytes_read) << where;
  EXPECT_EQ(got->attention.index_bytes_read, expected.attention.index_bytes_read) << where;
  EXPECT_DOUBLE_EQ(got->attention.head_density(), expected.attention.head_density()) << where;
  EXPECT_EQ(got->above, expected.above) << where;
  EXPECT_EQ(got->above_admitted, expected.above_admitted) << where;
  // All cells but the gate's, which is rounded as the work was cut.
  const CalibrationCells cells(kBins);
  for (size_t i = 0; i < expected.cells.size(); ++i) {
    const auto cell = static_cast<int64_t>(i) % cells.size();
    if (cell == cells.gate()) {
      const double gate = static_cast<double>(expected.cells[i]);
      EXPECT_NEAR(static_cast<double>(got->cells[i]), gate, 1e-6 * gate) << where;
    } else {
      ASSERT_EQ(got->cells[i], expected.cells[i]) << where << ", cell " << cell;
    }
  }
}

class PassTest : public ::testing::Test {
 protected:
  std::vector<PassOutcome> ByHand() {
    HandRun hand(OptionsFor(model_));
    std::vector<PassOutcome> outcomes;
    for (const Pass& pass : RaggedPasses(hand.config())) outcomes.push_back(hand.Measure(pass));
    return outcomes;
  }

  TinyModel model_;
};

TEST_F(PassTest, MeasuresWhatARunByHandDoes) {
  std::vector<std::string> backends = {"cpu", "reference"};
  const char* chosen = std::getenv("ETA_TEST_BACKEND");
  if (chosen != nullptr && std::string_view(chosen) != "deferring") backends = {chosen};
  for (const std::string& backend : backends) {
    EngineOptions options = OptionsFor(model_);
    options.backend.name = backend;
    options.max_running = 8;
    options.max_step_tokens = 50;
    HandRun hand(options);
    const auto engine = Start(options);
    const auto passes = RaggedPasses(engine->info().config);
    // The reference takes its time.
    const size_t count = backend == "reference" ? passes.size() / 2 : passes.size();
    for (size_t i = 0; i < count; ++i) {
      ExpectSameOutcome(Measure(*engine, passes[i]), hand.Measure(passes[i]),
                        backend + ", pass " + std::to_string(i));
    }
  }
}

TEST_F(PassTest, TheRaggedPassesMeasureSomething) {
  // Guards the other tests: they would prove nothing if everything were admitted or nothing
  // counted.
  bool pruned = false;
  bool missed = false;
  bool counted = false;
  for (const PassOutcome& outcome : ByHand()) {
    pruned = pruned || outcome.attention.union_density() < 0.95;
    for (size_t i = 0; i < outcome.above.size(); ++i) {
      missed = missed || outcome.above_admitted[i] < outcome.above[i];
    }
    counted = counted || std::ranges::any_of(outcome.cells, [](uint64_t c) { return c > 0; });
  }
  EXPECT_TRUE(pruned);
  EXPECT_TRUE(missed);
  EXPECT_TRUE(counted);
}

// Texts of noise are not foretold; the model's own answer is.
TEST_F(PassTest, TellsWhichTokensAreTheMostProbable) {
  const auto engine = Start(OptionsFor(model_));
  Pass pass{.tokens = Prompt(40, 3), .attention = {.mode = AttentionMode::kFull}};
  const std::vector<int32_t> ids = Submit(*engine, Greedy(pass.tokens, 6))->Wait().ids;
  ASSERT_EQ(ids.size(), 6u);
  pass.tokens.insert(pass.tokens.end(), ids.begin(), ids.end());
  pass.tokens[43] = ids[3] == 7 ? 8 : 7;
  pass.decode_from = static_cast<int32_t>(pass.tokens.size());
  pass.loss_from = 39;
  pass.top = true;
  const auto outcome = Measure(*engine, pass).value();
  ASSERT_EQ(outcome.top.size(), 6u);
  EXPECT_EQ(std::vector<uint8_t>(outcome.top.begin(), outcome.top.begin() + 4),
            (std::vector<uint8_t>{1, 1, 1, 0}));
  pass.top = false;
  EXPECT_TRUE(Measure(*engine, pass)->top.empty());
}

TEST_F(PassTest, PassesThatShareStepsMeasureWhatEachDoesAlone) {
  const auto expected = ByHand();
  for (const int32_t step_tokens : {16, 1000}) {
    EngineOptions options = OptionsFor(model_);
    options.max_running = 16;
    options.max_step_tokens = step_tokens;
    const auto engine = Start(options);
    std::vector<std::shared_ptr<PassRecorder>> recorders;
    for (Pass& pass : RaggedPasses(engine->info().config)) {
      recorders.push_back(SubmitPass(*engine, std::move(pass)));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectSameOutcome(recorders[i]->Wait(), expected[i], "pass " + std::to_string(i));
    }
  }
}

TEST_F(PassTest, ProgressRisesToTheLastRow) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 16;
  options.max_step_tokens = 16;
  const auto engine = Start(options);
  Pass pass;
  pass.tokens = Prompt(100, 1);
  pass.decode_from = 50;
  const auto recorder = SubmitPass(*engine, pass);
  ASSERT_TRUE(recorder->Wait().ok());
  const auto progress = recorder->progress();
  EXPECT_EQ(progress.front(), 16);
  EXPECT_EQ(progress.back(), 100);
  EXPECT_TRUE(std::ranges::is_sorted(progress));
}

std::vector<Request> Requests(int count, int32_t length, int32_t max_tokens) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(Greedy(Prompt(length + i, static_cast<uint32_t>(i)), max_tokens));
  }
  return requests;
}

// Keeps how many rows each step had, of passes and of requests, and holds the engine still after
// the tenth, until it is released.
class StepLog : public Observer {
 public:
  void OnStep(const StepReport& report) override {
    std::unique_lock lock(mutex_);
    reports_.push_back(report);
    if (reports_.size() == 10) changed_.wait(lock, [this] { return released_; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent&) override {}
  std::vector<StepReport> reports() const {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  std::vector<StepReport> reports_;
};

TEST_F(PassTest, BesideRequestsNeitherFeelsTheOther) {
  const auto expected = ByHand();
  const auto alone = AskTogether(*Start(OptionsFor(model_)), Requests(6, 90, 400));
  StepLog log;
  {
    const auto engine = Start(OptionsFor(model_), &log);
    std::vector<std::shared_ptr<Recorder>> answers;
    for (Request& request : Requests(6, 90, 400)) {
      answers.push_back(Submit(*engine, std::move(request)));
    }
    std::vector<std::shared_ptr<PassRecorder>> recorders;
    for (Pass& pass : RaggedPasses(engine->info().config)) {
      recorders.push_back(SubmitPass(*engine, std::move(pass)));
    }
    log.Release();
    for (size_t i = 0; i < alone.size(); ++i) {
      const auto answer = answers[i]->Wait();
      EXPECT_EQ(answer.ids, alone[i].ids) << "request " << i;
      ASSERT_TRUE(answer.finished);
      EXPECT_EQ(answer.finished->preemptions, 0);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectSameOutcome(recorders[i]->Wait(), expected[i], "pass " + std::to_string(i));
    }
  }
  // Of four steps in a row at most one was a pass's while requests ran.
  int since = 3;
  int beside = 0;
  for (const StepReport& report : log.reports()) {
    if (report.sequences_running == 0) break;
    if (report.pass_rows == 0) {
      ++since;
      continue;
    }
    EXPECT_EQ(report.prefill_rows + report.decode_rows, 0);
    EXPECT_GE(since, 3);
    since = 0;
    ++beside;
  }
  EXPECT_GT(beside, 0) << "passes move beside requests too";
}

TEST_F(PassTest, RequestsTakeBlocksFromPassesWhichMeasureTheSame) {
  const EngineOptions options = WithBlocks(OptionsFor(model_), 40);
  Pass pass;
  pass.tokens = Prompt(420, 7);  // 27 blocks of 16 tokens
  pass.decode_from = 330;
  pass.loss_from = 0;
  pass.recall = true;
  pass.bins = kBins;
  pass.collect_from = 5;
  const PassOutcome expected = HandRun(options).Measure(pass);
  const auto alone = AskTogether(*Start(options), Requests(3, 100, 60));

  for (const int32_t hold_at : {40, 340}) {  // among the prompt rows and among the decode rows
    EngineOptions small_steps = options;
    small_steps.max_running = 8;
    small_steps.max_step_tokens = 48;
    const auto engine = Start(small_steps);
    const auto recorder = std::make_shared<PassRecorder>(hold_at);
    SubmitPass(*engine, pass, recorder);
    recorder->WaitUntilHeld();
    std::vector<std::shared_ptr<Recorder>> answers;
    for (Request& request : Requests(3, 100, 60)) {
      answers.push_back(Submit(*engine, std::move(request)));
    }
    recorder->Release();
    for (size_t i = 0; i < alone.size(); ++i) {
      const auto answer = answers[i]->Wait();
      EXPECT_EQ(answer.ids, alone[i].ids) << "request " << i;
      ASSERT_TRUE(answer.finished) << answer.status;
      EXPECT_EQ(answer.finished->preemptions, 0);
    }
    const auto outcome = recorder->Wait();
    ExpectSameOutcome(outcome, expected, "held at " + std::to_string(hold_at));
    ASSERT_TRUE(outcome.ok());
    EXPECT_GT(outcome->preemptions, 0) << "three prompts of 7 blocks should not have found room";
    EXPECT_TRUE(std::ranges::is_sorted(recorder->progress()));
    WaitUntilIdle(*engine);
    EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  }
}

TEST_F(PassTest, PassesThatTogetherPassThePoolTakeTurns) {
  const EngineOptions options = WithBlocks(OptionsFor(model_), 15);
  const auto engine = Start(options);
  const auto expected = ByHand();
  std::vector<std::shared_ptr<PassRecorder>> recorders;
  for (Pass& pass : RaggedPasses(engine->info().config)) {
    recorders.push_back(SubmitPass(*engine, std::move(pass)));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    ExpectSameOutcome(recorders[i]->Wait(), expected[i], "pass " + std::to_string(i));
  }
}

TEST_F(PassTest, ThePrefixCacheIsNeitherUsedNorFilled) {
  const auto engine = Start(OptionsFor(model_));
  Pass pass;
  pass.tokens = Prompt(200, 1);
  pass.decode_from = 200;
  ASSERT_TRUE(Measure(*engine, pass).ok());
  EXPECT_EQ(engine->Snapshot().blocks_cached, 0);
  const auto answer = Ask(*engine, Greedy(Prompt(200, 1), 2));
  EXPECT_EQ(answer.finished->cached_tokens, 0);
}

}  // namespace
}  // namespace eta::testing
