// A tiny model with a gate, recorded and measured, against a forward pass and measures of an
// independent program (tests/golden/diagnostics/make_tiny.py).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/perplexity/alignment.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/tables/measures/active_density.h"
#include "calibration/evaluation/tables/measures/attention_recorder.h"
#include "calibration/evaluation/tables/measures/block_bounds.h"
#include "calibration/evaluation/tables/measures/index_quality.h"
#include "calibration/evaluation/tables/measures/residual_recorder.h"
#include "calibration/evaluation/tables/measures/sink_mass.h"
#include "calibration/evaluation/tables/measures/tail_norm.h"
#include "calibration/evaluation/tables/measures/tail_shape.h"
#include "calibration/evaluation/tables/measures/threshold_regression.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/golden/golden_folder.h"

namespace eta {
namespace {

class TinyGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  TinyGoldenTest()
      : folder_(testing::GoldenFolder("diagnostics", "ETA_GOLDEN_DIAGNOSTICS_DIR") + "/tiny"),
        expected_(*OpenCase(folder_ + "/expected.safetensors")),
        checkpoint_(*Checkpoint::Open(folder_)),
        config_(*ParseModelConfig(checkpoint_.config_json())),
        host_(*MakeBackend({.name = GetParam(), .num_threads = 2})),
        tokens_(*ReadInt32s(expected_, "tokens", expected_.tensors().at("tokens").shape)),
        sample_{.first = std::stoi(expected_.metadata().at("first")),
                .stride = std::stoi(expected_.metadata().at("stride"))} {}

  std::unique_ptr<SequenceRunner> Runner(Backend& backend) {
    auto runner = SequenceRunner::Create(checkpoint_, backend,
                                         {.geometry = MakeKvGeometry(config_, DType::kFloat32),
                                          .max_context = static_cast<int32_t>(tokens_.size())});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }
  float z() const { return std::stof(expected_.metadata().at("z")); }

  // The sums that the program got.
  void Expect(const std::vector<double>& got, const std::string& name,
              double tolerance = 2e-4) const {
    const auto bytes = expected_.Read(name).value();
    std::vector<double> wanted(bytes.size() / sizeof(double));
    std::memcpy(wanted.data(), bytes.data(), bytes.size());
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], wanted[i], tolerance * (1.0 + std::abs(wanted[i]))) << name << " " << i;
    }
  }

  std::string folder_;
  SafetensorsFile expected_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  std::shared_ptr<Backend> host_;
  std::vector<int32_t> tokens_;
  RowSample sample_;
};

TEST_P(TinyGoldenTest, MeasuresOfFullAttention) {
  AttentionRecorder recorder(host_, config_, sample_);
  const auto runner = Runner(recorder);
  ASSERT_TRUE(
      runner->Begin({.attention = {.admit_all = true}, .rope_theta = config_.rope_theta}).ok());
  ASSERT_TRUE(runner->RunPrompt(tokens_).ok());
  const RecordedWindow& window = recorder.window();
  ASSERT_EQ(window.layers.size(), 2u);
  for (size_t l = 0; l < window.layers.size(); ++l) {
    const RecordedLayer& layer = window.layers[l];
    const std::string suffix = "." + std::to_string(l);
    Expect(TailShapeSums(window, layer), "tail_shape" + suffix);
    Expect(TailNormSums(window, layer), "tail_norm" + suffix);
    Expect(SinkMassSums(window, layer), "sinks" + suffix);
    std::vector<double> densities;
    std::vector<double> statistics;
    std::vector<double> explained;
    const auto of_heads = ActiveDensities(window, layer);
    for (int32_t h = 0; h < window.num_query_heads; ++h) {
      const auto& of_head = of_heads[static_cast<size_t>(h)];
      densities.insert(densities.end(), of_head.begin(), of_head.end());
      for (const RecordedRow& row : layer.rows) {
        const auto of_row = RowStatistics(window, layer, row, h);
        statistics.insert(statistics.end(), of_row.begin(), of_row.end());
      }
      const std::vector<double> sums = RegressionSums(window, layer, h);
      for (size_t i = 0; i < kRowStatistics; ++i) {
        explained.push_back(ExplainedShare(sums, i).value_or(-1.0));
      }
      explained.push_back(ExplainedShare(sums, std::nullopt).value_or(-1.0));
    }
    Expect(densities, "density" + suffix, 1e-12);
    Expect(statistics, "statistics" + suffix);
    Expect(explained, "explained" + suffix);
    const auto bounds =
        BlockBounds::Of(window, layer, {.block_size = config_.block_size, .z = z()}).value();
    Expect(IndexQualitySums(window, layer, std::span(&bounds, 1)).front(), "index" + suffix);
  }
}

