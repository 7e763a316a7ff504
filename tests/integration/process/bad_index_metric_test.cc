// A damaged index_metric.safetensors in a model's folder: the server ends with exit code 2 and
// names the file or the tensor; one that eta-eval wrote is served. Rows 160 to 164 of the table of
// bad inputs.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/model_server.h"
#include "tests/testing/process/program_process.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kFile[] = "index_metric.safetensors";
constexpr char kMetric[] = "layers.1.metric";
constexpr char kCentre[] = "layers.0.centre";

struct MetricTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;

  void Set(size_t element, float value) {
    std::memcpy(data.data() + element * sizeof(float), &value, sizeof(value));
  }
};
using MetricTensors = std::map<std::string, MetricTensor>;

struct MetricDamage {
  std::string name;
  std::function<void(const std::string& file)> apply;
  std::string cause;  // a text in the line
};

// A damage of what the file holds.
MetricDamage OfTensors(const std::string& name, const std::function<void(MetricTensors&)>& edit,
                       const std::string& cause) {
  const auto apply = [edit](const std::string& path) {
    MetricTensors tensors;
    {
      const auto file = SafetensorsFile::Open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const auto& [tensor, info] : file->tensors()) {
        tensors[tensor] = {info.dtype, info.shape, *file->Read(tensor)};
      }
    }
    edit(tensors);
    std::map<std::string, TensorToWrite> written;
    for (const auto& [tensor, value] : tensors) {
      written[tensor] = {value.dtype, value.shape, value.data};
    }
    ASSERT_TRUE(WriteSafetensors(path, {}, written).ok());
  };
  return {name, apply, cause};
}

const MetricDamage kMetricDamages[] = {
    {"AnEmptyFile", [](const std::string& file) { fs::resize_file(file, 0); },
     "'index_metric.safetensors': safetensors file is under 8 bytes"},
    {"AFileCutInTheHeader", [](const std::string& file) { fs::resize_file(file, 40); },
     "'index_metric.safetensors': safetensors file ends inside its header"},
    {"AFileCutInTheData",
     [](const std::string& file) { fs::resize_file(file, fs::file_size(file) - 4); },
     "'index_metric.safetensors': safetensors file ends before its last tensor"},
    OfTensors(
        "ATensorMissing", [](MetricTensors& tensors) { tensors.erase(kMetric); },
        "'layers.1.metric' is missing"),
    OfTensors(
        "OfAModelWithMoreLayers",
        [](MetricTensors& tensors) { tensors["layers.2.metric"] = tensors[kMetric]; },
        "'layers.2.metric' is not expected"),
    OfTensors(
        "OfAnotherHeadDimension",
        [](MetricTensors& tensors) {
          MetricTensor& centre = tensors[kCentre];
          centre.shape = {centre.shape[0] * 2, centre.shape[1] / 2};
        },
        "'layers.0.centre' has shape"),
    OfTensors(
        "OfAnotherType",
        [](MetricTensors& tensors) {
          MetricTensor& centre = tensors[kCentre];
          centre.dtype = DType::kFloat16;
          centre.data.resize(centre.data.size() / 2);
        },
        "'layers.0.centre' has dtype float16"),
    OfTensors(
        "ANanInTheMetric",
        [](MetricTensors& tensors) {
          tensors[kMetric].Set(0, std::numeric_limits<float>::quiet_NaN());
        },
        "'layers.1.metric' is NaN or infinite at element 0"),
    OfTensors(
        "AnInfiniteCentre",
        [](MetricTensors& tensors) {
          tensors[kCentre].Set(3, std::numeric_limits<float>::infinity());
        },
        "'layers.0.centre' is NaN or infinite at element 3"),
    OfTensors(
        "AMetricThatIsNotSymmetric", [](MetricTensors& tensors) { tensors[kMetric].Set(1, 1e6f); },
        "'layers.1.metric' is not symmetric"),
};

class BadIndexMetricTest : public ::testing::TestWithParam<MetricDamage> {};

TEST_P(BadIndexMetricTest, IsRefusedInOneLine) {
  const TinyModel model({.has_predictor = false, .index_metric = true});
  ASSERT_NO_FATAL_FAILURE(GetParam().apply(absl::StrCat(model.path(), "/", kFile)));
  ExpectBadStart(ServeModel(model.path()), GetParam().cause);
  ExpectBadStart(ServeModel(model.path(), {"--index=moment"}), GetParam().cause);
}

INSTANTIATE_TEST_SUITE_P(Damages, BadIndexMetricTest, ::testing::ValuesIn(kMetricDamages),
                         [](const auto& test) { return test.param.name; });

TEST(PinnedIndexMetric, IsServedOnlyWithItsDigest) {
  const TinyModel model({.has_predictor = false, .index_metric = true});
  std::vector<std::string> pins;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.model", kFile}) {
    const std::string bytes = ReadFile(absl::StrCat(model.path(), "/", name));
    pins.insert(pins.end(), {"--sha256", absl::StrCat(name, "=", Sha256Hex(bytes).value())});
  }
  {
    ServerProcess server = ServeModel(model.path(), pins);
    EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  }
  const std::vector<std::string> fewer(pins.begin(), pins.end() - 2);
  ExpectBadStart(ServeModel(model.path(), fewer),
                 "'index_metric.safetensors' is not on the list of expected SHA-256 digests");
}

TEST(GoodIndexMetric, OfEtaEvalIsServed) {
  const TinyModel model({.has_predictor = false});
  const std::string command =
      absl::StrCat(ETA_BINARY_DIR "/eta-eval index-metric --model=", model.path(),
                   " --text=" ETA_SOURCE_DIR
                   "/deploy/samples/needle.txt --context=64 --windows=2 > /dev/null 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_NE(std::system(command.c_str()), 0) << "it does not replace the file";
  ServerProcess server = ServeModel(model.path());
  EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

TEST(EtaEvalProcess, ConfirmsOnlyWhatIsSelected) {
  const TinyModel model({.has_predictor = false});
  for (const auto& [attention, field] :
       {std::pair("full+confirm=true", "attention: full attention"),
        std::pair("topk:0.5+confirm=true", "confirm: must be false"),
        std::pair("dynamic+confirm=perhaps", "confirm: must be false or true"),
        std::pair("full+prefill_attention=sparse", "attention: full attention"),
        std::pair("topk:0.5+prefill_attention=sparse", "prefill_attention: must be full"),
        std::pair("dynamic+prefill_attention=dense",
                  "prefill_attention: must be full or sparse")}) {
    ProgramProcess eval("eta-eval", {"perplexity", "--model=" + model.path(),
                                     "--text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt",
                                     "--context=64", absl::StrCat("--attention=", attention)});
    const auto exit = eval.AwaitExit();
    EXPECT_EQ(exit.code, 2) << attention;
    EXPECT_THAT(exit.errors, HasSubstr(field));
  }
}

}  // namespace
}  // namespace eta::testing
