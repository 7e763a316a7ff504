// The tables that compare ways of attending, on a tiny model, against what is computed directly.
#include "calibration/evaluation/tables/comparisons/comparisons.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/block_misses.h"
#include "calibration/evaluation/tables/comparisons/choice_task.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::TinyModel;
using testing::TinyModelOptions;

constexpr const char* kText = ETA_SOURCE_DIR "/deploy/samples/needle.txt";
constexpr int32_t kContext = 192;

std::unique_ptr<TableBench> BenchOf(const TinyModel& model, TableSettings settings = {}) {
  if (settings.texts.empty()) settings.texts = {kText};
  if (settings.context == 0) settings.context = kContext;
  if (settings.samples == 0) settings.samples = 2;
  auto bench = TableBench::Load({.model_dir = model.path(),
                                 .backend = {.name = "cpu", .num_threads = 2},
                                 .kv_dtype = DType::kFloat32},
                                settings);
  EXPECT_TRUE(bench.ok()) << bench.status();
  return *std::move(bench);
}

const TableRow* Find(const Table& table, const std::string& label) {
  for (const TableRow& row : table.rows) {
    if (std::ranges::find(row.labels, label) != row.labels.end()) return &row;
  }
  ADD_FAILURE() << "no row " << label;
  return nullptr;
}

double Value(const Table& table, const TableRow& row, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == column) return row.cells[i].value.value_or(NAN);
  }
  ADD_FAILURE() << "no column " << column;
  return NAN;
}

void CheckShape(const Table& table) {
  EXPECT_FALSE(table.rows.empty());
  for (const TableRow& row : table.rows) {
    EXPECT_EQ(row.labels.size(), table.keys.size());
    EXPECT_EQ(row.cells.size(), table.columns.size());
  }
  EXPECT_THAT(TableText(table), HasSubstr(table.title));
}

TEST(QualityTable, RivalsReadWhatTheDefaultReads) {
  for (const bool gated : {true, false}) {
    const TinyModel model({.has_predictor = gated});
    const auto bench = BenchOf(model);
    const auto table = MeasureQuality(*bench).value();
    CheckShape(table);
    EXPECT_THAT(table.rows, SizeIs(4 + 6));
    const double own = Value(table, *Find(table, "dynamic"), "union");
    for (const char* rival : {"Quest", "top-k by the index", "StreamingLLM", "window"}) {
      EXPECT_NEAR(Value(table, *Find(table, rival), "union"), own, 0.12) << rival;
    }
    ArmBench arms(*bench, kContext);
    const auto windows = bench->Windows(bench->Texts().front(), kContext, 2);
    const auto full = arms.Score("full", *windows, kContext / 2);
    EXPECT_NEAR(Value(table, *Find(table, "full"), "perplexity"), std::exp(full->loss.mean), 1e-9);
    const auto dynamic = arms.Score("dynamic", *windows, kContext / 2);
    EXPECT_NEAR(Value(table, *Find(table, "dynamic"), "ratio"),
                std::exp(dynamic->loss.mean - full->loss.mean), 1e-6);
  }
}

TEST(ParetoTable, MoreIsReadAtALargerOffset) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.quick = true});
  const auto table = MeasurePareto(*bench).value();
  CheckShape(table);
  EXPECT_LE(Value(table, *Find(table, "dynamic+offset=-1.8"), "union"),
            Value(table, *Find(table, "dynamic+offset=0.0"), "union"));
  EXPECT_EQ(Value(table, *Find(table, "full"), "union"), 1.0);
  EXPECT_GT(Value(table, *Find(table, "quest:0.25"), "recall"), 0.0);
  EXPECT_LE(Value(table, *Find(table, "dynamic+offset=0.0"), "missed"), 1.0);
  EXPECT_THAT(TableSvg(table), HasSubstr("Perplexity by bytes read"));
}

TEST(ParetoTable, APlainModelHasConstantsAndTheirOracle) {
  const TinyModel model({.has_predictor = false});
  const auto bench = BenchOf(model);
  const auto table = MeasurePareto(*bench).value();
  CheckShape(table);
  EXPECT_GE(Value(table, *Find(table, "relative:-6.0"), "union"),
            Value(table, *Find(table, "relative:-2.5"), "union"));
  EXPECT_NE(Find(table, "oracle:-3.9"), nullptr);
  EXPECT_TRUE(std::isnan(Value(table, *Find(table, "quest:0.25"), "recall")))
      << "no threshold that keys could reach";
}

