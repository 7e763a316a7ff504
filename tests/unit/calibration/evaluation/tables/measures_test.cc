// Diagnostics of recorded attention against numbers that an independent program computed
// (tests/golden/diagnostics).
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/perplexity/alignment.h"
#include "calibration/evaluation/tables/measures/active_density.h"
#include "calibration/evaluation/tables/measures/block_bounds.h"
#include "calibration/evaluation/tables/measures/document_variance.h"
#include "calibration/evaluation/tables/measures/index_quality.h"
#include "calibration/evaluation/tables/measures/sink_mass.h"
#include "calibration/evaluation/tables/measures/tail_norm.h"
#include "calibration/evaluation/tables/measures/tail_shape.h"
#include "calibration/evaluation/tables/measures/threshold_regression.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/golden/golden_folder.h"

namespace eta {
namespace {

// One golden file.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : file_(*OpenCase(testing::GoldenFolder("diagnostics", "ETA_GOLDEN_DIAGNOSTICS_DIR") + "/" +
                        name + ".safetensors")) {}

  template <typename T>
  std::vector<T> Read(const std::string& name) const {
    const auto bytes = file_.Read(name);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    std::vector<T> values(bytes->size() / sizeof(T));
    std::memcpy(values.data(), bytes->data(), bytes->size());
    return values;
  }
  const std::vector<int64_t>& Shape(const std::string& name) const {
    return file_.tensors().at(name).shape;
  }
  const std::string& Meta(const std::string& name) const { return file_.metadata().at(name); }

 private:
  SafetensorsFile file_;
};

void ExpectNear(const std::vector<double>& got, const std::vector<double>& wanted, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i], tolerance * (1.0 + std::abs(wanted[i]))) << what << " " << i;
  }
}

class MeasuresTest : public ::testing::TestWithParam<const char*> {
 protected:
  MeasuresTest() : golden_(GetParam()) {
    const std::vector<int64_t>& q = golden_.Shape("q");  // [R, HQ, d]
    const std::vector<int64_t>& k = golden_.Shape("k");  // [T, HKV, d]
    window_ = {.num_query_heads = static_cast<int32_t>(q[1]),
               .num_kv_heads = static_cast<int32_t>(k[1]),
               .head_dim = static_cast<int32_t>(q[2]),
               .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q[2]))),
               .gate = golden_.Meta("gate") == "silu" ? Gate::kSilu : Gate::kNone,
               .beta = std::stof(golden_.Meta("beta")),
               .tempered = golden_.Read<uint8_t>("tempered")};
    metric_ = golden_.Read<float>("metric");
    centre_ = golden_.Read<float>("centre");
    RecordedLayer& layer = window_.layers.emplace_back();
    layer.index_metric = metric_;
    layer.index_centre = centre_;
    layer.keys = ByHead("k");
    layer.values = ByHead("v");
    const auto queries = golden_.Read<float>("q");
    const auto thresholds = golden_.Read<float>("tau");
    const auto norms = golden_.Read<float>("hidden_norm");
    const auto positions = golden_.Read<int32_t>("positions");
    const auto heads = static_cast<size_t>(q[1]);
    const size_t width = heads * static_cast<size_t>(q[2]);
    for (size_t r = 0; r < positions.size(); ++r) {
      RecordedRow& row = layer.rows.emplace_back();
      row.position = positions[r];
      row.q.assign(queries.begin() + static_cast<std::ptrdiff_t>(r * width),
                   queries.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      row.thresholds.assign(thresholds.begin() + static_cast<std::ptrdiff_t>(r * heads),
                            thresholds.begin() + static_cast<std::ptrdiff_t>((r + 1) * heads));
      row.hidden_norm = norms[r];
    }
  }

  const RecordedLayer& layer() const { return window_.layers.front(); }
  std::vector<double> Wanted(const std::string& name) const { return golden_.Read<double>(name); }

  GoldenFile golden_;
  RecordedWindow window_;

 private:
  // A tensor [T, HKV, d] as [HKV][T, d].
  std::vector<std::vector<float>> ByHead(const std::string& name) const {
    const std::vector<int64_t>& shape = golden_.Shape(name);
    const std::vector<float> values = golden_.Read<float>(name);
    const auto heads = static_cast<size_t>(shape[1]);
    const auto d = static_cast<size_t>(shape[2]);
    std::vector<std::vector<float>> by_head(heads);
    for (size_t i = 0; i < values.size(); ++i) by_head[i / d % heads].push_back(values[i]);
    return by_head;
  }

  std::vector<float> metric_;
  std::vector<float> centre_;
};

