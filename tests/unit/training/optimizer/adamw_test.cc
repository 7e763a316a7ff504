#include "training/optimizer/adamw.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/testing/training/toy_model.h"
#include "training/cpu/cpu_backend.h"

namespace eta::training {
namespace {

class AdamWTest : public ::testing::Test {
 protected:
  AdamWTest() : backend_(cpu::MakeBackend(1)) {
    auto created = Parameters::Create(testing::ToySpec(), TrainedPart::kAll, *backend_);
    EXPECT_TRUE(created.ok()) << created.status();
    parameters_ = *std::move(created);
    EXPECT_TRUE(parameters_->Initialise({.seed = 3}).ok());
  }

  // The same gradient for every parameter.
  void SetGradients(float value) {
    std::vector<float> gradients(static_cast<size_t>(parameters_->layout().trained_count()), 0.0f);
    for (const Parameter& p : parameters_->layout().parameters()) {
      std::fill_n(gradients.begin() + p.offset, p.count, value);
    }
    backend_->Upload(parameters_->gradients(), gradients.data(), gradients.size() * sizeof(float));
  }

  std::unique_ptr<AdamW> Make(const AdamWOptions& options) {
    auto adamw = AdamW::Create(options, *parameters_);
    EXPECT_TRUE(adamw.ok()) << adamw.status();
    return *std::move(adamw);
  }

  std::unique_ptr<TrainingBackend> backend_;
  std::unique_ptr<Parameters> parameters_;
};

// The first step of Adam moves every element by the rate, whatever its gradient is.
TEST_F(AdamWTest, FirstStepMovesByTheRateAndDecaysMatricesAlone) {
  const auto norm_before = parameters_->Read("model.norm.weight");
  const auto down_before = parameters_->Read("model.layers.0.mlp.down_proj.weight");
  const auto table_before = parameters_->Read("model.embed_tokens.weight");
  const auto adamw = Make({.weight_decay = 0.1, .max_norm = 0.0});
  SetGradients(0.5f);
  adamw->Step(0.01, adamw->GradientNorm());
  const auto norm = parameters_->Read("model.norm.weight");
  const auto down = parameters_->Read("model.layers.0.mlp.down_proj.weight");
  const auto table = parameters_->Read("model.embed_tokens.weight");
  for (size_t i = 0; i < norm->size(); ++i) EXPECT_NEAR((*norm)[i], (*norm_before)[i] - 0.01, 1e-6);
  for (size_t i = 0; i < down->size(); ++i) {
    EXPECT_NEAR((*down)[i], (*down_before)[i] * (1.0 - 0.001) - 0.01, 1e-6);
  }
  for (size_t i = 0; i < table->size(); ++i) {
    EXPECT_NEAR((*table)[i], (*table_before)[i] - 0.01, 1e-6);
  }
}

TEST_F(AdamWTest, ClipsByTheGlobalNorm) {
  const auto adamw = Make({.max_norm = 1.0});
  SetGradients(2.0f);
  int64_t elements = 0;
  for (const Parameter& p : parameters_->layout().parameters()) elements += p.count;
  const double norm = adamw->GradientNorm();
  EXPECT_NEAR(norm, 2.0 * std::sqrt(static_cast<double>(elements)), 1e-3);
  adamw->Step(0.01, norm);
  const AdamWState state = adamw->ReadState();
  const Parameter& table = *parameters_->layout().Find("model.embed_tokens.weight");
  EXPECT_NEAR(state.first[static_cast<size_t>(table.offset)], 0.1 * 2.0 / norm, 1e-7);
  // Gradients themselves stay.
  EXPECT_EQ(adamw->GradientNorm(), norm);
}

TEST_F(AdamWTest, GoesOnFromItsState) {
  const auto whole = Make({});
  SetGradients(0.25f);
  whole->Step(0.01, 1.0);
  const AdamWState state = whole->ReadState();
  EXPECT_EQ(state.steps, 1);
  const auto after_one = parameters_->Read("model.norm.weight");
  whole->Step(0.01, 1.0);
  const auto after_two = parameters_->Read("model.norm.weight");
  ASSERT_TRUE(parameters_->Write("model.norm.weight", *after_one).ok());
  const auto resumed = Make({});
  ASSERT_TRUE(resumed->WriteState(state).ok());
  resumed->Step(0.01, 1.0);
  EXPECT_EQ(*parameters_->Read("model.norm.weight"), *after_two);
}

TEST_F(AdamWTest, RefusesMomentsOfAnotherModel) {
  const auto adamw = Make({});
  AdamWState state = adamw->ReadState();
  state.second.pop_back();
  EXPECT_EQ(adamw->WriteState(state).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdamWTest, NeedsSomethingToTrain) {
  auto frozen = Parameters::Create(testing::ToySpec(), TrainedPart::kNothing, *backend_).value();
  EXPECT_EQ(AdamW::Create({}, *frozen).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eta::training
