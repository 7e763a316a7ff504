// What recorders record of a running model: enough to compute its attention anew, and to count what
// its ops count.
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "calibration/evaluation/perplexity/alignment.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/tables/measures/active_density.h"
#include "calibration/evaluation/tables/measures/attention_recorder.h"
#include "calibration/evaluation/tables/measures/block_bounds.h"
#include "calibration/evaluation/tables/measures/index_quality.h"
#include "calibration/evaluation/tables/measures/residual_recorder.h"
#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta::testing {
namespace {

constexpr int32_t kContext = 150;
constexpr float kOffset = 0.25f;

// Keeps what PrefillAttention and DecodeAttention put out, [L][rows][HQ * d].
class Outputs : public ForwardingBackend {
 public:
  explicit Outputs(std::shared_ptr<Backend> backend) : ForwardingBackend(std::move(backend)) {}

  void Plan(const BatchView& batch) override {
    rows_ = batch.num_rows();
    layer_ = 0;
    ForwardingBackend::Plan(batch);
  }
  void PrefillAttention(const AttentionParams& params) override {
    ForwardingBackend::PrefillAttention(params);
    layers.resize(std::max(layers.size(), layer_ + 1));
    for (int32_t row = 0; row < rows_; ++row) {
      const float* out = params.out.row(row);
      layers[layer_].emplace_back(out, out + params.out.cols);
    }
    ++layer_;
  }

  std::vector<std::vector<std::vector<float>>> layers;

 private:
  int32_t rows_ = 0;
  size_t layer_ = 0;
};

class RecordersTest : public ::testing::TestWithParam<const char*> {
 protected:
  RecordersTest()
      : model_({.threshold_bias = 0.3f}),
        checkpoint_(*Checkpoint::Open(model_.path())),
        config_(*ParseModelConfig(checkpoint_.config_json())),
        host_(*MakeBackend({.name = GetParam(), .num_threads = 2, .amx = false})),
        tokens_(kContext) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>(i * i * 37 % 8000);
    }
  }

  std::unique_ptr<SequenceRunner> Runner(Backend& backend) {
    auto runner = SequenceRunner::Create(checkpoint_, backend,
                                         {.geometry = MakeKvGeometry(config_, DType::kFloat16),
                                          .max_context = kContext,
                                          .max_rows = 70});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }

  TinyModel model_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  std::shared_ptr<Backend> host_;
  std::vector<int32_t> tokens_;
};

TEST_P(RecordersTest, AttentionIsWhatTheRecordingSays) {
  const auto outputs = std::make_shared<Outputs>(host_);
  AttentionRecorder recorder(outputs, config_, {.first = 3, .stride = 7});
  const auto runner = Runner(recorder);
  const std::vector<int32_t> tempered = {tokens_[2], tokens_[50]};
  std::vector<int32_t> ascending = tempered;
  std::ranges::sort(ascending);
  for (int pass = 0; pass < 2; ++pass) {  // Begin forgets the pass before
    recorder.Begin();
    outputs->layers.clear();
    ASSERT_TRUE(runner
                    ->Begin({.attention = {.offset = kOffset, .admit_all = true},
                             .tempered_ids = ascending,
                             .rope_theta = 1e4f})
                    .ok());
    ASSERT_TRUE(runner->RunPrompt(tokens_).ok());
  }
  const RecordedWindow& window = recorder.window();
  ASSERT_EQ(window.layers.size(), 2u);
  const auto d = static_cast<size_t>(window.head_dim);
  for (size_t l = 0; l < window.layers.size(); ++l) {
    const RecordedLayer& layer = window.layers[l];
    ASSERT_EQ(layer.rows.size(), 21u);
    for (const RecordedRow& row : layer.rows) {
      for (int32_t h = 0; h < window.num_query_heads; ++h) {
        const auto weights = Softmax(GatedLogits(window, RowScores(window, layer, row, h),
                                                 row.thresholds[static_cast<size_t>(h)]));
        std::vector<double> out(d);
        for (int32_t s = 0; s < row.num_keys(); ++s) {
          const auto value = window.value(layer, h / window.group_size(), s);
          for (size_t i = 0; i < d; ++i) out[i] += weights[static_cast<size_t>(s)] * value[i];
        }
        for (size_t i = 0; i < d; ++i) {
          EXPECT_NEAR(
              out[i],
              outputs->layers[l][static_cast<size_t>(row.position)][static_cast<size_t>(h) * d + i],
              2e-5)
              << "layer " << l << " position " << row.position << " head " << h;
        }
      }
    }
  }
}

