// Forms of a tiny model on the same rows, against what each of them computes alone.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/evaluation/tables/comparisons/paired_forms.h"
#include "calibration/evaluation/tables/tables.h"
#include "calibration/solvers/divergence.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::TinyModel;
using testing::TinyModelOptions;

constexpr int32_t kWindow = 192;
constexpr int32_t kScored = kWindow / 2;

std::unique_ptr<TableBench> WeightsBench(const TinyModel& model,
                                         std::vector<std::string> against = {},
                                         WeightFormat weights = WeightFormat::kNative) {
  auto bench = TableBench::Load({.model_dir = model.path(),
                                 .backend = {.name = "cpu", .num_threads = 2},
                                 .kv_dtype = DType::kFloat32,
                                 .weights = weights},
                                {.texts = {ETA_SOURCE_DIR "/deploy/samples/needle.txt"},
                                 .context = kWindow,
                                 .samples = 2,
                                 .against = std::move(against)});
  EXPECT_TRUE(bench.ok()) << bench.status();
  return *std::move(bench);
}

double CellOf(const Table& table, size_t row, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == column) return table.rows[row].cells[i].value.value_or(NAN);
  }
  ADD_FAILURE() << "no column " << column;
  return NAN;
}

// The logits of a window under full attention, all as one prompt.
std::vector<float> LogitsOf(TableBench& bench, const std::vector<int32_t>& window) {
  const auto runner = bench.MakeRunner(bench.Geometry(), kWindow).value();
  std::vector<int32_t> rows(kWindow);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(rows.size() * static_cast<size_t>(bench.config().vocab_size));
  const auto full = bench.Attention("full", bench.Geometry()).value();
  EXPECT_EQ(runner->Begin(SequenceSettingsOf(full, {}, bench.config(), kWindow)), absl::OkStatus());
  EXPECT_EQ(runner->Run({.tokens = std::span(window).first(rows.size()),
                         .kind = RowKind::kPrefill,
                         .logit_rows = rows,
                         .logits = logits}),
            absl::OkStatus());
  return logits;
}

TEST(WeightsTable, FewerBitsDivergeFurtherAndAreSmaller) {
  for (const bool gated : {true, false}) {
    const TinyModel model({.has_predictor = gated});
    const auto bench = WeightsBench(model);
    const Table table = MeasureWeights(*bench).value();
    ASSERT_THAT(table.rows, SizeIs(6));
    EXPECT_THAT(table.rows[0].labels, ElementsAre("model", "full"));
    EXPECT_THAT(table.rows[3].labels, ElementsAre("int8", "dynamic"));
    EXPECT_THAT(table.rows[4].labels, ElementsAre("int4", "full"));
    for (const size_t way : {0, 1}) {
      EXPECT_TRUE(std::isnan(CellOf(table, way, "kl"))) << "nothing diverges from itself";
      EXPECT_GT(CellOf(table, 2 + way, "kl"), 0.0);
      EXPECT_GT(CellOf(table, 4 + way, "kl"), 4 * CellOf(table, 2 + way, "kl"));
      EXPECT_LE(CellOf(table, 4 + way, "top_1"), CellOf(table, 2 + way, "top_1"));
      EXPECT_GT(CellOf(table, way, "memory"), 3 * CellOf(table, 2 + way, "memory"));
      EXPECT_GT(CellOf(table, 2 + way, "memory"), CellOf(table, 4 + way, "memory"));
    }
    EXPECT_EQ(CellOf(table, 2, "union"), 1.0);
    EXPECT_LT(CellOf(table, 3, "union"), 1.0);

    ArmBench arms(*bench, kWindow);
    const auto windows = bench->Windows(bench->Texts().front(), kWindow, 2).value();
    const auto eight = bench->LoadForm("int8").value();
    ArmBench eight_arms(*eight, kWindow);
    for (const size_t way : {0, 1}) {
      const std::string& name = table.rows[way].labels[1];
      const auto native = arms.Score(name, windows, kScored).value();
      const auto rounded = eight_arms.Score(name, windows, kScored).value();
      EXPECT_NEAR(CellOf(table, way, "perplexity"), std::exp(native.loss.mean), 1e-9);
      EXPECT_NEAR(CellOf(table, way, "union"), native.union_density, 1e-12);
      EXPECT_NEAR(CellOf(table, 2 + way, "perplexity"), std::exp(rounded.loss.mean), 1e-9);
      EXPECT_NEAR(CellOf(table, 2 + way, "ratio"), std::exp(rounded.loss.mean - native.loss.mean),
                  1e-6);
    }
  }
}

