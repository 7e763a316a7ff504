// Rivals, recorders and diagnostics around a backend that keeps its memory to itself and defers:
// what they measure is what they measure in host memory. The same with a GPU.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "calibration/evaluation/attention/fit_constants.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/rivals/h2o.h"
#include "calibration/evaluation/rivals/oracle.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/rivals/top_k.h"
#include "calibration/evaluation/rivals/window.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/tables/comparisons/block_misses.h"
#include "calibration/evaluation/tables/measures/attention_recorder.h"
#include "calibration/evaluation/tables/measures/residual_recorder.h"
#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/kernels/deferring_backend.h"
#include "tests/testing/kernels/device_memory_backend.h"

namespace eta::testing {
namespace {

constexpr int32_t kContext = 260;
constexpr int32_t kPrefill = 110;

// How far a backend's sums may lie from those of its judge, a backend in host memory.
struct DeviceUnderTest {
  const char* name;
  const char* judge;
  int32_t head_dim;
  DType kv_dtype;
  double loss;     // nats per token
  double choice;   // the same where blocks are ranked: a near tie gives another block
  double density;  // near ties between blocks may fall the other way
  double vector;   // |a - b| / |b| of what is recorded
};

// "device": the reference in memory that the host cannot touch.
absl::StatusOr<std::shared_ptr<Backend>> Make(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Backend>> made =
      MakeBackend({.name = name == "device" ? "reference" : name,
                   .num_threads = 2,
                   .amx = false,
                   .compute = DType::kFloat32});
  if (!made.ok()) return made.status();
  std::shared_ptr<Backend> backend = *std::move(made);
  if (name != "device") return backend;
  return std::make_shared<DeferringBackend>(
      std::make_shared<DeviceMemoryBackend>(std::move(backend)));
}

class RivalsOnDevices : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  // One model on one backend, through a RivalBackend.
  struct Side {
    Side(std::shared_ptr<Backend> backend, const Checkpoint& checkpoint, DType kv_dtype)
        : checkpoint_(checkpoint),
          config(*ParseModelConfig(checkpoint.config_json())),
          geometry(MakeKvGeometry(config, kv_dtype)),
          rivals(std::make_shared<RivalBackend>(std::move(backend), 2)) {}

    // `around`: null for the rivals themselves.
    std::unique_ptr<SequenceRunner> Runner(Backend* around = nullptr) const {
      auto runner = SequenceRunner::Create(checkpoint_, around != nullptr ? *around : *rivals,
                                           {.geometry = geometry, .max_context = kContext});
      EXPECT_TRUE(runner.ok()) << runner.status();
      return *std::move(runner);
    }

    const Checkpoint& checkpoint_;
    ModelConfig config;
    KvGeometry geometry;
    std::shared_ptr<RivalBackend> rivals;
  };

  void SetUp() override {
    const auto device = Make(GetParam().name);
    if (absl::IsUnavailable(device.status()) || absl::IsNotFound(device.status())) {
      GTEST_SKIP() << (absl::IsNotFound(device.status()) ? "built without CUDA"
                                                         : device.status().message());
    }
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *device;
    for (size_t i = 0; i < window_.size(); ++i) {
      window_[i] = static_cast<int32_t>(i * i * 37 % 8000);
    }
  }

  void Load(bool gated) {
    model_ = std::make_unique<TinyModel>(TinyModelOptions{.model_dim = 4 * GetParam().head_dim,
                                                          .head_dim = GetParam().head_dim,
                                                          .has_predictor = gated,
                                                          .index_metric = !gated,
                                                          .coarse_weights = true});
    checkpoint_ = std::make_unique<Checkpoint>(*Checkpoint::Open(model_->path()));
    host_ = std::make_unique<Side>(*Make(GetParam().judge), *checkpoint_, GetParam().kv_dtype);
    gpu_ = std::make_unique<Side>(device_, *checkpoint_, GetParam().kv_dtype);
  }

  static EvaluatedAttention Way(std::shared_ptr<const Rival> rival, AttentionOptions options = {}) {
    options.uniform_floor = false;
    return {{.options = options}, "rival", std::move(rival)};
  }

  static double Distance(std::span<const float> a, std::span<const float> b) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < b.size(); ++i) {
      difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    return a.size() == b.size() ? std::sqrt(difference / std::max(norm, 1e-30)) : INFINITY;
  }

