// Diagnostic tables of tiny models: what is in them, against what other code of the project counts.
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using testing::TinyModel;
using testing::TinyModelOptions;

class DiagnosticsTest : public EvaluationTest {
 protected:
  static constexpr int32_t kContext = 160;
  static constexpr int32_t kWindows = 4;

  // Of text that fills the windows.
  std::unique_ptr<TableBench> Bench(const TinyModelOptions& options, int32_t context = kContext,
                                    int32_t windows = kWindows,
                                    const std::string& text = ETA_SOURCE_DIR
                                    "/deploy/samples/needle.txt") {
    model_ = std::make_unique<TinyModel>(options);
    RuntimeOptions runtime;
    runtime.model_dir = model_->path();
    runtime.backend.num_threads = 2;
    runtime.kv_dtype = DType::kFloat32;
    auto bench = TableBench::Load(
        runtime, {.quick = true, .texts = {text}, .context = context, .samples = windows});
    EXPECT_TRUE(bench.ok()) << bench.status();
    return *std::move(bench);
  }
  static const TableRow& Row(const Table& table, const std::vector<std::string>& labels) {
    for (const TableRow& row : table.rows) {
      if (row.labels == labels) return row;
    }
    ADD_FAILURE() << "no row " << labels.front();
    return table.rows.front();
  }
  // Whole, and every number finite with an interval around it.
  static void ExpectWellFormed(const Table& table) {
    EXPECT_FALSE(table.rows.empty());
    EXPECT_FALSE(table.method.empty());
    EXPECT_FALSE(table.counted.empty());
    for (const TableRow& row : table.rows) {
      EXPECT_EQ(row.labels.size(), table.keys.size()) << table.name;
      EXPECT_GT(row.n, 0) << table.name << " " << row.labels.front();
      EXPECT_LE(row.cells.size(), table.columns.size()) << table.name;
      for (const TableCell& cell : row.cells) {
        if (!cell.value) continue;
        EXPECT_TRUE(std::isfinite(*cell.value)) << table.name << " " << row.labels.front();
        if (!cell.interval) continue;
        EXPECT_LE(cell.interval->first, *cell.value);
        EXPECT_GE(cell.interval->second, *cell.value);
      }
    }
  }

 private:
  std::unique_ptr<TinyModel> model_;
};

TEST_F(DiagnosticsTest, TakesTheRowsThatItSays) {
  const auto bench = Bench({});
  const auto sample = TakeSample(*bench).value();
  EXPECT_EQ(sample.windows.size(), 4u);
  EXPECT_EQ(sample.rows.first, 40);
  EXPECT_EQ(sample.rows.stride, 32);
  EXPECT_EQ(sample.RowsOfWindow(), 4);  // 40, 72, 104, 136
  size_t seen = 0;
  ASSERT_EQ(ObserveWindows(*bench, sample, 0.5f,
                           [&](const RecordedWindow& window) {
                             EXPECT_EQ(window.layers.size(), 2u);
                             EXPECT_EQ(window.layers[1].rows.size(), 4u);
                             EXPECT_EQ(window.layers[1].rows[3].position, 136);
                             ++seen;
                             return absl::OkStatus();
                           }),
            absl::OkStatus());
  EXPECT_EQ(seen, 4u);
  EXPECT_EQ(ObserveWindows(*bench, sample, 0.0f,
                           [](const RecordedWindow&) { return absl::AbortedError("enough"); }),
            absl::AbortedError("enough"));
}

TEST_F(DiagnosticsTest, MaskingOfAGatedModel) {
  const auto bench = Bench({});
  int64_t last = -1;
  bench->progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, kWindows);
    last = done;
  };
  const auto table = MeasureMasking(*bench).value();
  EXPECT_EQ(last, kWindows);
  ExpectWellFormed(table);
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].n, 4 * 4 * 2 * 4);  // windows, rows, layers, heads
  EXPECT_DOUBLE_EQ(*table.rows[0].cells[0].paper, 0.424);
  const auto& entropy = Row(table, {"entropy over log n"}).cells;
  EXPECT_GT(*entropy[1].value, *entropy[0].value) << "the gate flattens";
  const auto& evenness = Row(table, {"largest over mean weight"}).cells;
  EXPECT_LT(*evenness[1].value, *evenness[0].value);
  EXPECT_TRUE(evenness[1].interval.has_value());
  EXPECT_FALSE(table.figures.empty());
}