TEST_P(TinyGoldenTest, AlignmentAndDensitiesOfSparseAttention) {
  const auto layers = static_cast<size_t>(config_.num_layers);
  const auto heads = static_cast<size_t>(config_.num_query_heads);
  const auto kv_heads = static_cast<size_t>(config_.num_kv_heads);
  const auto first = static_cast<size_t>(sample_.first);
  ResidualRecorder recorder(host_, config_, sample_);
  const auto runner = Runner(recorder);
  std::vector<double> attended(layers * heads);
  std::vector<double> read(layers * kv_heads);
  const auto run = [&](const AttentionOptions& options) {
    recorder.Begin();
    EXPECT_TRUE(runner->Begin({.attention = options, .rope_theta = config_.rope_theta}).ok());
    EXPECT_TRUE(runner->RunPrompt(std::span(tokens_).first(first)).ok());
    const auto rows = std::span(tokens_).subspan(first);
    std::vector<float> logprobs(rows.size());
    std::vector<int32_t> of_heads(layers * rows.size() * heads);
    std::vector<int32_t> of_kv_heads(layers * rows.size() * kv_heads);
    EXPECT_TRUE(runner
                    ->Run({.tokens = rows,
                           .targets = rows,
                           .logprobs = logprobs,
                           .outputs = {.tokens_attended = of_heads.data(),
                                       .tokens_read = of_kv_heads.data()}})
                    .ok());
    const auto add = [&](const std::vector<int32_t>& counts, size_t width,
                         std::vector<double>& sums) {
      std::ranges::fill(sums, 0.0);
      for (size_t i = 0; i < counts.size(); ++i) {
        const size_t row = i / width % rows.size();
        const size_t layer = i / width / rows.size();
        sums[layer * width + i % width] += counts[i] / static_cast<double>(first + row + 1);
      }
    };
    add(of_heads, heads, attended);
    add(of_kv_heads, kv_heads, read);
    return recorder.recorded();
  };
  const RecordedResiduals full = run({.admit_all = true});
  const RecordedResiduals sparse = run({.z = z(), .pinned_blocks = 2, .uniform_floor = true});
  Expect(attended, "attended", 1e-9);
  Expect(read, "read", 1e-9);

  std::vector<double> alignment;
  for (size_t l = 0; l < layers; ++l) {
    double cosine = 0.0;
    double shift = 0.0;
    for (size_t r = 0; r < full.positions.size(); ++r) {
      const VectorAlignment of_row = AlignVectors(full.layers[l][r], sparse.layers[l][r]);
      cosine += of_row.cosine;
      shift += of_row.shift;
    }
    const auto rows = static_cast<double>(full.positions.size());
    alignment.insert(alignment.end(), {cosine, shift, 0.0, 0.0, rows});
  }
  std::vector<double> logits = {0.0, 0.0, 0.0, 0.0, static_cast<double>(full.positions.size())};
  for (size_t r = 0; r < full.positions.size(); ++r) {
    const LogitAlignment of_row = AlignLogits(full.logits[r], sparse.logits[r]);
    logits[0] += of_row.cosine;
    logits[2] += of_row.kl;
    logits[3] += of_row.same_best ? 1.0 : 0.0;
  }
  alignment.insert(alignment.end(), logits.begin(), logits.end());
  Expect(alignment, "alignment");
}

INSTANTIATE_TEST_SUITE_P(Hosts, TinyGoldenTest, ::testing::Values("reference", "cpu"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace eta
