#include "engine/model/weights/index_metric.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <span>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using testing::TinyModel;

constexpr char kFile[] = "/index_metric.safetensors";

struct Tensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// Of the tiny model: 2 layers, 2 KV heads of 32.
Tensors Good() {
  Tensors tensors;
  for (const char* layer : {"layers.0", "layers.1"}) {
    std::vector<float> metric(2 * 32 * 32);
    for (size_t head = 0; head < 2; ++head) {
      for (size_t i = 0; i < 32; ++i) metric[head * 32 * 32 + i * 33] = 1.0f;
    }
    tensors[std::string(layer) + ".metric"] = {DType::kFloat32, {2, 32, 32}, std::move(metric)};
    tensors[std::string(layer) + ".centre"] = {
        DType::kFloat32, {2, 32}, std::vector<float>(2 * 32, 0.5f)};
  }
  return tensors;
}

void Write(const std::string& path, const Tensors& tensors) {
  std::map<std::string, TensorToWrite> written;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = std::as_bytes(std::span(tensor.values));
    written[name] = {tensor.dtype, tensor.shape,
                     bytes.first(bytes.size() / sizeof(float) * SizeOf(tensor.dtype))};
  }
  ASSERT_TRUE(WriteSafetensors(path, {}, written).ok());
}

class IndexMetricTest : public ::testing::Test {
 protected:
  absl::Status Load(IndexKind index = IndexKind::kOutlier) const {
    const auto checkpoint = Checkpoint::Open(model_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    const auto backend = MakeBackend({.name = "reference"});
    if (!backend.ok()) return backend.status();
    return Model::Load(*checkpoint, **backend, {.index = index}).status();
  }
  std::string Refusal(const std::function<void(Tensors&)>& change) const {
    Tensors tensors = Good();
    change(tensors);
    Write(model_.path() + kFile, tensors);
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(Load(IndexKind::kMoment), status) << "whatever the index is";
    return std::string(status.message());
  }

  TinyModel model_;
};

TEST_F(IndexMetricTest, TheFileMayBeAbsent) {
  EXPECT_TRUE(Load().ok()) << Load();
  EXPECT_EQ(Checkpoint::Open(model_.path())->index_metric(), nullptr);
  Write(model_.path() + kFile, Good());
  EXPECT_TRUE(Load().ok()) << Load();
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  ASSERT_NE(checkpoint.index_metric(), nullptr);
  EXPECT_FALSE(checkpoint.tensors().contains("layers.0.metric"));
  const auto config = ParseModelConfig(checkpoint.config_json());
  const auto read = ReadIndexMetric(*config, *checkpoint.index_metric(), 1).value();
  EXPECT_EQ(read.metric, Good()["layers.1.metric"].values);
  EXPECT_EQ(read.centre, Good()["layers.1.centre"].values);
}

// bad input: Index metric | tensors missing, too many, of another shape or type |
//   FAILED_PRECONDITION, the tensor named
TEST_F(IndexMetricTest, NamesShapesAndTypesMustFitTheModel) {
  EXPECT_THAT(Refusal([](Tensors& t) { t.erase("layers.1.centre"); }),
              HasSubstr("'layers.1.centre' is missing"));
  EXPECT_THAT(Refusal([](Tensors& t) { t["layers.2.centre"] = t["layers.1.centre"]; }),
              HasSubstr("'layers.2.centre' is not expected"));
  EXPECT_THAT(Refusal([](Tensors& t) {
                t["layers.0.metric"].shape = {2, 1024};
              }),
              HasSubstr("has shape [2, 1024], the model's is [2, 32, 32]"));
  EXPECT_THAT(Refusal([](Tensors& t) { t["layers.0.centre"].dtype = DType::kFloat16; }),
              HasSubstr("has dtype float16, not float32"));
}

// bad input: Index metric | NaN, infinity, a metric that is not symmetric | FAILED_PRECONDITION,
//   tensor and element named
TEST_F(IndexMetricTest, ValuesMustBeFiniteAndTheMetricSymmetric) {
  EXPECT_THAT(Refusal([](Tensors& t) {
                t["layers.1.centre"].values[3] = std::numeric_limits<float>::quiet_NaN();
              }),
              HasSubstr("'layers.1.centre' is NaN or infinite at element 3"));
  EXPECT_THAT(Refusal([](Tensors& t) {
                t["layers.0.metric"].values[0] = std::numeric_limits<float>::infinity();
              }),
              HasSubstr("'layers.0.metric' is NaN or infinite"));
  EXPECT_THAT(Refusal([](Tensors& t) { t["layers.0.metric"].values[32 * 32 + 5] = 0.25f; }),
              HasSubstr("is not symmetric: head 1"));
}

// bad input: Index metric | empty, cut, a link to outside, not on the list of digests | refused,
//   the file named, whatever the index is | BadModelTest.AnIndexMetricIsRefusedInOneLine
TEST_F(IndexMetricTest, TheFileIsTrustedAsLittleAsTheOthers) {
  const std::string path = model_.path() + kFile;
  Write(path, Good());
  EXPECT_THAT(
      std::string(Checkpoint::Open(model_.path(), {.expected_sha256 = {{"index_metric.safetensors",
                                                                        std::string(64, '0')}}})
                      .status()
                      .message()),
      HasSubstr("is not on the list"))
      << "config.json comes first";
  auto sha256 = Checkpoint::Open(model_.path())->sha256();
  EXPECT_TRUE(Checkpoint::Open(model_.path(), {.expected_sha256 = sha256}).ok());
  sha256["index_metric.safetensors"] = std::string(64, '0');
  EXPECT_THAT(
      std::string(Checkpoint::Open(model_.path(), {.expected_sha256 = sha256}).status().message()),
      HasSubstr("'index_metric.safetensors' does not have the expected"));
  sha256.erase("index_metric.safetensors");
  EXPECT_THAT(
      std::string(Checkpoint::Open(model_.path(), {.expected_sha256 = sha256}).status().message()),
      HasSubstr("'index_metric.safetensors' is not on the list"));
  for (const auto& [size, why] :
       {std::pair(std::filesystem::file_size(path) - 1, "ends before its last tensor"),
        std::pair(uintmax_t{40}, "ends inside its header"),
        std::pair(uintmax_t{0}, "is under 8 bytes")}) {
    std::filesystem::resize_file(path, size);
    for (const IndexKind index : {IndexKind::kOutlier, IndexKind::kMoment}) {
      EXPECT_THAT(std::string(Load(index).message()),
                  HasSubstr(std::string("'index_metric.safetensors': safetensors file ") + why));
    }
  }
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/hostname", path);
  EXPECT_THAT(std::string(Load().message()),
              HasSubstr("'index_metric.safetensors' is a link to outside"));
}

}  // namespace
}  // namespace eta
