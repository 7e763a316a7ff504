// One decode step against numbers of an independent float64 implementation of eta-semantics: the
// blocks that every head admits, the token counts and the output. The files stand in decode/;
// ETA_GOLDEN_DECODE_DIR names another folder of such files.
//
// A file holds q [HQ, d], k and v [T, HKV, d], tau [HQ], and what is expected: out [HQ, d] float64,
// admitted [HQ, N], tokens_per_head [HQ], tokens_per_kv_head [HKV]; its metadata the parameters.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::ValuesIn;

std::string Folder() {
  return GoldenFolder("decode", "ETA_GOLDEN_DECODE_DIR");
}

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : file_(*SafetensorsFile::Open(Folder() + "/" + name + ".safetensors")) {}

  std::string Text(const std::string& key) const { return file_.metadata().at(key); }
  int32_t Int(const std::string& key) const { return std::stoi(Text(key)); }
  float Float(const std::string& key) const { return std::stof(Text(key)); }

  template <typename T>
  std::vector<T> Array(const std::string& name) const {
    const std::vector<std::byte> bytes = *file_.Read(name);
    std::vector<T> array(bytes.size() / sizeof(T));
    if (!array.empty()) std::memcpy(array.data(), bytes.data(), bytes.size());
    return array;
  }

  // A floating-point tensor as float32 rows.
  HostTensor Rows(const std::string& name, int64_t rows) const {
    const std::vector<std::byte> bytes = *file_.Read(name);
    const DType dtype = file_.tensors().at(name).dtype;
    HostTensor tensor(rows, static_cast<int64_t>(bytes.size() / SizeOf(dtype)) / rows);
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      tensor.data[i] = LoadElement(dtype, bytes.data(), static_cast<int64_t>(i));
    }
    return tensor;
  }

 private:
  SafetensorsFile file_;
};

AttentionCase ToCase(const GoldenFile& golden) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = golden.Int("num_kv_heads"),
                   .head_dim = golden.Int("head_dim"),
                   .block_size = golden.Int("block_size"),
                   .sub_block = golden.Int("sub_block"),
                   .dtype = *ParseDType(golden.Text("kv_dtype"))};
  made.num_query_heads = golden.Int("num_query_heads");
  made.gate = golden.Text("gate") == "silu" ? Gate::kSilu : Gate::kNone;
  made.beta = golden.Float("beta");
  const int32_t num_keys = golden.Int("tokens");
  SequenceCase sequence;
  sequence.position = num_keys - 1;
  sequence.attention = {.offset = golden.Float("offset"),
                        .z = golden.Float("z"),
                        .pinned_blocks = golden.Int("pinned_blocks"),
                        .rescue_chunk = golden.Int("rescue_chunk"),
                        .uniform_floor = golden.Text("floor") == "uniform"};
  sequence.k = golden.Rows("k", num_keys);
  sequence.v = golden.Rows("v", num_keys);
  sequence.thresholds = golden.Array<float>("tau");
  made.sequences = {sequence};
  made.q = golden.Rows("q", 1);
  return made;
}

// admitted [HQ, N] of a single row.
std::vector<uint8_t> Admitted(const AttentionCase& made, const AttentionResult& result) {
  const int32_t n = made.sequences[0].num_keys() / made.geometry.block_size;
  std::vector<uint8_t> admitted(static_cast<size_t>(made.num_query_heads * n));
  for (int32_t h = 0; h < made.num_query_heads; ++h) {
    for (const auto& [block, heads] : result.selection[static_cast<size_t>(h / made.group())]) {
      admitted[static_cast<size_t>(h * n) + block] = heads >> (h % made.group()) & 1;
    }
  }
  return admitted;
}

double Tolerance(const std::string& backend, DType kv, DType out) {
  if (backend == "reference") return 1e-6;
  return (kv == DType::kFloat32 ? 1e-5 : 2e-3) + RoundingError(out);
}

TEST(GoldenDecodeFiles, AreThere) {
  EXPECT_FALSE(GoldenCases(Folder()).empty()) << Folder();
}

class GoldenDecode : public ::testing::TestWithParam<std::tuple<BackendUnderTest, std::string>> {};

TEST_P(GoldenDecode, AdmitsCountsAndAttendsAsExpected) {
  const auto& [backend, name] = GetParam();
  if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
  const GoldenFile golden(name);
  const AttentionCase made = ToCase(golden);
  Device device(backend);
  const AttentionResult result = AttentionStep(device, made).Run();

  EXPECT_EQ(Admitted(made, result), golden.Array<uint8_t>("admitted"));
  const std::vector<int64_t> attended(result.tokens_attended.begin(), result.tokens_attended.end());
  const std::vector<int64_t> read(result.tokens_read.begin(), result.tokens_read.end());
  EXPECT_EQ(attended, golden.Array<int64_t>("tokens_per_head"));
  EXPECT_EQ(read, golden.Array<int64_t>("tokens_per_kv_head"));

  const std::vector<double> out = golden.Array<double>("out");
  const auto d = static_cast<size_t>(made.geometry.head_dim);
  double worst = 0.0;
  for (size_t h = 0; h < static_cast<size_t>(made.num_query_heads); ++h) {
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = h * d; i < (h + 1) * d; ++i) {
      error += (result.out.data[i] - out[i]) * (result.out.data[i] - out[i]);
      norm += out[i] * out[i];
    }
    const double relative = std::sqrt(error / norm);
    EXPECT_LT(relative, Tolerance(backend.name, made.geometry.dtype, device.activation_dtype()))
        << "head " << h;
    worst = std::max(worst, relative);
  }
  RecordProperty("relative_error", std::to_string(worst * 1e9) + "e-9 " + golden.Text("kv_dtype"));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenDecode,
                         Combine(ValuesIn(AllBackends()), ValuesIn(GoldenCases(Folder()))),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                         });

}  // namespace
}  // namespace eta::testing
