// Cases in files, which eta-eval computes and compares: one attention step, a scored sequence.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/cases/comparison.h"
#include "calibration/evaluation/cases/kernel_case.h"
#include "calibration/evaluation/cases/score.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/golden/golden_folder.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A decode step of 40 tokens, 4 query heads on 2 KV heads of 16, blocks of 16.
class KernelCaseTest : public EvaluationTest {
 protected:
  static constexpr int64_t kTokens = 40;

  KernelCaseTest() {
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = std::sin(static_cast<float>(i));
    for (size_t i = 0; i < k_.size(); ++i) k_[i] = std::cos(0.7f * static_cast<float>(i));
    for (size_t i = 0; i < v_.size(); ++i) v_[i] = std::sin(0.3f * static_cast<float>(i));
    tensors_ = {{"q", AsTensor(DType::kFloat32, {4, 16}, q_)},
                {"k", AsTensor(DType::kFloat32, {kTokens, 2, 16}, k_)},
                {"v", AsTensor(DType::kFloat32, {kTokens, 2, 16}, v_)},
                {"tau", AsTensor(DType::kFloat32, {4}, tau_)}};
  }

  std::string Save() const {
    EXPECT_TRUE(WriteSafetensors(Path("case.safetensors"), metadata_, tensors_).ok());
    return Path("case.safetensors");
  }
  std::string FieldRefused() const { return GetErrorDetail(ReadKernelCase(Save()).status()).field; }

  std::vector<float> q_ = std::vector<float>(4 * 16);
  std::vector<float> k_ = std::vector<float>(kTokens * 2 * 16);
  std::vector<float> v_ = std::vector<float>(kTokens * 2 * 16);
  std::vector<float> tau_ = {-100.0f, -100.0f, 100.0f, 100.0f};
  std::map<std::string, std::string> metadata_ = {
      {"block_size", "16"}, {"sub_block", "4"},     {"z", "2.0"},     {"offset", "0.0"},
      {"beta", "5.0"},      {"pinned_blocks", "1"}, {"gate", "silu"}, {"rescue_chunk", "8"},
      {"floor", "none"},    {"kv_dtype", "float32"}};
  std::map<std::string, TensorToWrite> tensors_;
};

TEST_F(KernelCaseTest, HeadsReadWhatTheirThresholdsAdmit) {
  for (const std::string& name : BackendNames()) {
    const auto kernel_case = ReadKernelCase(Save()).value();
    const auto backend = MakeBackend({.name = name});
    if (absl::IsUnavailable(backend.status())) continue;  // cuda, where there is no device
    const auto result = RunKernelCase(kernel_case, **backend).value();
    // Two full blocks and a tail of 8; thresholds of 100 leave the pinned block only.
    EXPECT_THAT(result.used, ElementsAre(1, 1, 1, 1, 0, 1, 0, 1)) << name;
    EXPECT_THAT(result.tokens_per_head, ElementsAre(40, 40, 24, 24)) << name;
    EXPECT_THAT(result.tokens_per_kv_head, ElementsAre(40, 24)) << name;
  }
}

TEST_F(KernelCaseTest, UngatedAdmitAllIsPlainSoftmaxAttention) {
  metadata_["gate"] = "none";
  tau_.assign(4, -100.0f);
  tensors_["tau"] = AsTensor(DType::kFloat32, {4}, tau_);
  const auto backend = MakeBackend({.name = "reference"});
  const auto result = RunKernelCase(*ReadKernelCase(Save()), **backend).value();
  for (size_t head = 0; head < 4; ++head) {
    std::vector<double> out(16);
    double sum = 0.0;
    for (size_t t = 0; t < kTokens; ++t) {
      const size_t row = (t * 2 + head / 2) * 16;
      double score = 0.0;
      for (size_t i = 0; i < 16; ++i) score += double{q_[head * 16 + i]} * k_[row + i] / 4.0;
      const double weight = std::exp(score);
      sum += weight;
      for (size_t i = 0; i < 16; ++i) out[i] += weight * v_[row + i];
    }
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(result.out[head * 16 + i], out[i] / sum, 1e-6);
  }
}

