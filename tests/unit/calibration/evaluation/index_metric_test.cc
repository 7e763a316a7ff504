// Second moments of queries and mean keys, against plain loops; and eta-eval index-metric.
#include "calibration/evaluation/index_metric/index_metric.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/index_metric/index_savings.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/model.h"
#include "engine/model/weights/index_metric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using testing::TinyModel;

// Keeps the queries and keys of every layer, row after row.
class Recorder : public ForwardingBackend {
 public:
  explicit Recorder(std::shared_ptr<Backend> backend) : ForwardingBackend(std::move(backend)) {}

  void Plan(const BatchView& batch) override {
    rows_ = batch.num_rows();
    layer_ = 0;
    ForwardingBackend::Plan(batch);
  }
  void AppendKv(const AppendKvParams& params) override {
    Keep(params.k, keys_[layer_++]);
    ForwardingBackend::AppendKv(params);
  }
  void PredictThresholds(const ThresholdParams& params) override {
    Keep(params.q, queries_[static_cast<size_t>(params.layer)]);
    ForwardingBackend::PredictThresholds(params);
  }

  std::vector<std::vector<float>> keys_ = std::vector<std::vector<float>>(2);
  std::vector<std::vector<float>> queries_ = std::vector<std::vector<float>>(2);

 private:
  void Keep(const TensorView& view, std::vector<float>& out) const {
    for (int32_t row = 0; row < rows_; ++row) {
      out.insert(out.end(), view.row(row), view.row(row) + view.cols);
    }
  }
  int32_t rows_ = 0;
  size_t layer_ = 0;
};

class IndexMetricTest : public EvaluationTest {
 protected:
  IndexMetricTest() : model_({.has_predictor = false}) {}

  std::string Text() const { return ETA_SOURCE_DIR "/deploy/samples/needle.txt"; }
  int Run(const std::string& flags) const {
    return ExitCode("index-metric --model=" + model_.path() + " --text=" + Text() +
                    " --context=64 --windows=2 " + flags);
  }

  TinyModel model_;
};

TEST_F(IndexMetricTest, IsTheSecondMomentOfQueriesAndTheMeanKey) {
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  const auto config = ParseModelConfig(checkpoint.config_json());
  const auto recorder = std::make_shared<Recorder>(*MakeBackend({.name = "cpu", .num_threads = 1}));
  MomentBackend moments(recorder, *config);
  KvGeometry geometry = MakeKvGeometry(*config, DType::kFloat32);
  geometry.index = IndexKind::kMoment;
  geometry.index_dtype = DType::kFloat16;
  const auto runner = SequenceRunner::Create(
      checkpoint, moments, {.geometry = geometry, .max_context = 64, .max_rows = 24});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<int32_t> tokens(50);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 131 % 8000);
  ASSERT_TRUE((*runner)->Begin({.attention = {.admit_all = true}, .rope_theta = 1e4f}).ok());
  for (size_t begin = 0; begin < tokens.size(); begin += 24) {
    const size_t count = std::min<size_t>(24, tokens.size() - begin);
    ASSERT_TRUE(
        (*runner)
            ->Run({.tokens = std::span(tokens).subspan(begin, count), .kind = RowKind::kPrefill})
            .ok());
  }

  EXPECT_EQ(moments.rows(), 50);
  const size_t d = static_cast<size_t>(config->head_dim);
  const size_t heads = static_cast<size_t>(config->num_query_heads);
  const size_t kv_heads = static_cast<size_t>(config->num_kv_heads);
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::vector<float> metric = moments.Metric(static_cast<int32_t>(layer));
    const std::vector<float> centre = moments.Centre(static_cast<int32_t>(layer));
    ASSERT_EQ(metric.size(), kv_heads * d * d);
    ASSERT_EQ(centre.size(), kv_heads * d);
    for (size_t kv = 0; kv < kv_heads; ++kv) {
      for (size_t i = 0; i < d; ++i) {
        double mean = 0.0;
        for (size_t t = 0; t < 50; ++t) {
          mean += recorder->keys_[layer][(t * kv_heads + kv) * d + i] / 50.0;
        }
        EXPECT_NEAR(centre[kv * d + i], mean, 1e-5);
        for (size_t j = 0; j < d; ++j) {
          double moment = 0.0;
          for (size_t t = 0; t < 50; ++t) {
            for (size_t h = kv * heads / kv_heads; h < (kv + 1) * heads / kv_heads; ++h) {
              const float* q = recorder->queries_[layer].data() + (t * heads + h) * d;
              moment += static_cast<double>(q[i]) * q[j] / 100.0;
            }
          }
          EXPECT_NEAR(metric[(kv * d + i) * d + j], moment, 1e-5 * (1.0 + std::abs(moment)));
          EXPECT_EQ(metric[(kv * d + i) * d + j], metric[(kv * d + j) * d + i]);
        }
      }
    }
  }
}