TEST(BlockMisses, CountsWhatTheRecallOfTheBackendCounts) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.context = 400});
  BlockMisses misses(bench->runtime().shared_backend(), /*gated=*/true, /*stride=*/1);
  ArmBench arms(*bench, 400, &misses);
  const auto windows = bench->Windows(bench->Texts().front(), 400, 2);
  const auto share = [&](const std::string& name, bool recall) {
    misses.Reset();
    const auto score = arms.Score(name, *windows, 200, recall);
    EXPECT_TRUE(score.ok()) << score.status();
    const MissCounts& counts = misses.counts();
    if (score->recall) {
      EXPECT_NEAR(1.0 - static_cast<double>(counts.missed_keys) / static_cast<double>(counts.keys),
                  *score->recall, 1e-4)
          << name;
    }
    return static_cast<double>(counts.missed_blocks) / static_cast<double>(counts.blocks);
  };
  const double narrow = share("dynamic+z=0+offset=-0.5", true);
  const double wide = share("dynamic+z=16+offset=-0.5", true);
  EXPECT_GT(narrow, wide);
  EXPECT_LT(wide, 0.01) << "so wide a bound bounds";
  EXPECT_GT(share("quest:0.05:0", true), 0.0);
  EXPECT_EQ(share("quest:1", true), 0.0);
  misses.Reset();
  EXPECT_TRUE(arms.Score("full", *windows, 200).ok());
  EXPECT_EQ(misses.counts().keys, 0) << "nothing is chosen";
}

// Only its memory is a backend's: the caches are addresses alone.
class Unmoved : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void Plan(const BatchView&) override {}
  void AppendKv(const AppendKvParams&) override {}
  void DecodeAttention(const AttentionParams&) override {}
};

TEST(BlockMisses, ALayerWhereACacheOfAnotherShapeStoodTakesNoOtherLayersKeys) {
  constexpr int32_t kKeys = 21;
  constexpr int32_t kHeadDim = 16;
  BlockMisses misses(std::make_shared<Unmoved>(*MakeBackend({.name = "cpu", .num_threads = 1})),
                     /*gated=*/true, /*stride=*/1);
  std::byte caches[2] = {};
  std::vector<float> rows(size_t{kKeys} * kHeadDim, 1.0f);
  std::vector<int32_t> table(6);
  std::iota(table.begin(), table.end(), 0);
  KvGeometry geometry = {.num_kv_heads = 1, .head_dim = kHeadDim, .block_size = 8};
  const TensorView view = {
      .data = rows.data(), .rows = kKeys, .cols = kHeadDim, .stride = kHeadDim};
  const std::vector<int32_t> tokens(kKeys);
  SequenceRows planned = {.block_table = table};
  const auto plan = [&](RowKind kind, int32_t position, int32_t count) {
    planned.kind = kind;
    planned.position = position;
    planned.num_rows = count;
    misses.Plan({.tokens = std::span(tokens).first(static_cast<size_t>(count)),
                 .sequences = std::span(&planned, 1)});
  };
  const auto append = [&](int32_t layer) {
    misses.AppendKv({.k = view, .v = view, .geometry = geometry, .kv = {.tiles = &caches[layer]}});
  };
  plan(RowKind::kPrefill, 0, kKeys - 1);
  append(1);
  misses.Reset();
  geometry.block_size = 4;
  plan(RowKind::kPrefill, 0, kKeys - 1);
  append(0);
  append(1);
  plan(RowKind::kDecode, kKeys - 1, 1);
  float threshold = 0.0f;  // every score is 16
  uint32_t blocks[8] = {};
  uint32_t heads[8] = {};
  int32_t count = 0;
  for (const int32_t layer : {0, 1}) {
    append(layer);
    misses.DecodeAttention(
        {.q = view,
         .thresholds = {.data = &threshold, .rows = 1, .cols = 1, .stride = 1},
         .num_query_heads = 1,
         .geometry = geometry,
         .kv = {.tiles = &caches[layer]},
         .softmax_scale = 1.0f,
         .selection = {
             .blocks = blocks, .heads = heads, .counts = &count, .capacity = 8, .rows = 1}});
  }
  EXPECT_EQ(misses.counts().keys, 2 * kKeys);
  EXPECT_EQ(misses.counts().missed_keys, 2 * (kKeys - 1)) << "all but the tails'";
}

