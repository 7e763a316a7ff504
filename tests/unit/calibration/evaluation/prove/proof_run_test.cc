// A whole proof on small models: two ways that are one differ in nothing, a way that is made to
// lose fails, and what a folder has is not measured again.
#include "calibration/evaluation/prove/proof_run.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/prove/greedy_pair.h"
#include "calibration/evaluation/prove/proof_page.h"
#include "calibration/evaluation/prove/proved_profile.h"
#include "engine/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* kStory = ETA_SOURCE_DIR "/deploy/samples/needle.txt";
constexpr int32_t kLength = 320;

std::unique_ptr<TableBench> ProofBenchOf(const std::string& model) {
  auto bench = TableBench::Load({.model_dir = model,
                                 .backend = {.name = "cpu", .num_threads = 2},
                                 .kv_dtype = DType::kFloat32},
                                {.texts = {kStory}});
  EXPECT_TRUE(bench.ok()) << bench.status();
  return *std::move(bench);
}

// The least of each part.
ProofPlan SmallPlan() {
  ProofPlan plan;
  plan.lengths = {kLength};
  plan.first_questions = 4;
  plan.questions = 0;
  plan.continuation = 16;
  plan.speed_contexts = {64};
  plan.speed_turns = 1;
  plan.speed_steps = 2;
  return plan;
}

// More tokens than kLength.
std::string LongPrompt() {
  std::string text;
  for (int i = 0; i < kLength; ++i) text += "one more ";
  return text;
}

// Questions after numbers in a story, of the first task; of the others what nobody answers.
class StoryQuestions {
 public:
  explicit StoryQuestions(const TableBench& bench) : tokenizer_(bench.tokenizer()) {
    const auto source = TextSource::Open(kStory).value();
    windows_ = ReadNeedleWindows(*source, tokenizer_, {.context = kLength, .windows = 4}).value();
  }

  QuestionSource Source() {
    return [this](int task, int32_t, int32_t number) -> absl::StatusOr<RulerQuestion> {
      ++asked_;
      const NeedleWindow& window = windows_[static_cast<size_t>(number)];
      const std::span<const int32_t> tokens = window.tokens;
      if (task > 0) {
        return RulerQuestion{.prompt = {tokens.begin(), tokens.begin() + 8},
                             .answers = {"what no model says"},
                             .max_tokens = 2};
      }
      const auto answer = static_cast<size_t>(window.answer);
      std::string number_said = tokenizer_.Decode(tokens.subspan(answer));
      number_said.erase(0, number_said.find_first_not_of(' '));
      return RulerQuestion{.prompt = {tokens.begin(), tokens.begin() + window.answer},
                           .answers = {number_said},
                           .max_tokens = static_cast<int32_t>(tokens.size() - answer)};
    };
  }
  int asked() const { return asked_; }

 private:
  const Tokenizer& tokenizer_;
  std::vector<NeedleWindow> windows_;
  int asked_ = 0;
};

class ProofRunTest : public ::testing::Test {
 protected:
  absl::StatusOr<Proof> Prove(TableBench& bench, const std::string& attention,
                              const QuestionSource& questions, const ProofTolerance& tolerance,
                              const std::string& traffic = "") {
    const ProofInput input = {.attention = attention, .traffic = traffic, .plan = SmallPlan()};
    ASSIGN_OR_RETURN(const auto ways, ProofWays(bench, attention));
    ASSIGN_OR_RETURN(ProofKey key, MakeProofKey(bench, ways[1], input));
    ASSIGN_OR_RETURN(const auto log, ProofLog::Open(Folder(), key));
    ProofClock clock([this](double done, double left, const std::string&) {
      done_ = done;
      left_ = left;
    });
    Proof proof = {.attention = attention,
                   .settings = WayInWords(ways[1]),
                   .key = std::move(key),
                   .fingerprint = log->fingerprint(),
                   .plan = input.plan,
                   .tolerance = tolerance};
    ASSIGN_OR_RETURN(proof.scores, MeasureProof(bench, ways, input, questions, *log, clock));
    proof.verdict = JudgeProof(proof.scores, tolerance);
    return proof;
  }
  std::string Folder() const { return folder_.path() + "/proof"; }
  std::string Traffic() const {
    return folder_.Write(
        "prompts.jsonl",
        "{\"text\": \"It was a dark night\"}\n{\"text\": \"Once\"}\n{\"text\": \"" + LongPrompt() +
            "\"}\n");
  }

  const TempFolder folder_;
  double done_ = 0.0;
  double left_ = 1.0;
};