TEST_F(DiagnosticsTest, TailByTheNumberOfPrunedKeys) {
  const auto bench = Bench({});
  const auto table = MeasureTail(*bench).value();
  ExpectWellFormed(table);
  EXPECT_EQ(table.rows.front().labels.front(), "16");
  EXPECT_EQ(table.rows.back().labels.front(), "128") << "no row prunes more";
  for (const TableRow& row : table.rows) {
    EXPECT_LT(*row.cells[1].value, *row.cells[0].value) << "drawn without replacement";
  }
  EXPECT_EQ(table.findings.size(), 2u);
}

TEST_F(DiagnosticsTest, SinksByLayer) {
  const auto bench = Bench({});
  const auto table = MeasureSinks(*bench).value();
  ExpectWellFormed(table);
  ASSERT_EQ(table.rows.size(), 3u);
  const double uniform = (4.0 / 41 + 4.0 / 73 + 4.0 / 105 + 4.0 / 137) / 4;
  for (const TableRow& row : table.rows) EXPECT_NEAR(*row.cells[2].value, uniform, 1e-12);
  const auto mean = [&](size_t column) {
    return (*table.rows[0].cells[column].value + *table.rows[1].cells[column].value) / 2;
  };
  EXPECT_NEAR(*Row(table, {"all"}).cells[0].value, mean(0), 1e-12);
  EXPECT_NEAR(*Row(table, {"all"}).cells[1].value, mean(1), 1e-12);
  EXPECT_DOUBLE_EQ(*Row(table, {"all"}).cells[1].paper, 0.02);
}

TEST_F(DiagnosticsTest, DensitiesAreThoseThatPerplexityCounts) {
  for (const bool predictor : {true, false}) {
    const auto bench = Bench({.has_predictor = predictor, .threshold_bias = 0.3f});
    const auto table = MeasureLayers(*bench).value();
    ExpectWellFormed(table);
    ASSERT_EQ(table.rows.size(), 3u);
    const auto sample = TakeSample(*bench);
    const auto runner = bench->MakeRunner(bench->Geometry(), kContext).value();
    const std::vector<EvaluatedAttention> attentions = {
        *bench->Attention("dynamic", bench->Geometry())};
    const auto scores =
        EvaluatePerplexity(OnlyRunner(*runner), sample->windows, attentions,
                           {.prefill = sample->rows.first, .rivals = &bench->rivals()});
    ASSERT_TRUE(scores.ok()) << scores.status();
    const TableRow& all = Row(table, {"all"});
    EXPECT_NEAR(*all.cells[1].value, scores->front().head_density, 1e-9);
    EXPECT_NEAR(*all.cells[2].value, scores->front().union_density, 1e-9);
    EXPECT_EQ(all.n, static_cast<int64_t>(scores->front().losses.size()));
    EXPECT_LE(*table.rows[0].cells[3].value, *table.rows[0].cells[1].value);
    EXPECT_GE(*table.rows[0].cells[4].value, *table.rows[0].cells[1].value);
    ASSERT_EQ(table.figures.size(), 2u);
    const auto& map = std::get<HeatMap>(table.figures[0]);
    ASSERT_EQ(map.values.size(), 2u);
    EXPECT_EQ(map.values[0].size(), 4u);
  }
}

TEST_F(DiagnosticsTest, AlignmentOfSparseAttention) {
  const auto bench = Bench({.threshold_bias = 0.3f});
  const auto table = MeasureAlignment(*bench).value();
  ExpectWellFormed(table);
  ASSERT_EQ(table.rows.size(), 2u * 4u);  // two attentions: two layers, their mean, logits
  for (const TableRow& row : table.rows) {
    EXPECT_GT(*row.cells[0].value, 0.5);
    EXPECT_LE(*row.cells[0].value, 1.0);
    EXPECT_EQ(row.n, 4 * 4);
  }
  const TableRow& logits = Row(table, {"dynamic", "logits"});
  EXPECT_GT(*logits.cells[2].value, 0.0);
  EXPECT_LE(*logits.cells[3].value, 1.0);
  EXPECT_FALSE(logits.cells[1].value.has_value());
}