TEST_F(KernelCaseTest, EightBitsRoundWhatTheCaseHoldsAsFloats) {
  const auto run = [&](const char* name) {
    const auto backend = MakeBackend({.name = name});
    const auto kernel_case = ReadKernelCase(Save());
    EXPECT_TRUE(kernel_case.ok()) << kernel_case.status();
    return RunKernelCase(*kernel_case, **backend);
  };
  const auto wide = run("reference");
  metadata_["kv_dtype"] = "float8_e4m3";
  metadata_["index_dtype"] = "int8";
  const auto narrow = run("reference");
  ASSERT_TRUE(wide.ok() && narrow.ok()) << narrow.status();
  EXPECT_EQ(narrow->used, wide->used);
  EXPECT_NE(narrow->out, wide->out);
  for (size_t i = 0; i < wide->out.size(); ++i) EXPECT_NEAR(narrow->out[i], wide->out[i], 0.05);
  EXPECT_EQ(run("cpu").status().code(), absl::StatusCode::kInvalidArgument);

  metadata_["index_dtype"] = "float8_e4m3";
  EXPECT_EQ(FieldRefused(), "index_dtype");
}

TEST_F(KernelCaseTest, EveryParameterIsRequiredAndChecked) {
  const auto good = metadata_;
  for (const auto& [field, text] : good) {
    metadata_ = good;
    metadata_.erase(field);
    EXPECT_EQ(FieldRefused(), field) << "missing";
    for (const char* bad : {"", "nan", "-1e9", "1e9", "7 ", "0x10", "inf"}) {
      metadata_[field] = bad;
      EXPECT_EQ(FieldRefused(), field) << bad;
    }
  }
}

TEST_F(KernelCaseTest, WhatCameAfterThePaperMayBeMissingAndIsChecked) {
  const auto good = metadata_;
  for (const auto& [field, bads] :
       std::map<std::string, std::vector<std::string>>{{"sink_blocks", {"", "-1", "nan", "1e9"}},
                                                       {"reads", {"", "both"}},
                                                       {"index", {"", "quest"}},
                                                       {"thresholds", {"", "predicted"}}}) {
    for (const std::string& bad : bads) {
      metadata_ = good;
      metadata_[field] = bad;
      EXPECT_EQ(FieldRefused(), field) << bad;
    }
  }
  metadata_ = good;
  metadata_["index"] = "outlier";
  metadata_["record"] = "float16";
  EXPECT_EQ(FieldRefused(), "record");
  metadata_["record"] = "int8";
  metadata_["thresholds"] = "relative";
  EXPECT_EQ(FieldRefused(), "relative_c");
  metadata_["relative_c"] = "-3.9";
  EXPECT_EQ(FieldRefused(), "thresholds") << "there is a gate";
  metadata_["gate"] = "none";
  EXPECT_EQ(FieldRefused(), "");
  metadata_["index"] = "moment";
  EXPECT_EQ(FieldRefused(), "thresholds") << "records do not tell of outliers";
}

TEST_F(KernelCaseTest, SpecialKeysAndTheMetricAreTensorsThatFit) {
  std::vector<uint8_t> special(kTokens);
  special[3] = 1;
  tensors_["special"] = AsTensor(DType::kUInt8, {kTokens}, special);
  const auto kernel_case = ReadKernelCase(Save()).value();
  EXPECT_EQ(kernel_case.tempered[0], 8u);
  special[5] = 2;
  EXPECT_EQ(FieldRefused(), "special");
  special.pop_back();
  tensors_["special"] = AsTensor(DType::kUInt8, {kTokens - 1}, special);
  EXPECT_EQ(FieldRefused(), "special");
  tensors_.erase("special");
  metadata_["index"] = "outlier";
  const std::vector<float> metric(2 * 16 * 15);
  tensors_["metric"] = AsTensor(DType::kFloat32, {2, 16, 15}, metric);
  EXPECT_EQ(FieldRefused(), "metric");
}

