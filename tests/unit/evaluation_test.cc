// What eta-eval accepts, refuses and computes, on files small enough to read.

#include <lzma.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "calibration/evaluation/case_tensors.h"
#include "calibration/evaluation/comparison.h"
#include "calibration/evaluation/interval.h"
#include "calibration/evaluation/kernel_case.h"
#include "calibration/evaluation/profile_file.h"
#include "calibration/evaluation/score.h"
#include "calibration/evaluation/text_source.h"
#include "calibration/evaluation/windows.h"
#include "engine/checkpoint.h"
#include "engine/error.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder that goes away with the test.
class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() {
    std::string pattern = ::testing::TempDir() + "/eta-evaluation-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~EvaluationTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string Write(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
    return Path(name);
  }

 private:
  std::string folder_;
};

std::string Xz(const std::string& text) {
  std::string packed(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                text.size(), reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
            LZMA_OK);
  packed.resize(size);
  return packed;
}

std::vector<std::string> Documents(TextSource& source) {
  std::vector<std::string> documents;
  while (true) {
    const auto document = source.Next();
    EXPECT_TRUE(document.ok()) << document.status();
    if (!document.ok() || !document->has_value()) return documents;
    documents.push_back(**document);
  }
}

// The first error of a source.
absl::Status Failure(TextSource& source) {
  while (true) {
    const auto document = source.Next();
    if (!document.ok()) return document.status();
    if (!document->has_value()) return absl::OkStatus();
  }
}

using TextSourceTest = EvaluationTest;

TEST_F(TextSourceTest, JsonLinesAreDocumentsInFileOrder) {
  const std::string lines =
      "{\"id\": 1, \"text\": \"one\\ntwo\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"caf\\u00e9\"}";
  const auto source = TextSource::Open(Write("a.jsonl", lines));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Documents(**source), ElementsAre("one\ntwo", "", "caf\xc3\xa9"));
}

TEST_F(TextSourceTest, PlainTextIsOneDocumentNewlinesIncluded) {
  const auto source = TextSource::Open(Write("a.txt", "one\ntwo\n"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Documents(**source), ElementsAre("one\ntwo\n"));
}

TEST_F(TextSourceTest, CompressedTextReadsAsTheTextItself) {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i) + " ";
  const std::string packed = Xz("{\"text\": \"" + text + "\"}\n") + Xz("{\"text\": \"b\"}\n");
  const auto source = TextSource::Open(Write("a.jsonl.xz", packed));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Documents(**source), ElementsAre(text, "b"));
}

TEST_F(TextSourceTest, CutCompressedTextIsRefusedNotShortened) {
  std::string packed = Xz("{\"text\": \"a\"}\n");
  packed.resize(packed.size() - 9);
  const auto source = TextSource::Open(Write("a.jsonl.xz", packed));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Failure(**source).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TextSourceTest, UnpackingStaysWithinItsMemory) {
  const auto source =
      TextSource::Open(Write("a.txt.xz", Xz("text")), {.max_decoder_bytes = uint64_t{1} << 16});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Failure(**source).message(), HasSubstr("memory"));
}

TEST_F(TextSourceTest, BadLinesAreNamed) {
  for (const char* line :
       {"not json", "[1]", "{\"body\": \"x\"}", "{\"text\": 7}", "{\"text\": \"\xff\"}"}) {
    const auto source =
        TextSource::Open(Write("a.jsonl", std::string("{\"text\": \"fine\"}\n") + line + "\n"));
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT(Failure(**source).message(), HasSubstr("line 2")) << line;
  }
}

TEST_F(TextSourceTest, SizesAreBounded) {
  const std::string path = Write("a.txt", std::string(100, 'x'));
  const auto document = TextSource::Open(path, {.max_document_bytes = 99});
  EXPECT_THAT(Failure(**document).message(), HasSubstr("99 bytes"));
  const auto total = TextSource::Open(path, {.max_total_bytes = 99});
  EXPECT_THAT(Failure(**total).message(), HasSubstr("99 bytes"));
  const auto both = TextSource::Open(path, {.max_document_bytes = 100, .max_total_bytes = 100});
  EXPECT_TRUE(Failure(**both).ok());
}