TEST_F(DiagnosticsTest, AThresholdThatAdmitsEverythingAligns) {
  const auto bench = Bench({.threshold_bias = -50.0f});
  const auto table = MeasureAlignment(*bench).value();
  const TableRow& logits = Row(table, {"dynamic+floor=none+z=2", "logits"});
  EXPECT_NEAR(*logits.cells[0].value, 1.0, 1e-6);
  EXPECT_NEAR(*logits.cells[2].value, 0.0, 1e-6);
}

TEST_F(DiagnosticsTest, ContextualityOfPredictedThresholds) {
  const auto bench = Bench({}, 120, 6);
  const auto table = MeasureContextuality(*bench).value();
  ExpectWellFormed(table);
  ASSERT_EQ(table.rows.size(), 8u + 1u + 3u);
  double largest = 0.0;
  for (size_t i = 0; i < 8; ++i) {
    const double share = *table.rows[i].cells[0].value;
    EXPECT_GE(share, 0.0);
    largest = std::max(largest, share);
  }
  EXPECT_GE(*Row(table, {"R^2, all eight"}).cells[0].value, largest);
  EXPECT_DOUBLE_EQ(*Row(table, {"R^2, |q|"}).cells[0].paper, 0.187);
  for (size_t i = 9; i < 12; ++i) {
    EXPECT_GE(*table.rows[i].cells[0].value, 0.0);
    EXPECT_LE(*table.rows[i].cells[0].value, 1.0);
  }
}

TEST_F(DiagnosticsTest, IndicesOfEveryKind) {
  for (const bool predictor : {true, false}) {
    const auto bench = Bench({.has_predictor = predictor, .index_metric = !predictor});
    const auto table = MeasureIndex(*bench).value();
    ExpectWellFormed(table);
    EXPECT_EQ(table.rows.size(), 4u * 4u + 5u - 1u) << "blocks of 4 to 64";
    for (const TableRow& row : table.rows) {
      if (row.labels[0] != "box") continue;
      EXPECT_EQ(*row.cells[0].value, 0.0) << "a box misses nothing";
      EXPECT_EQ(*row.cells[2].value, 1.0);
    }
    EXPECT_DOUBLE_EQ(*Row(table, {"moment, flat", "2.0", "64"}).cells[0].paper, 0.275);
  }
}

// bad input: eta-eval | table: `masking` without a gate, `contextuality` without predicted
//   thresholds | exit code 2, `model` named with what it lacks; a report goes on |
//   BadTableTest.ModelsThatATableSaysNothingOf
TEST_F(DiagnosticsTest, APlainModelHasSomeOfThem) {
  const auto bench = Bench({.has_predictor = false});
  const auto masking = MeasureMasking(*bench);
  EXPECT_EQ(masking.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(masking.status().message()), HasSubstr("model: has no gate"));
  const auto contextuality = MeasureContextuality(*bench);
  EXPECT_EQ(contextuality.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(contextuality.status().message()), HasSubstr("model: predicts no"));
  for (const auto measure : {MeasureTail, MeasureSinks, MeasureAlignment}) {
    const auto table = measure(*bench).value();
    ExpectWellFormed(table);
  }
}

// bad input: eta-eval | table: so few tokens or windows that a number is undefined | exit code 0;
//   it is left out, in JSON null | BadTableTest.SamplesThatSayNothing
TEST_F(DiagnosticsTest, TheSmallestSampleSaysLittleAndFailsNowhere) {
  for (const auto measure : {MeasureMasking, MeasureTail, MeasureSinks, MeasureLayers,
                             MeasureAlignment, MeasureContextuality, MeasureIndex}) {
    const auto table = measure(*Bench({}, 1, 1));
    EXPECT_TRUE(table.ok()) << table.status();
  }
}

TEST_F(DiagnosticsTest, ATextThatFillsNoWindowIsRefused) {
  const auto bench = Bench({}, 100, 1, Write("short.txt", "A few words."));
  const auto table = MeasureSinks(*bench);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("context"));
}

}  // namespace
}  // namespace eta