// The files of tests/golden, unrounded records on the reference.
TEST_F(KernelCaseTest, GoldenCasesComeOutAsExpected) {
  const auto backend = MakeBackend({.name = "reference"});
  const std::string folder = ETA_SOURCE_DIR "/tests/golden/decode/";
  const std::vector<std::string> cases = testing::GoldenCases(folder);
  for (const std::string& name : cases) {
    const std::string path = folder + name + ".safetensors";
    const auto kernel_case = ReadKernelCase(path);
    ASSERT_TRUE(kernel_case.ok()) << path << ": " << kernel_case.status();
    const auto result = RunKernelCase(*kernel_case, **backend);
    ASSERT_TRUE(result.ok()) << path << ": " << result.status();
    ASSERT_TRUE(WriteKernelResult(*kernel_case, *result, Path("result.safetensors")).ok());
    const auto comparison = CompareFiles(path, Path("result.safetensors"), 1e-5).value();
    EXPECT_TRUE(comparison.equal) << path << "\n" << comparison.report;
    EXPECT_EQ(comparison.report.find("admitted") != std::string::npos,
              !kernel_case->attention.shared_reads);
  }
  EXPECT_GT(cases.size(), 20u);
}

TEST_F(KernelCaseTest, ParametersMustAgreeWithEachOther) {
  metadata_["sub_block"] = "5";
  EXPECT_EQ(FieldRefused(), "sub_block");
  metadata_["sub_block"] = "4";
  metadata_["gate"] = "none";
  metadata_["floor"] = "uniform";
  EXPECT_EQ(FieldRefused(), "floor");
  metadata_["gate"] = "silu";
  metadata_["tokens"] = "41";
  EXPECT_EQ(FieldRefused(), "tokens");
}

TEST_F(KernelCaseTest, TensorsOfOtherShapesAreRefused) {
  const auto good = tensors_;
  const std::vector<float> values(4096);
  const auto with = [&](const std::string& name, const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    tensors_ = good;
    tensors_[name] = {DType::kFloat32, shape, std::as_bytes(std::span(values).first(count))};
    return FieldRefused();
  };
  EXPECT_EQ(with("q", {3, 16}), "q");  // 3 heads over 2 KV heads
  EXPECT_EQ(with("q", {4, 15}), "k");  // k has 16 dimensions
  EXPECT_EQ(with("q", {0, 16}), "q");
  EXPECT_EQ(with("q", {4, 2, 8}), "q");
  EXPECT_EQ(with("k", {0, 2, 16}), "k");  // no token at all
  EXPECT_EQ(with("v", {39, 2, 16}), "v");
  EXPECT_EQ(with("tau", {5}), "tau");
  tensors_ = good;
  tensors_.erase("v");
  EXPECT_EQ(FieldRefused(), "v");
}

TEST_F(KernelCaseTest, NumbersThatAreNoneAreRefused) {
  tau_[2] = std::nanf("");
  EXPECT_EQ(FieldRefused(), "tau");
  tau_[2] = 0.0f;
  k_[77] = INFINITY;
  EXPECT_EQ(FieldRefused(), "k");
}

TEST_F(KernelCaseTest, ResultIsComparedWithTheExpectationTensorByTensor) {
  const std::vector<double> out(4 * 16, 1.0);
  const std::vector<int64_t> counts = {40, 40, 24, 23};
  tensors_["out"] = AsTensor(DType::kFloat64, {4, 16}, out);
  tensors_["tokens_per_head"] = AsTensor(DType::kInt64, {4}, counts);
  const auto kernel_case = ReadKernelCase(Save());
  const KernelResult result = {.out = std::vector<float>(4 * 16, 1.01f),
                               .used = std::vector<uint8_t>(4 * 2),
                               .tokens_per_head = {40, 40, 24, 24},
                               .tokens_per_kv_head = {40, 24}};
  ASSERT_TRUE(WriteKernelResult(*kernel_case, result, Path("result.safetensors")).ok());
  const auto comparison =
      CompareFiles(Path("case.safetensors"), Path("result.safetensors"), 0.02).value();
  EXPECT_FALSE(comparison.equal);
  EXPECT_THAT(comparison.report, HasSubstr("ok       out"));
  EXPECT_THAT(comparison.report, HasSubstr("MISMATCH tokens_per_head: 1 elements differ"));
}

