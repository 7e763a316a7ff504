// The tables that compare ways of attending, on a tiny model, against what is computed directly.
#include "calibration/evaluation/tables/comparisons/comparisons.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/attention_resolution.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/block_misses.h"
#include "calibration/evaluation/tables/comparisons/choice_task.h"
#include "calibration/evaluation/tables/comparisons/match_reads.h"
#include "calibration/evaluation/text/line_reader.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
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

// Quest would leave both layers dense: no share of it is matched, and it is not compared.
TEST(QualityTable, RivalsReadTheUnionOrTheBytesThatTheDefaultReads) {
  for (const bool gated : {true, false}) {
    const TinyModel model({.has_predictor = gated});
    const auto bench = BenchOf(model);
    const auto table = MeasureQuality(*bench).value();
    CheckShape(table);
    EXPECT_THAT(table.rows, SizeIs(4 + 2 * 7));
    const TableRow& own = *Find(table, "dynamic");
    for (const TableRow& row : table.rows) {
      if (row.labels[2] == "-" || row.labels[1] == "Quest") continue;
      const std::string what = row.labels[2].substr(row.labels[2].rfind(' ') + 1);
      const double wanted = Value(table, own, what);
      const double got = Value(table, row, what);
      // With its index the default may read more than all of K and V.
      if (wanted > 1.0) {
        EXPECT_GT(got, 0.95) << row.labels[3];
      } else {
        EXPECT_NEAR(got, wanted, 0.03) << row.labels[3];
      }
      EXPECT_EQ(row.labels[2] == what, std::abs(got - wanted) <= 0.01);
    }
    EXPECT_EQ(Value(table, *Find(table, "Quest"), "union"), 1.0);
    for (const char* what : {"union", "bytes"}) {
      EXPECT_THAT(table.findings, Contains(AllOf(HasSubstr(absl::StrCat("At the default's ", what)),
                                                 HasSubstr("comparisons with rivals."))))
          << "two windows have no interval to be beyond";
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

// All questions lie in the pinned blocks and the tail.
TEST(QualityTable, ATaskOfWhichEveryWayReadsAllIsLeftOut) {
  const TinyModel model({.block_size = 64, .has_predictor = false});
  const auto bench = *TableBench::Load(
      {.model_dir = model.path(), .backend = {.name = "cpu", .num_threads = 2}},
      {.data = ETA_SOURCE_DIR "/tests/evaluation", .context = 128, .samples = 1, .questions = 3});
  const auto table = MeasureQuality(*bench).value();
  CheckShape(table);
  for (const char* task : {"arc_easy", "gsm8k"}) {
    EXPECT_THAT(table.settings, Contains(Pair("left out", StartsWith(task))));
    for (const TableRow& row : table.rows) EXPECT_NE(row.labels[0], task);
  }
  EXPECT_THAT(TableText(table), Not(HasSubstr("choice_accuracy, %")));
}

TEST(QualityTable, RivalsReadOfATaskWhatTheDefaultReads) {
  const TinyModel model;
  const auto bench = *TableBench::Load(
      {.model_dir = model.path(), .backend = {.name = "cpu", .num_threads = 2}},
      {.data = ETA_SOURCE_DIR "/tests/evaluation", .context = 128, .samples = 1, .questions = 3});
  const auto table = MeasureQuality(*bench).value();
  std::map<std::string, double> of_task;
  for (const TableRow& row : table.rows) {
    if (row.labels[0] != "arc_easy") continue;
    EXPECT_LE(row.n, 3);
    of_task[row.labels[1]] = Value(table, row, "union");
  }
  EXPECT_THAT(of_task, SizeIs(4 + 7));
  EXPECT_LT(of_task["dynamic"], 1.0);
  EXPECT_NEAR(of_task["StreamingLLM"], of_task["dynamic"], 0.06);
  EXPECT_NEAR(of_task["H2O"], of_task["dynamic"], 0.03);
}

TEST(AttentionScore, HasIntervalsOverWindows) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.context = 64});
  ArmBench arms(*bench, 64);
  const auto windows = bench->Windows(bench->Texts().front(), 64, 5).value();
  ASSERT_THAT(windows, SizeIs(5));
  const auto full = arms.Score("full", windows, 32).value();
  const auto sparse = arms.Score("window:16", windows, 32).value();
  ASSERT_EQ(sparse.window, 32);
  std::vector<double> means;
  for (size_t begin = 0; begin < 5 * 32; begin += 32) {
    double sum = 0.0;
    for (size_t i = begin; i < begin + 32; ++i) sum += sparse.losses[i] - full.losses[i];
    means.push_back(sum / 32);
  }
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / 5;
  double squares = 0.0;
  for (const double of_window : means) squares += (of_window - mean) * (of_window - mean);
  const MeanInterval over = PairedDifference(sparse, full);
  EXPECT_NEAR(over.mean, mean, 1e-6);
  EXPECT_NEAR(over.half_width.value(), 2.776 * std::sqrt(squares / 4 / 5),
              0.005 * *over.half_width);
  const auto few = arms.Score("full", std::span(windows).first(3), 32).value();
  EXPECT_FALSE(few.loss.half_width.has_value());
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
  EXPECT_TRUE(std::isnan(Value(table, *Find(table, "h2o:128:0.198"), "recall")))
      << "it attends to single keys";
  EXPECT_LE(Value(table, *Find(table, "dynamic+offset=0.0"), "missed"), 1.0);
  EXPECT_THAT(TableSvg(table), HasSubstr("Perplexity by bytes read"));
}

