// Weights that are no numbers, or that would become none: a model of them is loaded only where that
// is allowed.
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using testing::TinyModel;

// A checkpoint with another value in one element of a tensor.
class DamagedSource : public TensorSource {
 public:
  DamagedSource(const TensorSource& source, std::string name, size_t element, float value)
      : source_(source), name_(std::move(name)), element_(element), value_(value) {}

  const std::string& config_json() const override { return source_.config_json(); }
  const std::map<std::string, TensorInfo>& tensors() const override { return source_.tensors(); }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    auto bytes = source_.Read(name);
    if (name == name_)
      std::memcpy(bytes->data() + element_ * sizeof(value_), &value_, sizeof(value_));
    return bytes;
  }

 private:
  const TensorSource& source_;
  const std::string name_;
  const size_t element_;
  const float value_;
};

// bad input: Weights | NaN or infinity | FAILED_PRECONDITION, tensor and element named, unless a
//   flag allows them | NonfiniteWeights.AreServedWhereTheFlagAllowsThem
TEST(ModelWeights, NanAndInfinityAreNamedUnlessTheyAreAllowed) {
  const TinyModel model({.model_type = "qwen2"});
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  const auto backend = MakeBackend({.name = "reference"}).value();
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const std::string name : {"model.norm.weight", "model.embed_tokens.weight",
                                   "model.layers.0.self_attn.v_proj.bias"}) {
      const DamagedSource damaged(checkpoint, name, 5, value);
      const absl::Status status = Model::Load(damaged, *backend, {}).status();
      EXPECT_THAT(status, FailsSaying(absl::StatusCode::kFailedPrecondition,
                                      name + ": element 5 is NaN or infinite"));
      EXPECT_TRUE(Model::Load(damaged, *backend, {.allow_nonfinite_weights = true}).ok()) << name;
    }
  }
}

// bad input: Weights | with --weights=int8 or int4 a float that blocks do not hold |
//   FAILED_PRECONDITION, tensor and element named, with the limit, unless a flag allows it
TEST(ModelWeights, NumbersThatBlocksDoNotHoldAreNamedUnlessTheyAreAllowed) {
  const TinyModel model;
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  struct Case {
    WeightFormat format;
    float value;
    std::string error;  // empty: it is held
  };
  const Case cases[] = {
      {WeightFormat::kNative, -1e30f, ""},
      {WeightFormat::kInt8, -8319008.0f, ""},
      {WeightFormat::kInt8, 8319009.0f, "beyond 8319008, the most that weights of int8 hold"},
      {WeightFormat::kInt4, 65504.0f, ""},
      {WeightFormat::kInt4, -65505.0f, "beyond 65504, the most that weights of int4 hold"},
  };
  for (const char* backend_name : {"reference", "cpu"}) {
    const auto backend = MakeBackend({.name = backend_name}).value();
    for (const Case& c : cases) {
      SCOPED_TRACE(c.value);
      const DamagedSource damaged(checkpoint, name, 5, c.value);
      const absl::Status status = Model::Load(damaged, *backend, {.weights = c.format}).status();
      if (c.error.empty()) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_THAT(status, FailsSaying(absl::StatusCode::kFailedPrecondition,
                                      "tensor " + name + ": element 5 is " + c.error));
      EXPECT_TRUE(
          Model::Load(damaged, *backend, {.weights = c.format, .allow_nonfinite_weights = true})
              .ok());
    }
    // Keeps eight bits.
    const DamagedSource kept(checkpoint, "model.layers.0.self_attn.v_proj.weight", 5, 65505.0f);
    EXPECT_TRUE(Model::Load(kept, *backend, {.weights = WeightFormat::kInt4}).ok());
  }
}

// A checkpoint with one matrix in e4m3: ones, with scales of channels.
class Float8Source : public TensorSource {
 public:
  Float8Source(const TensorSource& source, std::string name)
      : source_(source), name_(std::move(name)), tensors_(source.tensors()) {
    const std::vector<int64_t>& shape = tensors_.at(name_).shape;
    tensor.bytes.assign(static_cast<size_t>(shape[0] * shape[1]), std::byte{0x38});
    tensor.float8 = StoredScales{.scales = std::vector<float>(static_cast<size_t>(shape[0]), 0.02f),
                                 .block_rows = 1,
                                 .block_cols = shape[1]};
  }

  const std::string& config_json() const override { return source_.config_json(); }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    return source_.Read(name);
  }
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const override {
    if (name == name_) return tensor;
    return source_.ReadStored(name);
  }

  StoredTensor tensor;

 private:
  const TensorSource& source_;
  const std::string name_;
  const std::map<std::string, TensorInfo> tensors_;
};

// bad input: Weights | e4m3 with a NaN, or with a scale that is NaN, infinite or too large |
//   FAILED_PRECONDITION, tensor and element or scale named, unless a flag allows it
TEST(ModelWeights, E4M3ThatIsNoNumberIsNamedUnlessItIsAllowed) {
  const TinyModel model;
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  for (const char* backend_name : {"reference", "cpu"}) {
    const auto backend = MakeBackend({.name = backend_name}).value();
    Float8Source source(checkpoint, name);
    for (const WeightFormat format : {WeightFormat::kNative, WeightFormat::kInt8,
                                      WeightFormat::kInt4, WeightFormat::kUnpacked}) {
      EXPECT_TRUE(Model::Load(source, *backend, {.weights = format}).ok());
    }
    source.tensor.bytes[9] = std::byte{0xFF};
    EXPECT_THAT(Model::Load(source, *backend, {}).status(),
                FailsSaying(absl::StatusCode::kFailedPrecondition,
                            "tensor " + name + ": element 9 is NaN or infinite"));
    EXPECT_TRUE(Model::Load(source, *backend, {.allow_nonfinite_weights = true}).ok());
    source.tensor.bytes[9] = std::byte{0x80};  // -0
    EXPECT_TRUE(Model::Load(source, *backend, {}).ok());
    for (const float scale :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e37f}) {
      source.tensor.float8->scales[3] = scale;
      EXPECT_THAT(Model::Load(source, *backend, {}).status(),
                  FailsSaying(absl::StatusCode::kFailedPrecondition,
                              "tensor " + name + ": scale 3 is NaN, infinite or beyond"));
    }
    source.tensor.float8->scales[3] = 1e3f;
    EXPECT_THAT(Model::Load(source, *backend, {.weights = WeightFormat::kInt4}).status(),
                FailsSaying(absl::StatusCode::kFailedPrecondition, "weights of int4 hold"));
  }
}

// bad input: Weights | NaN in a router or an expert | FAILED_PRECONDITION, tensor and element named
TEST(ModelWeights, ARouterThatIsNoNumberIsNamed) {
  const TinyModel model({.model_type = "qwen3_moe", .num_experts = 4});
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  const auto backend = MakeBackend({.name = "reference"}).value();
  for (const std::string name :
       {"model.layers.1.mlp.gate.weight", "model.layers.0.mlp.experts.3.down_proj.weight"}) {
    const DamagedSource damaged(checkpoint, name, 5, std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(Model::Load(damaged, *backend, {}).status(),
                FailsSaying(absl::StatusCode::kFailedPrecondition,
                            name + ": element 5 is NaN or infinite"));
  }
}

}  // namespace
}  // namespace eta
