// The gradients of whole models on the reference in double, against differences of their losses:
// every parameter along its own gradient.

#include <cmath>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/training/harness.h"
#include "tests/testing/training/toy_model.h"
#include "training/model/training_model.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::MakeToy;
using testing::ToyModel;
using testing::ToyOptions;
using testing::ToySpec;

struct Case {
  ToyOptions toy;
  StepSettings settings;
  int32_t length = 12;
  bool teacher = false;
  double floor = 1e-5;  // of a slope's error
};

class Differences {
 public:
  explicit Differences(const Case& c)
      : case_(c), backend_(reference::MakeBackend(DType::kFloat64)) {
    const ModelLimits limits = {2, c.length};
    const InitOptions init = {.seed = 5, .deviation = 0.3, .threshold_bias = 0.2f};
    student_ = MakeToy(ToySpec(c.toy), *backend_, limits, TrainedPart::kAll, init);
    // Predictors of zeros have no slope to show.
    for (const Parameter& p : student_.parameters->layout().parameters()) {
      if (!p.name.ends_with("tau_proj.weight")) continue;
      testing::Numbers numbers(9);
      std::vector<float> weights;
      for (const double w : numbers.Normal(p.count, 0.2)) weights.push_back(static_cast<float>(w));
      EXPECT_TRUE(student_.parameters->Write(p.name, weights).ok());
    }
    if (c.teacher) {
      ToyOptions plain = c.toy;
      plain.gate = GateKind::kNone;
      plain.thresholds = ThresholdSource::kNone;
      ModelLimits forward_only = limits;
      forward_only.backward = false;
      teacher_ = MakeToy(ToySpec(plain), *backend_, forward_only, TrainedPart::kNothing,
                         {.seed = 6, .deviation = 0.3});
    }
    testing::PhraseSource source(student_.model->spec().config.vocab_size, 2, c.length);
    EXPECT_TRUE(source.Next(batch_).ok());
    batch_.targets[3] = -1;
    for (size_t i = 0; i < batch_.tokens.size(); ++i) {
      batch_.ce_weights.push_back(0.5f + 0.25f * static_cast<float>(i % 4));
      batch_.kl_weights.push_back(1.5f - 0.25f * static_cast<float>(i % 3));
    }
    case_.settings.sequences_in_step = 3;  // more than this batch's
  }

  double Loss(bool backward) {
    const auto ran =
        student_.model->Run(batch_.view(), case_.settings, teacher_.model.get(), backward);
    EXPECT_TRUE(ran.ok()) << ran.status();
    const RegulariserOptions& r = case_.settings.regulariser;
    double loss = ran->weighted;
    if (r.weight > 0.0) {
      if (r.block_share < 1.0) loss += r.weight * (1.0 - r.block_share) * ran->MeanGateDensity();
      if (r.block_share > 0.0) loss += r.weight * r.block_share * ran->MeanBlockDensity();
    }
    return loss;
  }

  void Expect() {
    Parameters& parameters = *student_.parameters;
    parameters.ZeroGradients();
    Loss(true);
    for (const Parameter& p : parameters.layout().parameters()) {
      const std::vector<float> gradient = *parameters.ReadGradient(p.name);
      double squares = 0.0;
      for (const float g : gradient) squares += static_cast<double>(g) * g;
      const double length = std::sqrt(squares);
      ASSERT_GT(length, 0.0) << p.name;
      EXPECT_NEAR(Slope(p, gradient, length), length, 2e-3 * length + case_.floor) << p.name;
    }
  }

 private:
  double Slope(const Parameter& p, const std::vector<float>& gradient, double length) {
    constexpr double kStep = 4e-3;
    const std::vector<float> values = *student_.parameters->Read(p.name);
    const auto at = [&](double steps) {
      std::vector<float> moved = values;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] = static_cast<float>(moved[i] + steps * kStep * gradient[i] / length);
      }
      EXPECT_TRUE(student_.parameters->Write(p.name, moved).ok());
      return Loss(false);
    };
    const double slope = (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * kStep);
    EXPECT_TRUE(student_.parameters->Write(p.name, values).ok());
    return slope;
  }

  Case case_;
  std::unique_ptr<TrainingBackend> backend_;
  ToyModel student_;
  ToyModel teacher_;
  MicroBatch batch_;
};

TEST(ModelDifferences, OfAGatedModel) {
  Differences({.settings = {.beta = 2.0f, .regulariser = {.weight = 1.0}}}).Expect();
}

TEST(ModelDifferences, OfAModelWithBiasesAndNormsOfHeads) {
  Differences({.toy = {.biases = true, .head_norms = true, .tied = false},
               .settings = {.beta = 3.0f, .gate_strength = 0.6f}})
      .Expect();
}

TEST(ModelDifferences, OfAModelWithALayerWithoutRope) {
  Differences({.toy = {.unrotated = true},
               .settings = {.beta = 2.0f, .regulariser = {.weight = 0.5, .block_share = 0.5}}})
      .Expect();
}

TEST(ModelDifferences, OfOneConstantPerHead) {
  Differences({.toy = {.thresholds = ThresholdSource::kStatic},
               .settings = {.beta = 2.0f, .regulariser = {.weight = 0.5}}})
      .Expect();
}

TEST(ModelDifferences, OfAStudent) {
  Differences(
      {.settings = {.beta = 2.0f, .gate_strength = 0.5f, .ce_scale = 0.3f}, .teacher = true})
      .Expect();
}

TEST(ModelDifferences, OfAPlainModel) {
  Differences({.toy = {.gate = GateKind::kNone, .thresholds = ThresholdSource::kNone}}).Expect();
}

// Of a compressor's gradients some are small: they have to be right all the same.
TEST(ModelDifferences, OfNativeSparseAttention) {
  Differences({.toy = {.attention = AttentionScheme::kNativeSparse}, .length = 70, .floor = 1e-7})
      .Expect();
}

TEST(ModelDifferences, OfBlocksOfGroups) {
  Differences({.toy = {.num_layers = 1},
               .settings = {.beta = 2.0f, .regulariser = {.weight = 2.0, .block_share = 0.7}},
               .length = 68})
      .Expect();
}

}  // namespace
}  // namespace eta::training