TEST(ParetoTable, APlainModelHasConstantsAndTheirOracle) {
  const TinyModel model({.has_predictor = false});
  const auto bench = BenchOf(model);
  const auto table = MeasurePareto(*bench).value();
  CheckShape(table);
  EXPECT_GE(Value(table, *Find(table, "relative:-6.4"), "union"),
            Value(table, *Find(table, "relative:-2.9"), "union"));
  EXPECT_NE(Find(table, "oracle:-4.3"), nullptr);
  EXPECT_TRUE(std::isnan(Value(table, *Find(table, "quest:0.25"), "recall")))
      << "no threshold that keys could reach";
}

TEST(BlockMisses, CountsWhatTheRecallOfTheBackendCounts) {
  const TinyModel model;
  const auto bench = BenchOf(model, {.context = 400});
  BlockMisses misses(bench->runtime().shared_backend(), /*gated=*/true, /*stride=*/1,
                     /*num_threads=*/2);
  ArmBench arms(*bench, 400, &misses);
  const auto windows = bench->Windows(bench->Texts().front(), 400, 2);
  const auto share = [&](const std::string& name, bool recall) {
    MissCounts counts;
    misses.CountInto(&counts);
    const auto score = arms.Score(name, *windows, 200, recall);
    EXPECT_TRUE(score.ok()) << score.status();
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
  MissCounts counts;
  misses.CountInto(&counts);
  EXPECT_TRUE(arms.Score("full", *windows, 200).ok());
  EXPECT_EQ(counts.keys, 0) << "nothing is chosen";
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
    misses.AppendKv({.k = view,
                     .v = view,
                     .geometry = geometry,
                     .kv = {.tiles = &caches[layer], .records = &caches[layer]}});
  };
  plan(RowKind::kPrefill, 0, kKeys - 1);
  append(1);
  MissCounts counts;
  misses.CountInto(&counts);
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
         .kv = {.tiles = &caches[layer], .records = &caches[layer]},
         .softmax_scale = 1.0f,
         .selection = {
             .blocks = blocks, .heads = heads, .counts = &count, .capacity = 8, .rows = 1}});
  }
  EXPECT_EQ(counts.keys, 2 * kKeys);
  EXPECT_EQ(counts.missed_keys, 2 * (kKeys - 1)) << "all but the tails'";
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