TEST_P(RecordersTest, CountsAreThoseOfTheModelsOps) {
  AttentionRecorder recorder(host_, config_, {});
  const auto runner = Runner(recorder);
  const AttentionOptions options = {
      .offset = kOffset, .z = 1.5f, .pinned_blocks = 0, .uniform_floor = false};
  ASSERT_TRUE(runner->Begin({.attention = options, .rope_theta = 1e4f}).ok());
  const auto heads = static_cast<size_t>(config_.num_query_heads);
  std::vector<int64_t> above(2 * heads);
  std::vector<int64_t> above_admitted(2 * heads);
  std::vector<std::vector<int32_t>> attended;  // [rows][L, HQ]
  std::vector<float> thresholds(2 * heads);
  for (size_t t = 0; t < tokens_.size(); ++t) {
    attended.emplace_back(2 * heads);
    ASSERT_TRUE(runner
                    ->Run({.tokens = std::span(tokens_).subspan(t, 1),
                           .outputs = {.tokens_attended = attended.back().data(),
                                       .thresholds = thresholds.data(),
                                       .above = above.data(),
                                       .above_admitted = above_admitted.data()}})
                    .ok());
    for (size_t l = 0; l < 2; ++l) {
      for (size_t h = 0; h < heads; ++h) {
        EXPECT_EQ(recorder.window().layers[l].rows.back().thresholds[h],
                  thresholds[l * heads + h] - kOffset);
      }
    }
  }

  const RecordedWindow& window = recorder.window();
  const int32_t b = config_.block_size;
  for (size_t l = 0; l < 2; ++l) {
    const RecordedLayer& layer = window.layers[l];
    const auto bounds = BlockBounds::Of(window, layer, {.block_size = b, .z = options.z}).value();
    const auto densities = ActiveDensities(window, layer);
    double rescued = 0.0;  // rows that read the block of the largest bound, though below tau
    for (size_t h = 0; h < heads; ++h) {
      double active = 0.0;
      for (size_t r = 0; r < layer.rows.size(); ++r) {
        const RecordedRow& row = layer.rows[r];
        active += densities[h][r] * row.num_keys();
        const auto of_row = bounds.Row(row, static_cast<int32_t>(h));
        auto admitted =
            std::ranges::count_if(of_row, [&](float bound) { return bound >= row.thresholds[h]; });
        if (admitted == 0 && !of_row.empty()) {
          rescued += static_cast<double>(b) / row.num_keys();
          admitted = 1;
        }
        EXPECT_EQ(attended[r][l * heads + h], admitted * b + row.num_keys() % b)
            << "layer " << l << " head " << h << " row " << r;
      }
      EXPECT_NEAR(active, static_cast<double>(above[l * heads + h]), 1e-6);
    }
    const std::vector<double> sums = IndexQualitySums(window, layer, std::array{bounds}).front();
    double shares = 0.0;
    for (size_t r = 0; r < layer.rows.size(); ++r) {
      for (size_t h = 0; h < heads; ++h) {
        shares += static_cast<double>(attended[r][l * heads + h]) / layer.rows[r].num_keys();
      }
    }
    EXPECT_NEAR(sums[kAttended] + rescued, shares, 1e-6);
    const auto layer_heads = static_cast<std::ptrdiff_t>(l * heads);
    const auto all =
        std::accumulate(above.begin() + layer_heads,
                        above.begin() + layer_heads + config_.num_query_heads, int64_t{0});
    EXPECT_EQ(sums[kAbove], static_cast<double>(all));
    EXPECT_LE(sums[kAboveAdmitted], sums[kAbove]);
    EXPECT_GT(sums[kFalsePositive] + sums[kFalseNegative], 0.0);
  }
}

TEST_P(RecordersTest, ResidualsAndLogits) {
  ResidualRecorder recorder(host_, config_, {.first = 80, .stride = 23});
  const auto attention =
      std::make_shared<AttentionRecorder>(host_, config_, RowSample{.first = 80, .stride = 23});
  const auto run = [&](Backend& backend, RowKind kind, bool admit_all, std::vector<float>& logits) {
    const auto runner = Runner(backend);
    EXPECT_TRUE(runner
                    ->Begin({.attention = {.z = 0.0f, .pinned_blocks = 0, .admit_all = admit_all},
                             .rope_theta = 1e4f})
                    .ok());
    logits.resize(static_cast<size_t>(config_.vocab_size));
    std::vector<float> logprobs(70);
    for (size_t begin = 0; begin < tokens_.size(); begin += 70) {
      const size_t count = std::min<size_t>(70, tokens_.size() - begin);
      const auto rows = std::span(tokens_).subspan(begin, count);
      const auto last = static_cast<int32_t>(count) - 1;
      EXPECT_TRUE(runner
                      ->Run({.tokens = rows,
                             .kind = kind,
                             .targets = rows,
                             .logprobs = std::span(logprobs).first(count),
                             .logit_rows = std::span(&last, 1),
                             .logits = logits})
                      .ok());
    }
  };
  std::vector<float> logits;
  run(recorder, RowKind::kPrefill, true, logits);
  const RecordedResiduals full = recorder.recorded();
  EXPECT_THAT(full.positions, ::testing::ElementsAre(80, 103, 126, 149));
  ASSERT_EQ(full.layers.size(), 2u);
  EXPECT_EQ(full.logits.back(), logits) << "of the last row, which is recorded";
  for (const auto& row : full.logits) EXPECT_EQ(row.size(), logits.size());

  // What enters the second layer left the first.
  std::vector<float> ignored;
  run(*attention, RowKind::kPrefill, true, ignored);
  for (size_t r = 0; r < full.positions.size(); ++r) {
    double squares = 0.0;
    for (const float x : full.layers[0][r]) squares += static_cast<double>(x) * x;
    EXPECT_NEAR(attention->window().layers[1].rows[r].hidden_norm, std::sqrt(squares), 1e-4);
  }

  recorder.Begin();
  run(recorder, RowKind::kDecode, true, ignored);
  const RecordedResiduals same = recorder.recorded();
  recorder.Begin();
  run(recorder, RowKind::kDecode, false, ignored);
  const RecordedResiduals sparse = recorder.recorded();
  for (size_t r = 0; r < full.positions.size(); ++r) {
    for (size_t l = 0; l < 2; ++l) {
      EXPECT_LT(AlignVectors(full.layers[l][r], same.layers[l][r]).shift, 1e-3);
      EXPECT_GT(AlignVectors(full.layers[l][r], sparse.layers[l][r]).shift, 1e-3);
    }
    EXPECT_LT(AlignLogits(full.logits[r], same.logits[r]).kl, 1e-5);
    EXPECT_GT(AlignLogits(full.logits[r], sparse.logits[r]).kl, 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, RecordersTest, ::testing::Values("reference", "cpu"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace eta::testing