  std::shared_ptr<Backend> device_;
  std::unique_ptr<TinyModel> model_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Side> host_;
  std::unique_ptr<Side> gpu_;
  std::vector<int32_t> window_ = std::vector<int32_t>(kContext + 1);
};

TEST_P(RivalsOnDevices, ReadAndLoseAsMuchAsInHostMemory) {
  for (const bool gated : {true, false}) {
    Load(gated);
    const AttentionOptions sinks = {.pinned_blocks = 1, .sink_blocks = 1, .shared_reads = true};
    std::vector<EvaluatedAttention> ways = {
        {{.options = {.uniform_floor = false, .admit_all = true}}, "full"},
        Way(nullptr),
        Way(MakeTopK(0.3)),
        Way(MakeTopK(0.3), sinks),
        Way(MakeQuest(0.3)),
        Way(MakeWindow({0.4}), {.pinned_blocks = 0}),
        Way(MakeBigBird({0.2}, 7), {.pinned_blocks = 0}),
        Way(MakeH2o({.window = {0.2}, .share = 0.3, .gate = {gated, 5.0f}}), sinks),
        Way(MakeH2o({.window = {0.2}, .share = 0.3, .gate = {gated, 5.0f}, .by_key = false}),
            sinks)};
    if (!gated) {
      ways.push_back(Way(MakeOracle(-3.9f)));
      ways.push_back(Way(nullptr, {.pinned_blocks = 1}));
      ways.back().constants = 0.6;
      ways[1] = ways[0];  // without a threshold nothing is its own
    }
    std::vector<AttentionScore> scores[2];
    const std::vector<std::vector<int32_t>> windows = {window_};
    for (Side* side : {host_.get(), gpu_.get()}) {
      const auto runner = side->Runner();
      std::vector<EvaluatedAttention> fitted = ways;
      ASSERT_EQ(FitConstants(OnlyRunner(*runner), *side->rivals, window_, kPrefill, {}, fitted),
                absl::OkStatus());
      const auto measured = EvaluatePerplexity(OnlyRunner(*runner), windows, fitted,
                                               {.prefill = kPrefill, .rivals = side->rivals.get()})
                                .value();
      scores[side == gpu_.get()] = measured;
    }
    for (size_t i = 0; i < ways.size(); ++i) {
      const AttentionScore& want = scores[0][i];
      const AttentionScore& got = scores[1][i];
      // Constants are bounds of some block, so that it is always a near tie.
      const double slack = ways[i].constants ? 4.0 : 1.0;
      const double density = slack * GetParam().density;
      const double loss =
          slack * (ways[i].rival || ways[i].constants ? GetParam().choice : GetParam().loss);
      EXPECT_NEAR(got.loss.mean, want.loss.mean, loss) << gated << " way " << i;
      EXPECT_NEAR(got.union_density, want.union_density, density) << gated << " way " << i;
      EXPECT_NEAR(got.head_density, want.head_density, density) << gated << " way " << i;
      EXPECT_NEAR(got.index_read, want.index_read, 1e-9) << gated << " way " << i;
    }
    EXPECT_LT(scores[1][4].union_density, 0.9) << "a rival chooses";
  }
}

TEST_P(RivalsOnDevices, MissAsMuchAsInHostMemory) {
  Load(/*gated=*/true);
  std::vector<MissCounts> counts[2];
  const std::vector<std::vector<int32_t>> windows = {window_};
  for (Side* side : {host_.get(), gpu_.get()}) {
    BlockMisses misses(side->rivals, /*gated=*/true, /*stride=*/4);
    const auto runner = side->Runner(&misses);
    for (const EvaluatedAttention& way :
         {Way(nullptr, {.offset = -0.5f, .z = 0.5f}), Way(MakeQuest(0.1))}) {
      MissCounts counted;
      misses.CountInto(&counted);
      const std::vector<EvaluatedAttention> one = {way};
      ASSERT_TRUE(EvaluatePerplexity(OnlyRunner(*runner), windows, one,
                                     {.prefill = kPrefill, .rivals = side->rivals.get()})
                      .ok());
      counts[side == gpu_.get()].push_back(counted);
    }
  }
  for (size_t i = 0; i < counts[0].size(); ++i) {
    const MissCounts& want = counts[0][i];
    const MissCounts& got = counts[1][i];
    EXPECT_GT(want.missed_keys, 0);
    const auto near = [&](int64_t a, int64_t b, int64_t of) {
      EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b),
                  GetParam().density * static_cast<double>(of))
          << i;
    };
    near(got.blocks, want.blocks, want.blocks);
    near(got.missed_blocks, want.missed_blocks, want.blocks);
    near(got.keys, want.keys, want.keys);
    near(got.missed_keys, want.missed_keys, want.keys);
  }
}