TEST(MatchReads, FindsAParameterThatReadsAsMuch) {
  const TinyModel model({.num_layers = 6, .has_predictor = false});
  const auto bench = BenchOf(model, {.context = 512});
  ArmBench arms(*bench, 512);
  const auto windows = bench->Windows(bench->Texts().front(), 512, 2).value();
  ArmScores scores(arms, windows, 256);
  const std::vector<RivalFamily> families = RivalFamilies();
  std::vector<TriedArms> tried(families.size());
  std::vector<ReadsWanted> wanted;
  for (size_t i = 0; i < families.size(); ++i) {
    wanted.push_back({.family = families[i].name,
                      .reads = 0.6,
                      .of = [&](const std::string& name,
                                Portion portion) { return scores.Of(name, portion).union_density; },
                      .tried = tried[i]});
  }
  const auto matched = MatchReads(wanted, [&](std::span<const std::string> names, Portion portion) {
                         return scores.Measure(names, portion);
                       }).value();
  ASSERT_EQ(matched.size(), families.size());
  for (size_t i = 0; i < families.size(); ++i) {
    EXPECT_NEAR(matched[i].reads, 0.6, 0.03) << families[i].label << " " << matched[i].name;
    EXPECT_EQ(matched[i].name, families[i].name(matched[i].at));
    EXPECT_EQ(matched[i].reads, scores.Of(matched[i].name).union_density);
  }
}

// Arms that read by a curve of their parameter, the few windows by another one.
class CurvedArms {
 public:
  using Function = std::function<double(double)>;
  CurvedArms(Function all, std::function<double(double reads, double at)> few)
      : all_(std::move(all)), few_(std::move(few)) {}

  // By a measure that is `more` than the curve.
  double Reads(const std::string& name, Portion portion, double more = 0.0) const {
    EXPECT_TRUE(measured_.contains({name, portion})) << name;
    const double at = std::stod(name);
    return (portion == Portion::kAll ? all_(at) : few_(all_(at), at)) + more * (2.0 - at);
  }
  ReadsWanted Want(double reads, double more = 0.0) {
    return {.family = family_,
            .reads = reads,
            .of = [this, more](const std::string& name,
                               Portion portion) { return Reads(name, portion, more); },
            .tried = tried};
  }
  std::vector<MatchedArm> Match(const std::vector<ReadsWanted>& wanted) {
    return MatchReads(wanted,
                      [&](std::span<const std::string> names, Portion portion) {
                        for (const std::string& name : names) measured_.insert({name, portion});
                        return absl::OkStatus();
                      })
        .value();
  }
  int64_t Runs(Portion portion) const {
    return std::ranges::count(measured_, portion, &std::pair<std::string, Portion>::second);
  }

  TriedArms tried;

 private:
  const ArmFamily family_ = [](double at) { return absl::StrFormat("%.4f", at); };
  Function all_;
  std::function<double(double, double)> few_;
  std::set<std::pair<std::string, Portion>> measured_;
};

double Steep(double at) {
  return 0.2 + 0.8 * (1.0 - std::pow(1.0 - at, 3.0));
}

TEST(MatchReads, AFewRunsOfAllWindowsServeBothMatches) {
  const CurvedArms::Function curves[] = {
      Steep, [](double at) { return at; }, [](double at) { return 0.15 + 0.85 * std::sqrt(at); },
      [](double at) { return std::min(1.0, 0.1 + std::round(at * 400) / 400); }};
  const std::function<double(double, double)> few[] = {
      [](double reads, double) { return reads; },
      [](double reads, double at) { return 0.97 * reads + 0.015 + 0.004 * std::sin(40 * at); },
      [](double reads, double) { return reads + 0.02 * (1.0 - reads); },
      [](double reads, double) { return 1.1 * reads; }};
  for (const auto& curve : curves) {
    for (const auto& of_few : few) {
      for (const double wanted : {0.25, 0.44, 0.7}) {
        CurvedArms arms(curve, of_few);
        const auto matched = arms.Match({arms.Want(wanted), arms.Want(wanted + 0.05, 0.02)});
        EXPECT_NEAR(arms.Reads(matched[0].name, Portion::kAll), wanted, 0.003);
        EXPECT_NEAR(arms.Reads(matched[1].name, Portion::kAll, 0.02), wanted + 0.05, 0.003);
        EXPECT_LE(arms.Runs(Portion::kAll), 4) << wanted;
        EXPECT_LE(arms.Runs(Portion::kFew), 16) << wanted;
      }
    }
  }
}