TEST_F(TextSourceTest, OtherNamesAndMissingFilesAreRefused) {
  EXPECT_EQ(TextSource::Open(Write("a.parquet", "x")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TextSource::Open(Path("missing.txt")).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(Path("folder.txt"));
  EXPECT_EQ(TextSource::Open(Path("folder.txt")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Interval, CoversTheMeanAsStudentWouldHaveIt) {
  // Block means 1, 2, 3, 4: deviation sqrt(5/3), t(0.975, 3) = 3.1824.
  std::vector<float> values;
  for (int block = 1; block <= 4; ++block) {
    values.insert(values.end(), kIntervalBlock, static_cast<float>(block));
  }
  const MeanInterval interval = BlockMeanInterval(values);
  EXPECT_DOUBLE_EQ(interval.mean, 2.5);
  ASSERT_TRUE(interval.half_width.has_value());
  EXPECT_NEAR(*interval.half_width, 3.1824 * std::sqrt(5.0 / 3.0) / 2.0, 0.01);
}

TEST(Interval, IsNotInventedFromTooFewBlocks) {
  const std::vector<float> values(kMinIntervalBlocks * kIntervalBlock - 1, 1.0f);
  EXPECT_FALSE(BlockMeanInterval(values).half_width.has_value());
  EXPECT_DOUBLE_EQ(BlockMeanInterval(values).mean, 1.0);
}

class WindowsTest : public EvaluationTest {
 protected:
  WindowsTest() {
    const auto checkpoint = Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m");
    const auto config = ParseModelConfig(checkpoint->config_json());
    tokenizer_ = *Tokenizer::Load(checkpoint->tokenizer_model(), *config);
  }

  absl::StatusOr<std::vector<std::vector<int32_t>>> Cut(const std::string& lines, int32_t context,
                                                        int32_t max_windows) {
    const auto source = TextSource::Open(Write("a.jsonl", lines));
    return ReadWindows(**source, *tokenizer_, context, max_windows);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(WindowsTest, DocumentsFollowEachOtherBetweenBeginAndEndOfText) {
  const auto windows = Cut("{\"text\": \"one\"}\n{\"text\": \"two\"}\n", 3, 0);
  ASSERT_TRUE(windows.ok()) << windows.status();
  std::vector<int32_t> all = *tokenizer_->Encode("one", true);
  EXPECT_EQ(all.front(), tokenizer_->bos_id());
  all.push_back(tokenizer_->eos_ids().front());
  const std::vector<int32_t> second = *tokenizer_->Encode("two", true);
  all.insert(all.end(), second.begin(), second.end());
  all.push_back(tokenizer_->eos_ids().front());
  const auto fitting = (all.size() - 1) / 3;
  ASSERT_EQ(windows->size(), fitting);
  for (size_t i = 0; i < fitting; ++i) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(3 * i);
    EXPECT_EQ((*windows)[i], std::vector<int32_t>(begin, begin + 4));
  }
}

TEST_F(WindowsTest, NoMoreIsReadThanWindowsAreWanted) {
  const auto windows = Cut("{\"text\": \"one two three four five\"}\nnot json\n", 2, 2);
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(windows->size(), 2u);
  EXPECT_EQ((*windows)[0].back(), (*windows)[1].front());
}

TEST_F(WindowsTest, TextThatFillsNoWindowIsAnError) {
  const auto windows = Cut("{\"text\": \"short\"}\n", 4096, 0);
  EXPECT_EQ(GetErrorDetail(windows.status()).field, "context");
}

TEST_F(WindowsTest, OfOneDocumentEachTheyBeginAsAPromptDoes) {
  const std::string lines =
      "{\"text\": \"one two three four five six\"}\n{\"text\": \"seven\"}\n"
      "{\"text\": \"eight nine ten eleven twelve\"}\n";
  const auto cut = [&](int32_t max_windows) {
    const auto source = TextSource::Open(Write("a.jsonl", lines));
    return ReadDocumentWindows(**source, *tokenizer_, 3, max_windows);
  };
  const auto all = cut(0);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_GE(all->size(), 3u);
  for (const auto& window : *all) {
    EXPECT_EQ(window.size(), 4u);
    EXPECT_EQ(window.front(), tokenizer_->bos_id());
    EXPECT_EQ(std::count(window.begin(), window.end(), tokenizer_->bos_id()), 1);
  }
  const std::vector<int32_t> first = *tokenizer_->Encode("one two three four five six", true);
  EXPECT_TRUE(std::equal(all->front().begin(), all->front().end(), first.begin()));
  const auto two = cut(2);
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[0], all->front());
  EXPECT_NE((*two)[1], (*all)[1]);  // spread, not the first two
}

using ProfileFileTest = EvaluationTest;

TEST_F(ProfileFileTest, ThresholdsAreReadLayerByLayer) {
  const auto profile =
      ReadProfileFile(Write("p.json", R"({"name": "wiki", "thresholds": [[0.5, -1], [2, 3.25]]})"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->name, "wiki");
  EXPECT_EQ(profile->num_layers, 2);
  EXPECT_EQ(profile->num_query_heads, 2);
  EXPECT_THAT(profile->thresholds, ElementsAre(0.5f, -1.0f, 2.0f, 3.25f));
}

TEST_F(ProfileFileTest, AnythingElseIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"name": "a"})", R"({"name": "", "thresholds": [[1]]})",
        R"({"name": "a", "thresholds": []})", R"({"name": "a", "thresholds": [[]]})",
        R"({"name": "a", "thresholds": [[1], [1, 2]]})", R"({"name": "a", "thresholds": [["1"]]})",
        R"({"name": "a", "thresholds": [[1e60]]})", R"({"name": "a", "thresholds": [[1]], "z": 2})",
        R"({"name": "a", "name": "b", "thresholds": [[1]]})"}) {
    EXPECT_EQ(ReadProfileFile(Write("p.json", text)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

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
    const auto kernel_case = ReadKernelCase(Save());
    ASSERT_TRUE(kernel_case.ok()) << kernel_case.status();
    const auto backend = MakeBackend({.name = name});
    if (absl::IsUnavailable(backend.status())) continue;  // cuda, where there is no device
    const auto result = RunKernelCase(*kernel_case, **backend);
    ASSERT_TRUE(result.ok()) << result.status();
    // Two full blocks and a tail of 8; thresholds of 100 leave the pinned block only.
    EXPECT_THAT(result->admitted, ElementsAre(1, 1, 1, 1, 0, 1, 0, 1)) << name;
    EXPECT_THAT(result->tokens_per_head, ElementsAre(40, 40, 24, 24)) << name;
    EXPECT_THAT(result->tokens_per_kv_head, ElementsAre(40, 24)) << name;
  }
}

TEST_F(KernelCaseTest, UngatedAdmitAllIsPlainSoftmaxAttention) {
  metadata_["gate"] = "none";
  tau_.assign(4, -100.0f);
  tensors_["tau"] = AsTensor(DType::kFloat32, {4}, tau_);
  const auto backend = MakeBackend({.name = "reference"});
  const auto result = RunKernelCase(*ReadKernelCase(Save()), **backend);
  ASSERT_TRUE(result.ok()) << result.status();
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
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(result->out[head * 16 + i], out[i] / sum, 1e-6);
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
  EXPECT_EQ(narrow->admitted, wide->admitted);
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
                               .admitted = std::vector<uint8_t>(4 * 2),
                               .tokens_per_head = {40, 40, 24, 24},
                               .tokens_per_kv_head = {40, 24}};
  ASSERT_TRUE(WriteKernelResult(*kernel_case, result, Path("result.safetensors")).ok());
  const auto comparison = CompareFiles(Path("case.safetensors"), Path("result.safetensors"), 0.02);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_FALSE(comparison->equal);
  EXPECT_THAT(comparison->report, HasSubstr("ok       out"));
  EXPECT_THAT(comparison->report, HasSubstr("MISMATCH tokens_per_head: 1 elements differ"));
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
  const auto score_case = read(good);
  ASSERT_TRUE(score_case.ok()) << score_case.status();
  EXPECT_EQ(score_case->rows(), 1);
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
  auto floor = good;
  floor["mode"] = "floor";
  EXPECT_EQ(GetErrorDetail(read(floor).status()).field, "floor");
}

int ExitCode(const std::string& arguments) {
  const int status =
      std::system((ETA_BINARY_DIR "/eta-eval " + arguments + " > /dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

using CommandLineTest = KernelCaseTest;

TEST_F(CommandLineTest, ExitCodesTellUsageFromResults) {
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

TEST_F(CommandLineTest, PerplexityRefusesWhatItWouldNotRead) {
  const std::string model = "perplexity --model=" ETA_SOURCE_DIR "/models/eta-27m";
  const std::string text = " --text=" + Write("a.txt", "One day the miller went to the river.");
  const std::string profile = Write("p.json", R"({"name": "p", "thresholds": [[1, 2]]})");
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=full --attention=dynamic"), 0);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=full --z=2"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --z=nan"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --prefill=8"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --kv_dtype=int8"), 2);
  const std::string narrow = " --kv_dtype=float8_e4m3 --index_dtype=int8";
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic" + narrow), 2);  // not cpu
  EXPECT_EQ(
      ExitCode(model + text + " --context=8 --attention=dynamic --backend=reference" + narrow), 0);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=" + profile), 2);  // other shape
  EXPECT_EQ(ExitCode(model + text + " --context=4096 --attention=full"), 2);     // text too short
  EXPECT_EQ(ExitCode(model + text + " --context=0 --attention=full"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8"), 2);
}

}  // namespace
}  // namespace eta