TEST_P(RivalsOnDevices, RecordWhatIsRecordedInHostMemory) {
  for (const bool gated : {true, false}) {
    Load(gated);
    RecordedWindow windows[2];
    RecordedResiduals residuals[2];
    for (Side* side : {host_.get(), gpu_.get()}) {
      const RowSample sample = {.first = 40, .stride = 9};
      for (const bool attention : {true, false}) {
        AttentionRecorder attends(side->rivals, side->config, sample);
        ResidualRecorder residual(side->rivals, side->config, sample);
        const auto runner = side->Runner(attention ? static_cast<Backend*>(&attends) : &residual);
        AttentionOptions options = {.offset = 0.25f, .uniform_floor = gated};
        options.relative = !gated && side->geometry.index == IndexKind::kOutlier;
        ASSERT_TRUE(runner->Begin({.attention = options, .rope_theta = 1e4f}).ok());
        ASSERT_TRUE(runner->RunPrompt(std::span(window_).first(kPrefill)).ok());
        std::vector<float> logprobs(kContext - kPrefill);
        ASSERT_TRUE(runner
                        ->Run({.tokens = std::span(window_).subspan(kPrefill, logprobs.size()),
                               .targets = std::span(window_).subspan(kPrefill + 1),
                               .logprobs = logprobs})
                        .ok());
        if (attention) windows[side == gpu_.get()] = attends.window();
        if (!attention) residuals[side == gpu_.get()] = residual.recorded();
      }
    }
    const double most = GetParam().vector;
    ASSERT_EQ(windows[1].layers.size(), 2u);
    for (size_t l = 0; l < 2; ++l) {
      const RecordedLayer& want = windows[0].layers[l];
      const RecordedLayer& got = windows[1].layers[l];
      ASSERT_EQ(got.rows.size(), want.rows.size());
      EXPECT_EQ(want.rows.size(), 25u);
      for (size_t h = 0; h < want.keys.size(); ++h) {
        EXPECT_LE(Distance(got.keys[h], want.keys[h]), most);
        EXPECT_LE(Distance(got.values[h], want.values[h]), most);
      }
      EXPECT_EQ(got.index_metric, want.index_metric);
      EXPECT_EQ(got.index_centre, want.index_centre);
      for (size_t r = 0; r < want.rows.size(); ++r) {
        EXPECT_EQ(got.rows[r].position, want.rows[r].position);
        EXPECT_LE(Distance(got.rows[r].q, want.rows[r].q), most);
        EXPECT_LE(Distance(got.rows[r].thresholds, want.rows[r].thresholds), most);
        EXPECT_NEAR(got.rows[r].hidden_norm, want.rows[r].hidden_norm,
                    most * want.rows[r].hidden_norm);
        EXPECT_LE(Distance(residuals[1].layers[l][r], residuals[0].layers[l][r]), most);
      }
    }
    ASSERT_EQ(residuals[1].logits.size(), residuals[0].logits.size());
    for (size_t r = 0; r < residuals[0].logits.size(); ++r) {
      EXPECT_EQ(residuals[1].logits[r].empty(), residuals[0].positions[r] < kPrefill);
      EXPECT_LE(Distance(residuals[1].logits[r], residuals[0].logits[r]), most);
    }
  }
}

// The second row of a GPU runs the fast kernels, whose weights of attention have 16 bits.
INSTANTIATE_TEST_SUITE_P(
    Devices, RivalsOnDevices,
    ::testing::Values(DeviceUnderTest{"device", "reference", 32, DType::kFloat32, 0, 0, 0, 0},
                      DeviceUnderTest{"cpu", "reference", 32, DType::kFloat32, 1e-3, 1e-3, 1e-3,
                                      1e-3},
                      DeviceUnderTest{"cuda", "cpu", 32, DType::kFloat32, 1e-3, 2e-3, 2e-3, 2e-3},
                      DeviceUnderTest{"cuda", "cpu", 64, DType::kFloat16, 1e-3, 3e-3, 4e-3, 1e-2}),
    [](const auto& param) {
      return std::string(param.param.name) + "_" + std::to_string(param.param.head_dim);
    });

}  // namespace
}  // namespace eta::testing