TEST(BlockSizeTable, HasEverySizeAtAboutOneUnion) {
  for (const bool gated : {true, false}) {
    const TinyModel model({.has_predictor = gated});
    const auto bench = BenchOf(model);
    const auto table = MeasureBlockSize(*bench).value();
    CheckShape(table);
    EXPECT_THAT(table.rows, SizeIs(6));
    for (const char* size : {"4", "8"}) {
      EXPECT_NEAR(Value(table, *Find(table, size), "union"), 0.51, 0.15) << size;
    }
    EXPECT_GT(Value(table, *Find(table, "128"), "union"), 0.9) << "pinned blocks are all there is";
  }
}

TEST(FrozenTable, ComparesAtBothLengths) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.context = 96});
  const auto table = MeasureFrozen(*bench).value();
  CheckShape(table);
  EXPECT_THAT(table.rows, SizeIs(4));
  EXPECT_NE(Find(table, "96"), nullptr);
  EXPECT_NE(Find(table, "192"), nullptr);
  EXPECT_NEAR(Value(table, table.rows[1], "ratio"), 1.0, 0.1);
  const TinyModel plain({.has_predictor = false});
  EXPECT_TRUE(absl::IsFailedPrecondition(MeasureFrozen(*BenchOf(plain)).status()));
}

TEST(RulerTable, HasFourKindsAndDensitiesInFrontOfTheQuestionAndBehindIt) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.quick = true, .context = 512, .samples = 1});
  const auto table = MeasureRuler(*bench).value();
  CheckShape(table);
  EXPECT_EQ(Value(table, *Find(table, "full"), "query_union"), 1.0);
  const TableRow& own = *Find(table, "default");
  EXPECT_LT(Value(table, own, "routine_union"), 1.0);
  EXPECT_LT(Value(table, own, "query_union"), 1.0);
  for (const TableCell& cell : own.cells) EXPECT_TRUE(cell.value.has_value());
}

TEST(RulerTable, APlainModelIsComparedToo) {
  const TinyModel model({.has_predictor = false});
  const auto table = MeasureRuler(*BenchOf(model, {.quick = true, .context = 512, .samples = 1}));
  ASSERT_TRUE(table.ok()) << table.status();
  CheckShape(*table);
  EXPECT_THAT(table->rows, SizeIs(5));
  EXPECT_THAT(table->findings, SizeIs(4));
}

TEST(MatchUnion, FindsAParameterThatReadsAsMuch) {
  const TinyModel model({.has_predictor = false});
  const auto bench = BenchOf(model, {.context = 512});
  ArmBench arms(*bench, 512);
  const auto windows = bench->Windows(bench->Texts().front(), 512, 1).value();
  for (const RivalFamily& family : RivalFamilies()) {
    const auto matched = MatchUnion(arms, family.name, 0.0, 0.9999, 0.6, windows, 256).value();
    EXPECT_NEAR(matched.union_density, 0.6, 0.06) << family.label << " " << matched.name;
  }
}

class ChoiceTest : public ::testing::Test {
 protected:
  ChoiceTest() : bench_(BenchOf(model_)) {}

  absl::StatusOr<std::vector<Question>> Read(const std::string& text) {
    return ReadQuestions(folder_.Write("questions.jsonl", text), bench_->tokenizer(), 0);
  }

  TinyModel model_;
  TempFolder folder_;
  std::unique_ptr<TableBench> bench_;
};

