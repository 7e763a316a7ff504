// Attention of every row of a sequence against numbers of an independent float64 implementation of
// eta-semantics: layers with a window, and learned sinks. The files stand in windows/.
//
// A file holds q [T, HQ, d], k and v [T, HKV, d], tau [HQ], sinks [HQ] if the heads have any, and
// what is expected: out [T, HQ, d] float64; its metadata the parameters.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_array.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

std::string WindowsFolder() {
  return GoldenFolder("windows", "ETA_GOLDEN_WINDOWS_DIR");
}

class WindowsFile {
 public:
  explicit WindowsFile(const std::string& name)
      : file_(*SafetensorsFile::Open(WindowsFolder() + "/" + name + ".safetensors")) {}

  int32_t Int(const std::string& key) const { return std::stoi(file_.metadata().at(key)); }

  // The rows from `begin` on, as rows of a sequence that holds those before.
  AttentionCase ToCase(RowKind kind, int32_t begin, DType dtype) const {
    AttentionCase made;
    made.geometry = {.num_kv_heads = Int("num_kv_heads"),
                     .head_dim = Int("head_dim"),
                     .block_size = Int("block_size"),
                     .dtype = dtype};
    made.num_query_heads = Int("num_query_heads");
    made.gate = file_.metadata().at("gate") == "silu" ? Gate::kSilu : Gate::kNone;
    made.beta = std::stof(file_.metadata().at("beta"));
    made.window = Int("window");
    made.table = 1;
    if (file_.tensors().contains("sinks")) made.sinks = GoldenArray<float>(file_, "sinks");
    SequenceCase sequence;
    sequence.kind = kind;
    sequence.position = begin;
    sequence.num_rows = Int("tokens") - begin;
    sequence.attention = {.uniform_floor = false, .admit_all = true};
    sequence.k = Rows("k");
    sequence.v = Rows("v");
    sequence.thresholds = GoldenArray<float>(file_, "tau");
    made.sequences = {sequence};
    const HostTensor q = Rows("q");
    made.q = HostTensor(sequence.num_rows, q.cols);
    std::copy_n(q.row(begin), static_cast<int64_t>(made.q.data.size()), made.q.row(0));
    return made;
  }

  std::vector<double> Out() const { return GoldenArray<double>(file_, "out"); }

 private:
  HostTensor Rows(const std::string& name) const {
    HostTensor tensor;
    tensor.data = GoldenArray<float>(file_, name);
    tensor.rows = Int("tokens");
    tensor.cols = static_cast<int64_t>(tensor.data.size()) / tensor.rows;
    return tensor;
  }

  SafetensorsFile file_;
};

class GoldenWindows
    : public ::testing::TestWithParam<std::tuple<BackendUnderTest, std::string, DType>> {};

TEST(GoldenWindowsFiles, AreThere) {
  EXPECT_FALSE(GoldenCases(WindowsFolder()).empty()) << WindowsFolder();
}

TEST_P(GoldenWindows, AttendsAsExpected) {
  const auto& [backend, name, dtype] = GetParam();
  if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
  const WindowsFile golden(name);
  const std::vector<double> want = golden.Out();
  Device device(backend);
  const double exact = backend.name == "reference" ? 1e-6 : 1e-5;
  // On AMX a prompt's rows take sums of two bfloat16.
  const double tolerance = (dtype == DType::kFloat32 ? exact : exact + (backend.amx ? 2e-3 : 0.0)) +
                           RoundingError(device.activation_dtype()) +
                           (backend.name == "cuda" ? 2e-3 : 0.0);
  for (const RowKind kind : {RowKind::kDecode, RowKind::kPrefill}) {
    for (const int32_t begin : {0, 1, golden.Int("tokens") / 2, golden.Int("tokens") - 1}) {
      const AttentionCase made = golden.ToCase(kind, begin, dtype);
      const HostTensor got = AttentionStep(device, made).Run().out;
      const auto d = static_cast<size_t>(made.geometry.head_dim);
      const size_t skipped = want.size() - got.data.size();
      for (size_t at = 0; at < got.data.size(); at += d) {
        double error = 0.0;
        double norm = 0.0;
        for (size_t i = at; i < at + d; ++i) {
          error += std::pow(got.data[i] - want[skipped + i], 2);
          norm += std::pow(want[skipped + i], 2);
        }
        EXPECT_LT(std::sqrt(error / norm), tolerance)
            << made.Describe() << "\nrow and head " << at / d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenWindows,
                         Combine(ValuesIn(AllBackends()), ValuesIn(GoldenCases(WindowsFolder())),
                                 Values(DType::kFloat32, DType::kFloat16)),
                         [](const auto& test) {
                           const auto& [backend, name, dtype] = test.param;
                           return TestName(backend) + "_" + name + "_" + std::string(Name(dtype));
                         });

}  // namespace
}  // namespace eta::testing