TEST(MatchReads, LooksFirstAtWhatWasTried) {
  CurvedArms arms(Steep, [](double reads, double) { return reads; });
  arms.tried.few = {0.25};
  EXPECT_NEAR(arms.Match({arms.Want(Steep(0.25) + 0.002)}).front().at, 0.25, 1e-9);
  EXPECT_EQ(arms.Runs(Portion::kFew), 1);
  EXPECT_EQ(arms.Runs(Portion::kAll), 1);
  EXPECT_EQ(arms.Match({arms.Want(Steep(0.25) - 0.002)}).front().name, "0.2500");
  EXPECT_EQ(arms.Runs(Portion::kFew) + arms.Runs(Portion::kAll), 2);
}

TEST(MatchReads, ComesAsNearAsItGoes) {
  CurvedArms arms(Steep, [](double reads, double) { return reads; });
  EXPECT_NEAR(arms.Match({arms.Want(0.1)}).front().reads, 0.2, 0.01);
  EXPECT_EQ(arms.Runs(Portion::kAll), 1) << "names have no parameter that reads less";
  EXPECT_LE(arms.Runs(Portion::kFew), 8);
}

// The few windows say that it cannot be reached.
TEST(MatchReads, GoesByAllWindowsWhereTheFewMislead) {
  CurvedArms arms(Steep, [](double reads, double) { return std::min(reads, 0.5); });
  EXPECT_NEAR(arms.Match({arms.Want(0.9)}).front().reads, 0.9, 0.01);
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

TEST_F(ChoiceTest, WhereNoBlockCouldBeLeftOutAllIsRead) {
  EvaluatedAttention way = {{.options = {.pinned_blocks = 2, .sink_blocks = 1}}};
  way.geometry.block_size = 16;
  EXPECT_TRUE(ReadsAll(way, 63));
  EXPECT_FALSE(ReadsAll(way, 64)) << "four full blocks";
  way.options.confirm = true;
  EXPECT_FALSE(ReadsAll(way, 63)) << "it may leave out values";
  way.options.admit_all = true;
  EXPECT_TRUE(ReadsAll(way, 1 << 20));
  const Question question = {.prompt = {1, 2, 3}, .choices = {{4}, {5, 6}}, .answer = 0};
  EXPECT_EQ(LongestAsked(std::span(&question, 1), 5), 5);
  EXPECT_EQ(LongestAsked(std::span(&question, 1), 4), 0);
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

// A number that stands in the question by chance is as often a wrong one.
TEST(EvaluationSets, NoPromptHoldsItsAnswer) {
  LineReader lines = *LineReader::Open(ETA_SOURCE_DIR "/tests/evaluation/gsm8k.jsonl.xz");
  int questions = 0;
  int given = 0;
  while (const auto line = lines.Next().value()) {
    const QuestionText question = ParseQuestion(*line).value();
    ++questions;
    EXPECT_THAT(question.prompt, EndsWith("\nAnswer:"));
    EXPECT_EQ(question.prompt.find("\nAnswer:"), question.prompt.rfind("\n"));
    const std::string number = question.choices[static_cast<size_t>(question.answer)].substr(1);
    given += std::regex_search(question.prompt, std::regex("[^0-9.,]" + number + "[^0-9]"));
  }
  EXPECT_EQ(questions, 150);
  EXPECT_LT(given, 15);
}

// What is measured there is computed here once more, without them.
TEST(TableBenchErrors, AModelWithLearnedSinksIsRefused) {
  const std::string model = ETA_SOURCE_DIR "/tests/golden/families/gpt-oss";
  EXPECT_THAT(std::string(TableBench::Load({.model_dir = model}, {}).status().message()),
              HasSubstr("without learned sinks, which this model has"));
  const auto runtime = Runtime::Load({.model_dir = model, .backend = {.name = "cpu"}}).value();
  const KvGeometry geometry = MakeKvGeometry(runtime->config(), DType::kFloat32, std::nullopt);
  EXPECT_THAT(
      std::string(ResolveEvaluated("h2o:128:0.2", {}, *runtime, geometry).status().message()),
      HasSubstr("must not choose by key: the model has learned sinks"));
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