TEST_P(MeasuresTest, TheShapeOfTheTail) {
  ExpectNear(TailShapeSums(window_, layer()), Wanted("tail_shape"), 1e-9, "tail_shape");
}

TEST_P(MeasuresTest, TheNormOfTheTail) {
  ExpectNear(TailNormSums(window_, layer()), Wanted("tail_norm"), 1e-9, "tail_norm");
}

TEST_P(MeasuresTest, TheMassOfSinks) {
  ExpectNear(SinkMassSums(window_, layer()), Wanted("sinks"), 1e-9, "sinks");
}

TEST_P(MeasuresTest, ActiveDensities) {
  std::vector<double> densities;
  for (const auto& head : ActiveDensities(window_, layer())) {
    densities.insert(densities.end(), head.begin(), head.end());
  }
  ExpectNear(densities, Wanted("density"), 1e-12, "density");
}

TEST_P(MeasuresTest, StatisticsOfRowsAndWhatTheyExplain) {
  std::vector<double> statistics;
  std::vector<double> explained;
  for (int32_t h = 0; h < window_.num_query_heads; ++h) {
    for (const RecordedRow& row : layer().rows) {
      const auto of_row = RowStatistics(window_, layer(), row, h);
      statistics.insert(statistics.end(), of_row.begin(), of_row.end());
    }
    const std::vector<double> sums = RegressionSums(window_, layer(), h);
    for (size_t i = 0; i < kRowStatistics; ++i) {
      explained.push_back(ExplainedShare(sums, i).value_or(-1.0));
    }
    explained.push_back(ExplainedShare(sums, std::nullopt).value_or(-1.0));
  }
  ExpectNear(statistics, Wanted("statistics"), 1e-6, "statistics");
  ExpectNear(explained, Wanted("explained"), 1e-6, "explained");
}

TEST_P(MeasuresTest, BoundsOfBlocksAndWhatTheyMiss) {
  for (const auto& [kind, name] :
       {std::pair{BoundKind::kFlat, "flat"}, std::pair{BoundKind::kEnvelope, "envelope"},
        std::pair{BoundKind::kOutlier, "outlier"}, std::pair{BoundKind::kBox, "box"}}) {
    for (const int32_t b : {4, 16, 32}) {
      const std::string suffix = std::string(name) + "." + std::to_string(b);
      const auto bounds = BlockBounds::Of(
          window_, layer(), {.kind = kind, .block_size = b, .z = std::stof(golden_.Meta("z"))});
      ASSERT_TRUE(bounds.ok()) << bounds.status();
      std::vector<double> of_last;
      for (int32_t h = 0; h < window_.num_query_heads; ++h) {
        for (const float bound : bounds->Row(layer().rows.back(), h)) of_last.push_back(bound);
      }
      ExpectNear(of_last, Wanted("bounds." + suffix), 1e-5, suffix);
      const auto sums = IndexQualitySums(window_, layer(), std::array{*bounds, *bounds});
      ASSERT_EQ(sums.size(), 2u);
      ExpectNear(sums[0], Wanted("index." + suffix), 1e-9, suffix);
      EXPECT_EQ(sums[1], sums[0]);
    }
  }
}

TEST_P(MeasuresTest, RelativeThresholds) {
  if (golden_.Meta("c").empty()) return;
  RecordedWindow window = window_;
  for (RecordedRow& row : window.layers.front().rows) row.thresholds.clear();
  SetRelativeThresholds(window, std::stof(golden_.Meta("c")));
  for (size_t r = 0; r < layer().rows.size(); ++r) {
    for (size_t h = 0; h < layer().rows[r].thresholds.size(); ++h) {
      EXPECT_NEAR(window.layers.front().rows[r].thresholds[h], layer().rows[r].thresholds[h], 1e-5);
    }
  }
}