TEST_F(ProofRunTest, TheSameWayTwiceDiffersInNothing) {
  const testing::TinyModel model;
  const auto bench = ProofBenchOf(model.path());
  StoryQuestions questions(*bench);
  const auto proof = Prove(*bench, "full", questions.Source(), {.speed = 0.0}, Traffic());
  ASSERT_TRUE(proof.ok()) << proof.status();
  const ProofScores& scores = proof->scores;
  ASSERT_THAT(scores.ruler, SizeIs(kRulerTasks));
  for (const TaskScores& task : scores.ruler) EXPECT_EQ(task.full, task.sparse) << task.task;
  ASSERT_THAT(scores.traffic, SizeIs(2));
  EXPECT_EQ(scores.long_prompts, 1);
  for (const TrafficScore& prompt : scores.traffic) {
    EXPECT_GE(prompt.tokens, 1.0);
    EXPECT_EQ(prompt.agreed, prompt.tokens);
    EXPECT_EQ(prompt.compared, prompt.tokens - 1.0);
    EXPECT_EQ(prompt.kl, 0.0);
  }
  ASSERT_THAT(scores.texts, SizeIs(1));
  EXPECT_EQ(scores.texts[0].more.mean, 0.0);
  EXPECT_EQ(scores.texts[0].kl, 0.0);
  EXPECT_EQ(scores.texts[0].context, kLength);
  ASSERT_THAT(scores.speeds, SizeIs(1));
  EXPECT_GT(scores.speeds[0].ratio, 0.0);
  EXPECT_GT(done_, 0.0);
  EXPECT_NEAR(left_, 0.0, 1e-6) << "all that was expected is done";
}

TEST_F(ProofRunTest, TheDefaultPassesAndAWayThatIsMadeToLoseFails) {
  const auto bench = ProofBenchOf(ETA_SOURCE_DIR "/models/eta-27m");
  StoryQuestions questions(*bench);
  // Other numbers of a few hundred tokens than of a whole proof.
  const ProofTolerance tolerance = {.perplexity_increase = 5.0, .speed = 0.0};
  const auto good = Prove(*bench, "dynamic", questions.Source(), tolerance);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(good->verdict.tasks[0].counts) << "full attention finds numbers";
  EXPECT_FALSE(good->verdict.tasks[1].counts);
  EXPECT_TRUE(good->verdict.holds()) << ProofText(*good);

  std::filesystem::remove_all(Folder());
  // Nothing but the last block and the tail.
  const auto bad = Prove(*bench, "dynamic+offset=-100+pinned_blocks=1+floor=none",
                         questions.Source(), tolerance);
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_TRUE(bad->verdict.tasks[0].counts);
  EXPECT_FALSE(bad->verdict.holds());
  EXPECT_LT(bad->verdict.macro->more.mean, -0.2);
  EXPECT_GT(bad->scores.texts[0].kl, good->scores.texts[0].kl);

  std::filesystem::remove_all(Folder());
  const auto rival = Prove(*bench, "window:64", questions.Source(), tolerance);
  ASSERT_TRUE(rival.ok()) << rival.status();
  EXPECT_LT(rival->verdict.macro->more.mean, 0.0);
  EXPECT_THAT(rival->scores.no_speed, HasSubstr("rival"));
  EXPECT_FALSE(rival->verdict.holds());
}

TEST_F(ProofRunTest, GoesOnWhereItWasStopped) {
  const testing::TinyModel model;
  const auto bench = ProofBenchOf(model.path());
  StoryQuestions questions(*bench);
  const auto first = Prove(*bench, "dynamic", questions.Source(), {}, Traffic());
  ASSERT_TRUE(first.ok()) << first.status();
  const int asked = questions.asked();
  EXPECT_EQ(asked, 4 * kRulerTasks);
  const auto again = Prove(*bench, "dynamic", questions.Source(), {}, Traffic());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(questions.asked(), asked);
  EXPECT_EQ(ProofJson(*first), ProofJson(*again)) << "speeds too";

  const std::string path = Folder() + "/units.jsonl";
  const std::string text = ReadFile(path);
  std::filesystem::resize_file(path, text.size() - 5);
  const auto mended = Prove(*bench, "dynamic", questions.Source(), {}, Traffic());
  ASSERT_TRUE(mended.ok()) << mended.status();
  EXPECT_EQ(questions.asked(), asked + 1);
  EXPECT_EQ(ReadFile(path), text);
  EXPECT_EQ(ProofJson(*first), ProofJson(*mended));

  const auto other = Prove(*bench, "dynamic+z=3", questions.Source(), {}, Traffic());
  EXPECT_THAT(other.status().message(), HasSubstr("output: the folder holds a proof of another"));
  EXPECT_EQ(ReadFile(path), text);
}