TEST_F(IndexMetricTest, IsWrittenBesideTheModelWhichThenLoadsIt) {
  const std::string file = model_.path() + "/index_metric.safetensors";
  EXPECT_EQ(Run(""), 0);
  ASSERT_TRUE(std::filesystem::exists(file));
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  ASSERT_NE(checkpoint.index_metric(), nullptr);
  const auto backend = MakeBackend({.name = "cpu"});
  EXPECT_EQ(Model::Load(checkpoint, **backend, {}).status(), absl::OkStatus());
}

std::vector<int32_t> Window(size_t tokens) {
  std::vector<int32_t> window(tokens);
  for (size_t i = 0; i < tokens; ++i) window[i] = static_cast<int32_t>(i * i * 131 % 8000);
  return window;
}

// The identity about nothing is what a model without a file has.
TEST_F(IndexMetricTest, SavesNothingWhereItSaysNothing) {
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  const auto config = ParseModelConfig(checkpoint.config_json()).value();
  const int64_t d = config.head_dim;
  const int64_t heads = config.num_kv_heads;
  std::vector<float> identity(static_cast<size_t>(heads * d * d));
  for (int64_t i = 0; i < heads * d; ++i) {
    identity[static_cast<size_t>(i / d * d * d + i % d * (d + 1))] = 1.0f;
  }
  const std::vector<float> zero(static_cast<size_t>(heads * d));
  std::map<std::string, TensorToWrite> tensors;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    tensors[IndexMetricName(layer)] = {
        DType::kFloat32, {heads, d, d}, std::as_bytes(std::span(identity))};
    tensors[IndexCentreName(layer)] = {DType::kFloat32, {heads, d}, std::as_bytes(std::span(zero))};
  }
  const std::string file = Path("identity.safetensors");
  ASSERT_EQ(WriteSafetensors(file, {}, tensors), absl::OkStatus());
  const auto savings = MeasureIndexSavings(checkpoint, file, Window(1537), {.name = "cpu"});
  ASSERT_TRUE(savings.ok()) << savings.status();
  EXPECT_GT(savings->without.union_density, 0.0);
  EXPECT_LT(savings->without.union_density, 1.0) << "or nothing was chosen";
  EXPECT_GT(savings->without.divergence, 0.0);
  EXPECT_EQ(savings->with.union_density, savings->without.union_density);
  EXPECT_EQ(savings->with.divergence, savings->without.divergence);
  EXPECT_EQ(savings->percent(), 0.0);
}

// Whatever metric the model has already.
TEST_F(IndexMetricTest, SavesWhatItSavesOverNone) {
  const std::string file = Path("measured.safetensors");
  ASSERT_EQ(Run("--output=" + file), 0);
  const auto none = Checkpoint::Open(model_.path()).value();
  const auto before = MeasureIndexSavings(none, file, Window(1537), {.name = "cpu"}).value();
  EXPECT_NE(before.with.divergence, before.without.divergence) << "other records, other blocks";
  ASSERT_EQ(Run(""), 0);
  const auto beside = Checkpoint::Open(model_.path()).value();
  ASSERT_NE(beside.index_metric(), nullptr);
  const auto after = MeasureIndexSavings(beside, file, Window(1537), {.name = "cpu"}).value();
  EXPECT_EQ(after.without.union_density, before.without.union_density);
  EXPECT_EQ(after.with.union_density, before.with.union_density);
  EXPECT_EQ(MeasureIndexSavings(none, Path("missing"), Window(1537), {.name = "cpu"}).ok(), false);
}

TEST_F(IndexMetricTest, DependsOnTheTextAlone) {
  EXPECT_EQ(Run("--threads=1 --output=" + Path("a.safetensors")), 0);
  EXPECT_EQ(Run("--threads=2 --output=" + Path("b.safetensors")), 0);
  EXPECT_EQ(ReadFile(Path("a.safetensors")), ReadFile(Path("b.safetensors")));
}

// bad input: eta-eval | index-metric: a file that is there already | exit code 2; nothing is
//   replaced | GoodIndexMetric.OfEtaEvalIsServed
TEST_F(IndexMetricTest, NothingIsReplacedUnasked) {
  const std::string file = Write("there.safetensors", "mine");
  EXPECT_EQ(Run("--output=" + file), 2);
  EXPECT_EQ(ReadFile(file), "mine");
  EXPECT_EQ(Run("--overwrite --output=" + file), 0);
  EXPECT_NE(ReadFile(file), "mine");
}

// bad input: eta-eval | index-metric: a GGUF file without --output, a text that fills no window, a
//   device that keeps its memory | exit code 2, the flag named
TEST_F(IndexMetricTest, SaysWhatItCannotRun) {
  EXPECT_EQ(Run("--backend=cuda"), 2);
  EXPECT_EQ(Run("--context=100000"), 2);  // more than the text holds
  EXPECT_EQ(Run("--text=" + Path("missing.txt")), 2);
  EXPECT_FALSE(std::filesystem::exists(model_.path() + "/index_metric.safetensors"));
  EXPECT_EQ(
      ExitCode("index-metric --model=" + Write("model.gguf", "no model") + " --text=" + Text()), 2);
}

}  // namespace
}  // namespace eta