using ScoreCaseTest = EvaluationTest;

TEST_F(ScoreCaseTest, ParametersAreChecked) {
  const std::map<std::string, std::string> good = {
      {"prompt_tokens", "2"}, {"mode", "eta"},   {"block_size", "64"}, {"sub_block", "4"},
      {"z", "2.0"},           {"floor", "none"}, {"offset", "0.0"},    {"pinned_blocks", "2"},
      {"rescue_chunk", "8"},  {"beta", "5.0"}};
  const std::vector<int32_t> tokens = {1, 5, 9};
  const auto read = [&](const std::map<std::string, std::string>& metadata) {
    const std::string path = Path("case.safetensors");
    EXPECT_TRUE(
        WriteSafetensors(path, metadata, {{"tokens", AsTensor(DType::kInt32, {3}, tokens)}}).ok());
    return ReadScoreCase(path);
  };
  const auto score_case = read(good).value();
  EXPECT_EQ(score_case.rows(), 1);
  for (const auto& [field, bad] :
       std::vector<std::pair<std::string, std::string>>{{"prompt_tokens", "0"},
                                                        {"prompt_tokens", "4"},
                                                        {"mode", "sparse"},
                                                        {"block_size", "0"},
                                                        {"sub_block", "65"},
                                                        {"rescue_chunk", "0"},
                                                        {"z", "-1"},
                                                        {"floor", "yes"},
                                                        {"beta", "nan"}}) {
    auto metadata = good;
    metadata[field] = bad;
    EXPECT_EQ(GetErrorDetail(read(metadata).status()).field, field) << bad;
  }
  auto frozen = good;
  frozen["mode"] = "frozen";
  EXPECT_EQ(GetErrorDetail(read(frozen).status()).field, "profile");
  auto relative = good;
  relative["mode"] = "relative";
  EXPECT_EQ(GetErrorDetail(read(relative).status()).field, "relative_c");
  relative["relative_c"] = "-3.9";
  relative["sink_blocks"] = "1";
  relative["reads"] = "shared";
  const auto relative_case = read(relative).value();
  EXPECT_TRUE(relative_case.attention.relative && relative_case.attention.shared_reads);
  EXPECT_EQ(relative_case.attention.sink_blocks, 1);
  relative["thresholds"] = "given";
  EXPECT_EQ(GetErrorDetail(read(relative).status()).field, "thresholds");
  auto special = good;
  special["special_keys"] = "temper";
  EXPECT_TRUE(read(special)->temper_special);
  special["special_keys"] = "yes";
  EXPECT_EQ(GetErrorDetail(read(special).status()).field, "special_keys");
  auto floor = good;
  floor["mode"] = "floor";
  EXPECT_EQ(GetErrorDetail(read(floor).status()).field, "floor");
}

TEST_F(KernelCaseTest, ExitCodesTellUsageFromResults) {
  const std::string out = " --out=" + Path("result.safetensors");
  const std::string good = "kernel-case --case=" + Save() + out;
  EXPECT_EQ(ExitCode("--help"), 0);
  EXPECT_EQ(ExitCode("perplexity --help"), 0);
  EXPECT_EQ(ExitCode(""), 2);
  EXPECT_EQ(ExitCode("kernel-case"), 2);
  EXPECT_EQ(ExitCode(good), 0);
  EXPECT_EQ(ExitCode(good + " --backend=abacus"), 2);
  EXPECT_EQ(ExitCode(good + " --sides=2"), 2);
  EXPECT_EQ(ExitCode(good + " --tolerance=nan"), 2);
  EXPECT_EQ(ExitCode("kernel-case --case=" + Path("missing.safetensors") + out), 2);
  EXPECT_EQ(ExitCode(good + " --tolerance=1e-3"), 2);  // nothing to compare with
  const std::vector<int64_t> wrong = {1, 1, 1, 1};
  tensors_["tokens_per_head"] = AsTensor(DType::kInt64, {4}, wrong);
  EXPECT_EQ(ExitCode("kernel-case --case=" + Save() + out + " --tolerance=1e-3"), 1);
}

}  // namespace
}  // namespace eta