TEST_P(MeasuresTest, ABlockSizeThatTheKindDoesNotHaveIsRefused) {
  EXPECT_FALSE(
      BlockBounds::Of(window_, layer(), {.kind = BoundKind::kEnvelope, .block_size = 6}).ok());
  EXPECT_FALSE(BlockBounds::Of(window_, layer(), {.kind = BoundKind::kBox, .block_size = 0}).ok());
  const auto large = BlockBounds::Of(window_, layer(), {.block_size = 1024}).value();
  EXPECT_TRUE(large.Row(layer().rows.back(), 0).empty());
}

INSTANTIATE_TEST_SUITE_P(Golden, MeasuresTest, ::testing::Values("gated", "plain"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Alignment, OfVectorsAndLogits) {
  const GoldenFile golden("vectors");
  const auto full = golden.Read<float>("full");
  const auto sparse = golden.Read<float>("sparse");
  const auto width = static_cast<size_t>(golden.Shape("full")[1]);
  std::vector<double> got;
  for (size_t begin = 0; begin < full.size(); begin += width) {
    const auto a = std::span(full).subspan(begin, width);
    const auto b = std::span(sparse).subspan(begin, width);
    const LogitAlignment logits = AlignLogits(a, b);
    const VectorAlignment vectors = AlignVectors(a, b);
    EXPECT_DOUBLE_EQ(logits.cosine, vectors.cosine);
    got.insert(got.end(), {vectors.cosine, vectors.shift, logits.kl, logits.same_best ? 1.0 : 0.0});
  }
  ExpectNear(got, golden.Read<double>("alignment"), 1e-9, "alignment");
}

TEST(Alignment, OfZeroIsZero) {
  const std::array<float, 2> zero = {};
  const std::array<float, 2> one = {1.0f, 0.0f};
  EXPECT_EQ(AlignVectors(zero, one).shift, 0.0);
  EXPECT_EQ(AlignVectors(one, zero).cosine, 0.0);
  EXPECT_EQ(AlignVectors(one, zero).shift, 1.0);
}

TEST(DocumentVariance, SharesOfAllDocumentsAndWithoutEach) {
  const GoldenFile golden("vectors");
  const auto values = golden.Read<double>("documents");
  const auto rows = golden.Shape("documents")[1];
  std::vector<std::vector<double>> documents;
  for (auto at = values.begin(); at != values.end(); at += rows) {
    documents.emplace_back(at, at + rows);
  }
  std::vector<double> shares = {BetweenDocuments(documents).value()};
  for (size_t i = 0; i < documents.size(); ++i) {
    shares.push_back(BetweenDocuments(documents, i).value());
  }
  ExpectNear(shares, golden.Read<double>("between"), 1e-9, "between");
}

TEST(DocumentVariance, IsUndefinedWithoutDocumentsOrVariance) {
  using Documents = std::vector<std::vector<double>>;
  EXPECT_FALSE(BetweenDocuments({}).has_value());
  EXPECT_FALSE(BetweenDocuments(Documents{{1.0, 2.0}}).has_value());
  EXPECT_FALSE(BetweenDocuments(Documents{{1.0, 2.0}, {3.0, 0.5}}, 1).has_value());
  EXPECT_FALSE(BetweenDocuments(Documents{{0.1, 0.7}, {0.1, 0.7}, {0.1, 0.7}}).has_value());
}

TEST(ExplainedShare, IsUndefinedWhereThresholdsDoNotVary) {
  std::vector<double> sums(kRegressionSums);
  EXPECT_FALSE(ExplainedShare(sums, std::nullopt).has_value());
  // Three rows of (1, 2, 0 ..., 5).
  size_t next = 0;
  std::array<double, kMomentSize> terms = {1.0, 2.0};
  terms.back() = 5.0;
  for (size_t i = 0; i < kMomentSize; ++i) {
    for (size_t j = i; j < kMomentSize; ++j) sums[next++] = 3.0 * terms[i] * terms[j];
  }
  EXPECT_FALSE(ExplainedShare(sums, std::nullopt).has_value());
}

}  // namespace
}  // namespace eta