// bad input: eta-eval | prove: a way of attending with a cache of its own, or fitted to the text;
//   prompts that are none, or all too long | exit code 2, `attention` or `traffic` named |
//   BadTableTest.ProofsThatCannotBeMade
TEST_F(ProofRunTest, SaysWhatItCannotProve) {
  const testing::TinyModel model;
  const auto bench = ProofBenchOf(model.path());
  EXPECT_THAT(ProofWays(*bench, "dynamic+block_size=4").status(), FailsOn(kInvalid, "attention"));
  EXPECT_THAT(ProofWays(*bench, "constants:0.5").status(), FailsOn(kInvalid, "attention"));
  const auto read = [&](const std::string& text) {
    return ReadTraffic(folder_.Write("t.jsonl", text), bench->tokenizer(), false, SmallPlan())
        .status();
  };
  EXPECT_THAT(read(""), FailsOn(kInvalid, "traffic"));
  EXPECT_THAT(read("{\"prompt\": \"x\"}\n"), FailsOn(kInvalid, "traffic"));
  EXPECT_THAT(read("{\"text\": \"" + LongPrompt() + "\"}\n"), FailsOn(kInvalid, "traffic"));
  EXPECT_THAT(ReadTraffic("prompts.csv", bench->tokenizer(), false, SmallPlan()).status(),
              FailsOn(kInvalid, "traffic"));
}

TEST_F(ProofRunTest, OnePromptServesBothWaysAndIsTheSameAsTwo) {
  const testing::TinyModel model({.has_predictor = false});
  const auto bench = ProofBenchOf(model.path());
  const auto ways = ProofWays(*bench, "dynamic").value();
  const auto runner = bench->MakeRunner(bench->Geometry(), kLength).value();
  const auto windows = bench->Windows(bench->Texts().front(), 200, 1).value();
  GreedyPair pair(*runner, bench->rivals(), bench->tokenizer(), ways);
  const auto always = [](std::span<const int32_t>) { return true; };
  pair.Begin(windows.front(), 24);
  const std::vector<int32_t> full = pair.Continue(0, always).value();
  const std::vector<int32_t> behind_full = pair.Continue(1, always).value();
  EXPECT_EQ(pair.Continue(0, always).value(), full);
  pair.Begin(windows.front(), 24);
  EXPECT_EQ(pair.Continue(1, always).value(), behind_full);
  EXPECT_LE(full.size(), 24u);
  pair.Begin(windows.front(), 24);
  const auto three = [](std::span<const int32_t> tokens) { return tokens.size() < 3; };
  EXPECT_LE(pair.Continue(0, three).value().size(), 3u);
}

TEST_F(ProofRunTest, AProfileKeepsItsProofAsALabel) {
  const PortableProfile made = {.name = "books", .version = 2, .content = MakeContent(1)};
  const std::string path = folder_.Write("books.json", ProfileToJson(made).value());
  auto profile = ProfileToProve("profile:" + path).value();
  ASSERT_TRUE(profile.has_value());
  const std::string copy = folder_.path() + "/copy.json";
  ASSERT_EQ(WriteProvedProfile(*profile, "fail sha256:1", copy), absl::OkStatus());
  ASSERT_EQ(WriteProvedProfile(ProfileToProve("profile:" + copy).value().value(),
                               "pass sha256:2 macro_points=1", copy),
            absl::OkStatus());
  PortableProfile read = ProfileFromJson(ReadFile(copy)).value();
  EXPECT_EQ(read.content.labels.at("proof"), "pass sha256:2 macro_points=1");
  read.content.labels.erase("proof");
  EXPECT_EQ(read, made) << "and nothing else has changed";

  EXPECT_FALSE(ProfileToProve("dynamic").value().has_value());
  EXPECT_FALSE(ProfileToProve("profile:" + path + "+z=3").value().has_value());
  const std::string bare = folder_.Write("bare.json", R"({"name": "a", "thresholds": [[1.0]]})");
  EXPECT_FALSE(ProfileToProve("profile:" + bare).value().has_value());
  PortableProfile crowded = made;
  for (int i = 0; crowded.content.labels.size() < 16; ++i) {
    crowded.content.labels["label" + std::to_string(i)] = "x";
  }
  EXPECT_THAT(
      ProfileToProve("profile:" + folder_.Write("c.json", ProfileToJson(crowded).value())).status(),
      FailsOn(kInvalid, "labels"));
}

}  // namespace
}  // namespace eta
