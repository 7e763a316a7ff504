// One decode step against numbers of an independent float64 implementation of eta-semantics: the
// blocks that every head admits, the token counts and the output. The files stand in decode/;
// ETA_GOLDEN_DECODE_DIR names another folder of such files.
//
// A file holds q [HQ, d], k and v [T, HKV, d], tau [HQ], and what is expected: out [HQ, d] float64,
// admitted [HQ, N], tokens_per_head [HQ], tokens_per_kv_head [HKV]; its metadata the parameters.
// Files of what came after the paper also hold metric [HKV, d, d], special [T] and used [HQ, N].
// Outlier records are not rounded, so the reference alone can run them, unless `record` is int8.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_array.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/near_ties.h"

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
  // The value, or `absent` where a file of the paper's cases has no such key.
  std::string Text(const std::string& key, const std::string& absent) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? absent : found->second;
  }
  int32_t Int(const std::string& key) const { return std::stoi(Text(key)); }
  float Float(const std::string& key) const { return std::stof(Text(key)); }

  bool Has(const std::string& name) const { return file_.tensors().contains(name); }

  template <typename T>
  std::vector<T> Array(const std::string& name) const {
    return GoldenArray<T>(file_, name);
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

AttentionCase ToCase(const GoldenFile& golden, DType index_dtype) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = golden.Int("num_kv_heads"),
                   .head_dim = golden.Int("head_dim"),
                   .block_size = golden.Int("block_size"),
                   .sub_block = golden.Int("sub_block"),
                   .dtype = *ParseDType(golden.Text("kv_dtype"))};
  if (golden.Text("index", "moment") == "outlier") {
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = index_dtype;
    made.index_metric = golden.Rows("metric", golden.Int("num_kv_heads") * golden.Int("head_dim"));
  }
  made.num_query_heads = golden.Int("num_query_heads");
  made.gate = golden.Text("gate") == "silu" ? Gate::kSilu : Gate::kNone;
  made.beta = golden.Float("beta");
  const int32_t num_keys = golden.Int("tokens");
  SequenceCase sequence;
  sequence.position = num_keys - 1;
  sequence.attention = {.offset = golden.Float("offset"),
                        .z = golden.Float("z"),
                        .pinned_blocks = golden.Int("pinned_blocks"),
                        .sink_blocks = std::stoi(golden.Text("sink_blocks", "0")),
                        .rescue_chunk = golden.Int("rescue_chunk"),
                        .uniform_floor = golden.Text("floor") == "uniform",
                        .shared_reads = golden.Text("reads", "own") == "shared",
                        .admit_all = golden.Text("name", "") == "special_full",
                        .relative = golden.Text("thresholds", "given") == "relative",
                        .relative_c = std::stof(golden.Text("relative_c", "0"))};
  sequence.k = golden.Rows("k", num_keys);
  sequence.v = golden.Rows("v", num_keys);
  sequence.thresholds = golden.Array<float>("tau");
  if (golden.Has("special")) {
    const std::vector<uint8_t> special = golden.Array<uint8_t>("special");
    sequence.tempered.resize(special.size() / 64 + 1);
    for (size_t t = 0; t < special.size(); ++t) {
      sequence.tempered[t / 64] |= uint64_t{special[t]} << (t % 64);
    }
  }
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

// Relative to the output's norm, the largest error of a head.
double WorstError(const AttentionCase& made, const AttentionResult& result,
                  const std::vector<double>& out) {
  const auto d = static_cast<size_t>(made.geometry.head_dim);
  double worst = 0.0;
  for (size_t h = 0; h < static_cast<size_t>(made.num_query_heads); ++h) {
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = h * d; i < (h + 1) * d; ++i) {
      error += (result.out.data[i] - out[i]) * (result.out.data[i] - out[i]);
      norm += out[i] * out[i];
    }
    worst = std::max(worst, std::sqrt(error / norm));
  }
  return worst;
}

// 8-bit records of kind outlier: a constant threshold admits what it does with unrounded ones, and
// all backends agree.
void ExpectRoundedToAdmitNoLess(const GoldenFile& golden, const BackendUnderTest& backend) {
  const AttentionCase made = ToCase(golden, DType::kInt8);
  Device judge({"reference"});
  Device device(backend);
  AttentionStep wanted(judge, made);
  const AttentionResult want = wanted.Run();
  const AttentionResult got = AttentionStep(device, made).Run();
  EXPECT_EQ(SelectionDifferences(made, wanted, got, want), "");
  const AttentionOptions& options = made.sequences[0].attention;
  if (options.relative) return;
  const std::vector<uint8_t> exact = golden.Array<uint8_t>("used");
  const std::vector<uint8_t> admitted = Admitted(made, got);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_GE(admitted[i], exact[i]) << "entry " << i;
}

TEST_P(GoldenDecode, AdmitsCountsAndAttendsAsExpected) {
  const auto& [backend, name] = GetParam();
  if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
  const GoldenFile golden(name);
  const bool outlier = golden.Text("index", "moment") == "outlier";
  const bool rounded = golden.Text("record", "float32") == "int8";
  if (outlier) ExpectRoundedToAdmitNoLess(golden, backend);
  if (outlier && !rounded && backend.name != "reference") return;  // its records are rounded
  const AttentionCase made = ToCase(golden, rounded ? DType::kInt8 : DType::kFloat32);
  Device device(backend);
  const AttentionResult result = AttentionStep(device, made).Run();

  const bool full = made.sequences[0].attention.admit_all;
  EXPECT_EQ(Admitted(made, result),
            golden.Array<uint8_t>(golden.Has("used") ? "used" : "admitted"));
  const std::vector<int64_t> attended(result.tokens_attended.begin(), result.tokens_attended.end());
  const std::vector<int64_t> read(result.tokens_read.begin(), result.tokens_read.end());
  EXPECT_EQ(attended, golden.Array<int64_t>("tokens_per_head"));
  EXPECT_EQ(read, golden.Array<int64_t>("tokens_per_kv_head"));
  EXPECT_TRUE(!full || read[0] == made.sequences[0].num_keys());

  const double worst = WorstError(made, result, golden.Array<double>("out"));
  EXPECT_LT(worst, Tolerance(backend.name, made.geometry.dtype, device.activation_dtype()));
  RecordProperty("relative_error", std::to_string(worst * 1e9) + "e-9 " + golden.Text("kv_dtype"));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenDecode,
                         Combine(ValuesIn(AllBackends()), ValuesIn(GoldenCases(Folder()))),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                         });

}  // namespace
}  // namespace eta::testing
