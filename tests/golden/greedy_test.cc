// Greedy text of the embedded model on a GPU against the CPU's: 20 prompts from a story, 200 tokens
// each. Where the two first part, the CPU must have held both tokens for about equally likely.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "kernels/backends/make_backend.h"

namespace eta {
namespace {

constexpr size_t kPrompts = 20;
constexpr size_t kNewTokens = 200;
constexpr size_t kLongestPrompt = 864;
constexpr int32_t kMaxContext = 1088;

struct Text {
  std::vector<int32_t> tokens;             // [kNewTokens]
  std::vector<std::vector<float>> logits;  // [kNewTokens][V]
};

const Checkpoint& PublishedModel() {
  static const auto& checkpoint = *new absl::StatusOr<Checkpoint>(
      Checkpoint::Open(std::string(ETA_SOURCE_DIR) + "/models/eta-27m"));
  return *checkpoint;
}

std::vector<std::vector<int32_t>> Prompts() {
  std::ifstream file(std::string(ETA_SOURCE_DIR) + "/deploy/samples/needle.txt");
  std::stringstream story;
  story << file.rdbuf();
  const auto config = ParseModelConfig(PublishedModel().config_json());
  const auto tokenizer = Tokenizer::Load(PublishedModel().tokenizer_files(), *config);
  const std::vector<int32_t> ids = *(*tokenizer)->Encode(story.str(), /*add_bos=*/true);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < kPrompts; ++i) {
    const size_t length = 64 + i % 5 * 200;
    const size_t begin = i * (ids.size() - kLongestPrompt) / kPrompts;
    prompts.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                         ids.begin() + static_cast<std::ptrdiff_t>(begin + length));
  }
  return prompts;
}

// Dynamic thresholds with and without the floor, and full attention, in turn.
AttentionOptions AttentionOf(size_t prompt) {
  if (prompt % 3 == 0) return {};
  if (prompt % 3 == 1) return {.z = 2.0f, .uniform_floor = false};
  return {.admit_all = true};
}

int32_t BestId(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<Text> Generate(const BackendOptions& options) {
  std::vector<Text> texts;
  const auto backend = MakeBackend(options);
  EXPECT_EQ(backend.status(), absl::OkStatus());
  if (!backend.ok()) return texts;
  const auto config = ParseModelConfig(PublishedModel().config_json());
  const auto runner = SequenceRunner::Create(
      PublishedModel(), **backend,
      {.geometry = MakeKvGeometry(*config, DType::kFloat16), .max_context = kMaxContext});
  EXPECT_EQ(runner.status(), absl::OkStatus());
  if (!runner.ok()) return texts;
  const std::vector<std::vector<int32_t>> prompts = Prompts();
  for (size_t i = 0; i < kPrompts; ++i) {
    Text& text = texts.emplace_back();
    std::vector<float> logits(static_cast<size_t>(config->vocab_size));
    EXPECT_EQ((*runner)->Begin({.attention = AttentionOf(i), .rope_theta = config->rope_theta}),
              absl::OkStatus());
    for (size_t begin = 0; begin < prompts[i].size(); begin += 256) {
      const size_t count = std::min<size_t>(256, prompts[i].size() - begin);
      EXPECT_EQ((*runner)->Run({.tokens = std::span(prompts[i]).subspan(begin, count),
                                .kind = RowKind::kPrefill,
                                .logits = logits}),
                absl::OkStatus());
    }
    for (;;) {
      text.tokens.push_back(BestId(logits));
      text.logits.push_back(logits);
      if (text.tokens.size() == kNewTokens) break;
      EXPECT_EQ((*runner)->Run({.tokens = std::span(&text.tokens.back(), 1), .logits = logits}),
                absl::OkStatus());
    }
  }
  return texts;
}

class GreedyText : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = BackendNames();
    if (std::ranges::find(names, "cuda") == names.end()) GTEST_SKIP() << "built without CUDA";
    const absl::Status status = MakeBackend({.name = "cuda"}).status();
    if (absl::IsUnavailable(status)) GTEST_SKIP() << status.message();
  }

  // `tie`: the largest difference of two logits that the CPU holds for about equal. `least_equal`:
  // texts that must be the CPU's from end to end.
  static void ExpectCpuText(DType compute, double tie, size_t least_equal) {
    static const std::vector<Text>& cpu = *new std::vector<Text>(Generate({.name = "cpu"}));
    const std::vector<Text> cuda = Generate({.name = "cuda", .compute = compute});
    ASSERT_EQ(cpu.size(), kPrompts);
    ASSERT_EQ(cuda.size(), kPrompts);
    size_t equal = 0;
    double largest_gap = 0.0;
    for (size_t i = 0; i < kPrompts; ++i) {
      const auto [ours, theirs] = std::ranges::mismatch(cpu[i].tokens, cuda[i].tokens);
      if (ours == cpu[i].tokens.end()) {
        ++equal;
        continue;
      }
      const auto at = static_cast<size_t>(ours - cpu[i].tokens.begin());
      const std::vector<float>& logits = cpu[i].logits[at];
      const double gap = static_cast<double>(logits[static_cast<size_t>(*ours)]) -
                         logits[static_cast<size_t>(*theirs)];
      EXPECT_LE(gap, tie) << "prompt " << i << ", token " << at << ": " << *theirs
                          << " instead of the CPU's " << *ours;
      largest_gap = std::max(largest_gap, gap);
    }
    EXPECT_GE(equal, least_equal);
    RecordProperty("equal_texts", std::to_string(equal));
    RecordProperty("largest_gap_of_a_tie", std::to_string(largest_gap));
  }
};

TEST_F(GreedyText, InFloat32IsTheCpus) {
  ExpectCpuText(DType::kFloat32, 0.02, 15);
}

TEST_F(GreedyText, InBFloat16IsTheCpusUntilATie) {
  ExpectCpuText(DType::kBFloat16, 0.25, 0);
}

}  // namespace
}  // namespace eta