TEST_F(ChoiceTest, TheLikeliestChoiceIsTaken) {
  std::string text;
  for (int i = 0; i < 4; ++i) {
    text += R"({"prompt": "Question: which river is the longest of )" + std::to_string(i) +
            R"(?\nAnswer:", "choices": [" the Rhine", " Nile", " a small brook"], "answer": )" +
            std::to_string(i % 3) + "}\n";
  }
  const auto questions = Read(text).value();
  ASSERT_THAT(questions, SizeIs(4));
  ArmBench arms(*bench_, kContext);
  SequenceRunner& runner = **arms.runners().For(bench_->Geometry());
  int64_t right = 0;
  for (const Question& question : questions) {
    std::vector<double> sums;
    for (const auto& choice : question.choices) {
      std::vector<int32_t> tokens = question.prompt;
      tokens.insert(tokens.end(), choice.begin(), choice.end());
      std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
      tokens.pop_back();
      std::vector<float> logprobs(tokens.size());
      ASSERT_EQ(runner.Begin(
                    {.attention = {.admit_all = true}, .rope_theta = runner.config().rope_theta}),
                absl::OkStatus());
      ASSERT_EQ(runner.Run({.tokens = tokens,
                            .kind = RowKind::kPrefill,
                            .targets = targets,
                            .logprobs = logprobs}),
                absl::OkStatus());
      double sum = 0.0;
      for (size_t i = question.prompt.size() - 1; i < logprobs.size(); ++i) sum += logprobs[i];
      sums.push_back(sum);
    }
    right += std::ranges::max_element(sums) - sums.begin() == question.answer;
  }
  const auto full = ScoreChoices(arms, "full", questions).value();
  EXPECT_EQ(full.questions, 4);
  EXPECT_EQ(full.right, right);
  // Everything is in the pinned blocks and the tail.
  const auto sparse = ScoreChoices(arms, "dynamic", questions).value();
  EXPECT_EQ(sparse.right, right);
  EXPECT_NEAR(sparse.answer_loss, full.answer_loss, 1e-4);
  EXPECT_DOUBLE_EQ(sparse.union_density, 1.0);
}

// bad input: eta-eval | table: questions that are none, with too many or few choices, an answer
//   that is no choice | exit code 2, the line named | BadTableTest.QuestionsThatAreNone
TEST_F(ChoiceTest, WhatIsNoQuestionIsNamed) {
  const std::string good = R"({"prompt": "a", "choices": ["b", "c"], "answer": 1})";
  EXPECT_TRUE(Read(good).ok());
  for (const char* line : {"text", "[]", R"({"prompt": "a", "choices": ["b", "c"]})",
                           R"({"prompt": "a", "choices": ["b"], "answer": 0})",
                           R"({"prompt": "a", "choices": ["b", "c"], "answer": 2})",
                           R"({"prompt": "a", "choices": ["b", "c"], "answer": -1})",
                           R"({"prompt": "a", "choices": ["b", 3], "answer": 0})",
                           R"({"prompt": 1, "choices": ["b", "c"], "answer": 0})"}) {
    const auto read = Read(good + "\n\n" + line + "\n");
    EXPECT_EQ(GetErrorDetail(read.status()).field, "text") << line;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("line 3")) << line;
  }
  EXPECT_EQ(GetErrorDetail(Read("\n").status()).field, "text");
}

TEST(EvaluationSets, AreThereAndLongEnough) {
  const TinyModel model;
  const auto bench =
      *TableBench::Load({.model_dir = model.path()}, {.data = ETA_SOURCE_DIR "/tests/evaluation"});
  ASSERT_THAT(bench->Texts(), SizeIs(5));
  for (const BenchText& text : bench->Texts()) {
    const auto windows = bench->Windows(text, 2048, 8);
    ASSERT_TRUE(windows.ok()) << text.path << ": " << windows.status();
    EXPECT_THAT(*windows, SizeIs(8)) << text.path;
    EXPECT_THAT(*windows, Each(SizeIs(2049)));
  }
  for (const char* name : {"arc_easy", "gsm8k"}) {
    const auto questions =
        ReadQuestions(bench->settings().data + "/" + name + ".jsonl.xz", bench->tokenizer(), 0);
    ASSERT_TRUE(questions.ok()) << name << ": " << questions.status();
    EXPECT_GE(questions->size(), 150u);
  }
}

}  // namespace
}  // namespace eta