TEST(WeightsTable, SaysWhatItFound) {
  const TinyModel model;
  const auto bench = WeightsBench(model, {"int4"});
  const Table table = MeasureTable(*FindTable("weights"), *bench).value();
  EXPECT_THAT(table.findings,
              ElementsAre(AllOf(StartsWith("int4, full: KL "), HasSubstr(" of 2 needles (model ")),
                          StartsWith("int4, dynamic: KL ")));
  EXPECT_THAT(TableText(table), AllOf(HasSubstr("kl, nats"), HasSubstr("tokens 192")));
  const auto json = nlohmann::json::parse(TableJson(table));
  EXPECT_EQ(json["rows"][2]["weights"], "int4");
  EXPECT_EQ(json["rows"][2]["memory"]["value"], CellOf(table, 2, "memory"));
  EXPECT_EQ(json["rows"][2]["needles"]["n"], 2);
}

TEST(WeightsTable, ComparesFilesByTheirNames) {
  const TinyModel model;
  const TinyModel half({.dtype = DType::kFloat16});
  const TinyModel other({.seed = 2});
  const auto bench = WeightsBench(model, {half.path() + "/", other.path()});
  const Table table = MeasureWeights(*bench).value();
  ASSERT_THAT(table.rows, SizeIs(6));
  EXPECT_EQ(table.rows[2].labels[0], std::filesystem::path(half.path()).filename());
  EXPECT_LT(CellOf(table, 2, "kl"), 1e-3);
  EXPECT_GT(CellOf(table, 4, "kl"), 10 * CellOf(table, 2, "kl")) << "other numbers altogether";
}

TEST(PairedForms, AFormOfTheSameNumbersDoesNotDiverge) {
  const TinyModel model;
  const auto bench = WeightsBench(model);
  const std::vector<EvaluatedAttention> ways = {
      bench->Attention("full", bench->Geometry()).value(),
      bench->Attention("dynamic", bench->Geometry()).value()};
  const auto runner = bench->MakeRunner(bench->Geometry(), kWindow).value();
  const auto same = bench->MakeRunner(bench->Geometry(), kWindow).value();
  PairedForms pair(*runner, *same, ways, {});
  const auto windows = bench->Windows(bench->Texts().front(), kWindow, 2).value();
  for (const auto& window : windows) ASSERT_EQ(pair.Window(window, 10), absl::OkStatus());
  for (const PairedRows& rows : pair.rows()) {
    ASSERT_THAT(rows.divergences, SizeIs(2 * (kWindow - 10)));
    for (const float divergence : rows.divergences) EXPECT_EQ(divergence, 0.0f);
    for (const float agreement : rows.agreements) EXPECT_EQ(agreement, 1.0f);
    EXPECT_EQ(rows.model.losses, rows.form.losses);
    EXPECT_EQ(rows.model.sums, rows.form.sums);
  }
}

// Steps, prompts and ways side by side change no number.
TEST(PairedForms, HasTheDivergenceOfLogitsThatAreComputedAlone) {
  const TinyModel model;
  const auto bench = WeightsBench(model);
  const auto four = bench->LoadForm("int4").value();
  const std::vector<EvaluatedAttention> ways = {
      bench->Attention("full", bench->Geometry()).value()};
  const auto runner = bench->MakeRunner(bench->Geometry(), kWindow).value();
  const auto rounded = four->MakeRunner(bench->Geometry(), kWindow).value();
  PairedForms pair(*runner, *rounded, ways, bench->tokenizer().special_ids());
  const auto window = bench->Windows(bench->Texts().front(), kWindow, 1).value().front();
  ASSERT_EQ(pair.Window(window, kScored), absl::OkStatus());
  const std::vector<float> of_model = LogitsOf(*bench, window);
  const std::vector<float> of_form = LogitsOf(*four, window);
  const auto width = static_cast<size_t>(bench->config().vocab_size);
  ASSERT_THAT(pair.rows()[0].divergences, SizeIs(kScored));
  for (size_t row = 0; row < kScored; ++row) {
    const size_t at = (kScored + row) * width;
    EXPECT_FLOAT_EQ(pair.rows()[0].divergences[row],
                    static_cast<float>(KlDivergence(std::span(of_model).subspan(at, width),
                                                    std::span(of_form).subspan(at, width))));
  }
}

class WeightsTableErrors : public ::testing::Test {
 protected:
  void Refused(const std::string& form, const std::string& sentence) {
    const absl::Status status = MeasureWeights(*WeightsBench(model_, {form})).status();
    EXPECT_EQ(GetErrorDetail(status).field, "against") << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(form), HasSubstr(sentence)));
  }
  void Refused(const TinyModelOptions& options, const std::string& sentence) {
    Refused(TinyModel(options).path(), sentence);
  }

  TinyModel model_;
};

// bad input: eta-eval | table weights: a form of another shape, vocabulary, gate or index metric,
//   or with another tokenizer | exit code 2, `against`, the form and what differs named |
//   BadTableTest.FormsOfAnotherModel
TEST_F(WeightsTableErrors, AFormOfAnotherModelIsRefusedByName) {
  Refused({.num_layers = 3}, "another model: num_layers is 3, not 2");
  Refused({.ffn_dim = 128}, "ffn_dim is 128, not 96");
  Refused({.has_predictor = false}, "a predictor or a gate");
  Refused({.index_metric = true}, "metric of the index");
}

TEST_F(WeightsTableErrors, AnotherTokenizerIsRefused) {
  const TinyModel other;
  const std::string path = other.path() + "/tokenizer.model";
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::string pieces = text.str();
  const std::string the = "\n\x06\xE2\x96\x81the";
  const std::string with_and =
      "\n\x06\xE2\x96\x81"
      "and";
  const size_t first = pieces.find(the);
  const size_t second = pieces.find(with_and);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(second, std::string::npos);
  pieces.replace(first, the.size(), with_and);
  pieces.replace(second, the.size(), the);
  std::ofstream(path, std::ios::binary) << pieces;
  Refused(other.path(), "its tokenizer reads the texts otherwise");
}

// bad input: eta-eval | table weights: a form that is neither a format nor a model, or that a
// tensor
//   does not fit | exit code 2, `against` and the form named | BadTableTest.FormsOfAnotherModel
TEST_F(WeightsTableErrors, AFormThatIsNoneIsNamed) {
  const absl::Status status = MeasureWeights(*WeightsBench(model_, {"int5"})).status();
  EXPECT_THAT(std::string(status.message()), StartsWith("against: int5: "));
  const TinyModel broken({.tied = false, .nan_embedding = 5});
  const absl::Status nan = MeasureWeights(*WeightsBench(model_, {broken.path()})).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(nan)) << nan;
  EXPECT_THAT(std::string(nan.message()),
              AllOf(StartsWith("against: " + broken.path()), HasSubstr("embed_tokens")));
}

// bad input: eta-eval | table weights: a model whose own weights have fewer than 16 bits | exit
//   code 2, `weights` named; a report goes on without the table
TEST_F(WeightsTableErrors, AModelOfFewerThanSixteenBitsIsNoMeasure) {
  const absl::Status status =
      MeasureWeights(*WeightsBench(model_, {"int4"}, WeightFormat::kInt8)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("weights: "));
}

}  // namespace
}  // namespace eta
