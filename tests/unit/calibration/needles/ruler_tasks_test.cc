// Questions of RULER's kinds: what they ask for stands in their text, once and where it should, and
// they are as long as they may be.

#include "calibration/needles/ruler_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "calibration/needles/ruler_text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAreArray;

constexpr int kVt = 8, kCwe = 9, kFwe = 10, kQa1 = 11, kQa2 = 12;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Between the last `before` and the first `after` behind it.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.rfind(before) + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

class RulerTasksTest : public ::testing::Test {
 protected:
  RulerTasksTest() {
    const auto checkpoint = *Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m");
    config_ = *ParseModelConfig(checkpoint.config_json());
    tokenizer_ = *Tokenizer::Load(checkpoint.tokenizer_files(), config_);
    std::ostringstream text;
    text << std::ifstream(ETA_SOURCE_DIR "/deploy/samples/needle.txt").rdbuf();
    const size_t half = text.str().find('\n', 20'000);
    text_ = {text.str().substr(0, half), text.str().substr(half)};
    tasks_ = std::make_unique<RulerTasks>(text_, *tokenizer_, /*seed=*/1);
  }

  RulerQuestion Make(int task, int32_t length, int32_t number) const {
    return *tasks_->Make(task, length, number);
  }
  std::string Text(const RulerQuestion& question) const {
    return tokenizer_->Decode(question.prompt);
  }

  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> text_;
  std::unique_ptr<RulerTasks> tasks_;
};

TEST(RulerTaskName, AreThePapers) {
  std::vector<std::string> names;
  for (int task = 0; task < kRulerTasks; ++task) names.emplace_back(RulerTaskName(task));
  EXPECT_THAT(
      names, ElementsAre("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1",
                         "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery",
                         "vt", "cwe", "fwe", "qa_1", "qa_2"));
}

TEST_F(RulerTasksTest, FillTheirLengthAndNoMore) {
  for (int task = 0; task < kRulerTasks; ++task) {
    for (const int32_t length : {2048, 4096, 8192}) {
      const RulerQuestion question = Make(task, length, 0);
      const auto tokens = static_cast<int32_t>(question.prompt.size()) + question.max_tokens;
      EXPECT_LE(tokens, length) << RulerTaskName(task);
      // Of the largest units, which are documents, one would not fit.
      EXPECT_GT(tokens, length - 450) << RulerTaskName(task);
      EXPECT_EQ(std::vector(question.prompt.begin(), question.prompt.begin() + 1),
                tokenizer_->beginning());
      EXPECT_THAT(question.answers, Not(IsEmpty()));
      EXPECT_THAT(question.answers, Each(Not(IsEmpty())));
    }
  }
}

TEST_F(RulerTasksTest, AnotherNumberOrSeedIsAnotherQuestion) {
  const RulerTasks again(text_, *tokenizer_, /*seed=*/1);
  const RulerTasks other(text_, *tokenizer_, /*seed=*/2);
  for (int task = 0; task < kRulerTasks; ++task) {
    SCOPED_TRACE(RulerTaskName(task));
    const RulerQuestion question = Make(task, 2048, 3);
    EXPECT_EQ(question.prompt, again.Make(task, 2048, 3)->prompt);
    EXPECT_EQ(question.answers, again.Make(task, 2048, 3)->answers);
    EXPECT_NE(question.answers, Make(task, 2048, 4).answers);
    EXPECT_NE(question.answers, other.Make(task, 2048, 3)->answers);
    // The question alone: what stands around it grows.
    EXPECT_EQ(question.answers, Make(task, 4000, 3).answers);
  }
}

TEST_F(RulerTasksTest, NeedlesStateTheirValuesOnce) {
  struct Kind {
    int task;
    const char* key;
    const char* value;
    const char* haystack;
    size_t needles;  // 0: all lines
    size_t answers;
  };
  const std::string words = "[a-z]+-[a-z]+", numbers = "[1-9][0-9]{6}";
  const std::string uuids = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";
  const Kind kinds[] = {{0, words.c_str(), numbers.c_str(), "The grass is green. ", 1, 1},
                        {1, words.c_str(), numbers.c_str(), "", 1, 1},
                        {2, words.c_str(), uuids.c_str(), "", 1, 1},
                        {3, words.c_str(), numbers.c_str(), "", 4, 1},
                        {4, words.c_str(), numbers.c_str(), "", 0, 1},
                        {5, uuids.c_str(), uuids.c_str(), "", 0, 1},
                        {6, words.c_str(), numbers.c_str(), "", 4, 4},
                        {7, words.c_str(), numbers.c_str(), "", 4, 4}};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(RulerTaskName(kind.task));
    const RulerQuestion question = Make(kind.task, 2048, 7);
    const std::string text = Text(question);
    const bool one = kind.answers == 1;
    EXPECT_THAT(text, StartsWith(one ? "A special magic " : "Some special magic "));
    EXPECT_THAT(text, EndsWith(one ? " mentioned in the provided text is"
                                   : " mentioned in the provided text are"));
    EXPECT_THAT(text, HasSubstr(kind.haystack));
    EXPECT_FALSE(question.any);
    EXPECT_GE(question.max_tokens, 128);
    ASSERT_THAT(question.answers, SizeIs(kind.answers));

    const std::regex needle(absl::StrCat("One of the special magic (?:number|uuid)s for (",
                                         kind.key, ") is: (", kind.value, ")\\."));
    std::map<std::string, std::set<std::string>> values;
    size_t needles = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), needle), end; at != end; ++at) {
      values[(*at)[1]].insert((*at)[2]);
      ++needles;
    }
    EXPECT_EQ(needles, Count(text, "One of the special magic "));
    if (kind.needles > 0) {
      EXPECT_EQ(needles, kind.needles);
    } else {
      EXPECT_GE(needles, 15u);
      EXPECT_EQ(needles, Count(text, "\n") - 1) << "the haystack is needles";
    }
    const std::string asked = Between(text, " for ", " mentioned in the provided text");
    std::vector<std::string> wanted;
    for (const auto& [key, its] : values) {
      if (asked.find(key) != std::string::npos) wanted.insert(wanted.end(), its.begin(), its.end());
    }
    EXPECT_THAT(question.answers, UnorderedElementsAreArray(wanted)) << asked;
    for (const std::string& answer : question.answers) EXPECT_EQ(Count(text, answer), 1u);
  }
}

TEST_F(RulerTasksTest, NeedlesLieAtAllDepths) {
  for (const int task : {0, 1, 4}) {
    double least = 1.0, most = 0.0;
    for (int32_t number = 0; number < 24; ++number) {
      const RulerQuestion question = Make(task, 2048, number);
      const std::string text = Text(question);
      const double depth =
          static_cast<double>(text.find(question.answers[0])) / static_cast<double>(text.size());
      least = std::min(least, depth);
      most = std::max(most, depth);
    }
    EXPECT_LT(least, 0.25) << RulerTaskName(task);
    EXPECT_GT(most, 0.75) << RulerTaskName(task);
  }
}

TEST_F(RulerTasksTest, VariablesAreSetToEachOther) {
  for (int32_t number = 0; number < 4; ++number) {
    const RulerQuestion question = Make(kVt, 2048, number);
    const std::string all = Text(question);
    const std::string text = all.substr(all.rfind("Memorize and track"));
    EXPECT_EQ(Count(all, "Memorize and track"), 2u) << "an example stands in front";
    EXPECT_THAT(text, EndsWith("they are:"));
    std::string value = Between(text, "are assigned the value ", ",");
    std::vector<std::string> names;
    const std::regex statement("VAR ([A-Z]{5}) = (.*)");
    for (std::sregex_iterator at(text.begin(), text.end(), statement), end; at != end; ++at) {
      EXPECT_EQ((*at)[2], value);
      names.push_back((*at)[1]);
      value = "VAR " + names.back();
    }
    EXPECT_THAT(names, SizeIs(5));
    EXPECT_EQ(question.answers, names);
    const std::string example = all.substr(0, all.size() - text.size());
    for (const std::string& name : names) EXPECT_THAT(example, Not(HasSubstr(name)));
  }
}

TEST_F(RulerTasksTest, CommonWordsAreCommon) {
  struct List {
    int32_t length;
    size_t common;
    size_t others;
  };
  for (const List& list : {List{2048, 6, 1}, List{4096, 30, 3}, List{8192, 30, 3}}) {
    const RulerQuestion question = Make(kCwe, list.length, 1);
    const std::string all = Text(question);
    EXPECT_EQ(Count(all, "Below is a numbered list"), 2u) << "an example stands in front";
    const std::string text = Between(all, "Memorize the ones that appear most often.\n", "\nQ");
    std::map<std::string, size_t> counts;
    size_t entries = 0;
    const std::regex entry("([0-9]+)\\. ([a-z]+)");
    for (std::sregex_iterator at(text.begin(), text.end(), entry), end; at != end; ++at) {
      EXPECT_EQ((*at)[1], absl::StrCat(++entries));
      ++counts[(*at)[2]];
    }
    EXPECT_EQ(entries, Count(text, ". "));
    ASSERT_THAT(question.answers, SizeIs(10));
    for (const std::string& answer : question.answers) {
      EXPECT_EQ(counts[answer], list.common) << answer;
      counts.erase(answer);
      for (const auto& [other, count] : counts) EXPECT_THAT(other, Not(HasSubstr(answer)));
    }
    EXPECT_THAT(counts, SizeIs(::testing::Ge(10)));
    for (const auto& [word, count] : counts) EXPECT_EQ(count, list.others) << word;
  }
}

TEST_F(RulerTasksTest, FrequentWordsFollowAZetaDistribution) {
  for (const int32_t length : {512, 4096}) {
    const RulerQuestion question = Make(kFwe, length, 1);
    const std::string text = Between(Text(question), "coded words. ", "\nQuestion");
    std::map<std::string, size_t> counts;
    for (const auto& word : absl::StrSplit(text, ' ')) ++counts[std::string(word)];
    const auto noise = static_cast<double>(counts["..."]);
    counts.erase("...");
    std::vector<std::pair<size_t, std::string>> ranked;
    for (const auto& [word, count] : counts) ranked.emplace_back(count, word);
    std::ranges::sort(ranked, std::greater());
    ASSERT_GE(ranked.size(), 4u);
    EXPECT_THAT(question.answers,
                ElementsAre(ranked[0].second, ranked[1].second, ranked[2].second));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_GT(ranked[i].first, ranked[i + 1].first);
      const auto rank = static_cast<double>(i + 2);
      EXPECT_NEAR(static_cast<double>(ranked[i].first), noise / (rank * rank), 1.0);
    }
  }
}

TEST_F(RulerTasksTest, DocumentsHoldTheAnswerOnce) {
  for (int32_t number = 0; number < 8; ++number) {
    const RulerQuestion question = Make(kQa1, 2048, number);
    EXPECT_TRUE(question.any);
    EXPECT_THAT(question.answers, SizeIs(1));
    const std::string text = Text(question);
    EXPECT_THAT(text, EndsWith(" Answer:"));
    EXPECT_EQ(Count(text, question.answers[0]), 1u);
    const std::string asked = Between(text, "Question: ", "?");
    std::smatch name;
    ASSERT_TRUE(std::regex_search(asked, name, std::regex("[A-Z][a-z]+ [A-Z][a-z]+")));
    const std::string person = name.str();
    EXPECT_EQ(Count(text, person), 2u);
    const std::regex fact(
        absl::StrCat(person, " [a-z ]+ in the town of ", question.answers[0], "\\."));
    EXPECT_TRUE(std::regex_search(text, fact)) << asked;
    // Each document has a fact of this kind.
    EXPECT_EQ(Count(text, " in the town of "), Count(text, "\nDocument "));
    EXPECT_GE(Count(text, "\nDocument "), 3u);
  }
}

TEST_F(RulerTasksTest, TwoHopsGoOverTwoDocuments) {
  std::set<bool> orders;
  for (int32_t number = 0; number < 12; ++number) {
    const RulerQuestion question = Make(kQa2, 4096, number);
    const std::string answer = question.answers[0];
    std::string place, person;
    std::vector<std::string> documents = absl::StrSplit(Text(question), "\nDocument ");
    const std::string asked = Between(documents.back(), "Question: ", "?");
    place = Between(asked, " of ", " ");
    size_t first = 0, second = 0;
    std::smatch match;
    for (size_t i = 1; i < documents.size(); ++i) {
      const std::regex by(" of " + place + " [a-z ]+ ([A-Z][a-z]+ [A-Z][a-z]+)\\.");
      if (std::regex_search(documents[i], match, by)) {
        person = match[1];
        first = i;
      }
      if (documents[i].find(" in the town of " + answer + ".") != std::string::npos) second = i;
    }
    ASSERT_GT(first, 0u) << asked;
    ASSERT_GT(second, 0u) << asked;
    EXPECT_NE(first, second);
    EXPECT_THAT(documents[second], HasSubstr(person));
    EXPECT_THAT(asked, Not(HasSubstr(person)));
    EXPECT_THAT(documents[first], Not(HasSubstr(answer)));
    orders.insert(first < second);
  }
  EXPECT_THAT(orders, ElementsAre(false, true));
}

TEST_F(RulerTasksTest, ScoresAreSharesOfTheAnswers) {
  for (int task = 0; task < kRulerTasks; ++task) {
    const RulerQuestion question = Make(task, 2048, 2);
    std::string output = " I think:";
    for (const std::string& answer : question.answers) absl::StrAppend(&output, " ", answer, ",");
    EXPECT_EQ(ScoreRulerOutput(question, output), 1.0) << RulerTaskName(task);
    EXPECT_EQ(ScoreRulerOutput(question, " none"), 0.0) << RulerTaskName(task);
    EXPECT_EQ(ScoreRulerOutput(question, ""), 0.0) << RulerTaskName(task);
  }
  RulerQuestion question = {.answers = {"ABCDE", "quiet", "17", "silver"}};
  EXPECT_EQ(ScoreRulerOutput(question, "abcde and QUIET; 1 7"), 0.5);
  EXPECT_EQ(ScoreRulerOutput(question, "117 quietly"), 0.5);
  question.any = true;
  EXPECT_EQ(ScoreRulerOutput(question, "Silver"), 1.0);
  EXPECT_EQ(ScoreRulerOutput(question, "gold"), 0.0);
}

TEST_F(RulerTasksTest, TooShortALengthIsRefusedWithTheLeast) {
  for (int task = 0; task < kRulerTasks; ++task) {
    SCOPED_TRACE(RulerTaskName(task));
    for (const int32_t length : {-1, 0, 64}) {
      const absl::Status status = tasks_->Make(task, length, 0).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  StartsWith(absl::StrCat("length: ", std::string(RulerTaskName(task)),
                                          " takes at least ")));
    }
    const std::string message(tasks_->Make(task, 64, 0).status().message());
    int32_t least = 0;
    ASSERT_TRUE(absl::SimpleAtoi(Between(message, "at least ", " "), &least)) << message;
    EXPECT_TRUE(tasks_->Make(task, least, 0).ok());
    EXPECT_FALSE(tasks_->Make(task, least - 1, 0).ok());
  }
}

TEST_F(RulerTasksTest, TooLittleTextIsRefusedWhereItIsNeeded) {
  const std::set<int> of_text = {1, 2, 3, 6, 7, kQa1, kQa2};
  for (const std::vector<std::string>& text :
       {std::vector<std::string>{}, {"A short text. It has two sentences."}}) {
    const RulerTasks tasks(text, *tokenizer_, /*seed=*/1);
    for (int task = 0; task < kRulerTasks; ++task) {
      SCOPED_TRACE(RulerTaskName(task));
      const auto question = tasks.Make(task, 8192, 0);
      EXPECT_EQ(question.ok(), !of_text.contains(task)) << question.status();
      if (question.ok()) continue;
      EXPECT_EQ(question.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(std::string(question.status().message()),
                absl::StrCat("text: ", std::string(RulerTaskName(task)),
                             " of 8192 tokens takes more of it"));
    }
  }
}

TEST_F(RulerTasksTest, TellsWhyATokenizerMakesNone) {
  const auto ids_only = *Tokenizer::Load({}, config_);
  const RulerTasks tasks(text_, *ids_only, /*seed=*/1);
  EXPECT_EQ(tasks.Make(0, 4096, 0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RulerText, HasSentencesParagraphsAndWords) {
  const RulerText text = MakeRulerText(std::vector<std::string>{
      "Mrs. Gray saw\n  it.  \"Never!\" The garden, the Garden: gardens' end", "", "Another one"});
  EXPECT_THAT(text.sentences, ElementsAre("Mrs. Gray saw it. \"Never!\"",
                                          "The garden, the Garden: gardens' end", "Another one"));
  EXPECT_THAT(text.words, ElementsAre("garden", "gardens"));
  ASSERT_THAT(text.paragraphs, SizeIs(2));
  EXPECT_EQ(text.paragraphs[0].end, 2u);
  EXPECT_EQ(text.paragraphs[1].begin, 2u);
}

TEST(RulerText, CutsWhatHasNoEnd) {
  std::string stars;
  for (int i = 0; i < 1000; ++i) stars += "\xE2\x98\x85";
  for (const std::string& document : {stars, std::string(3000, 'x')}) {
    const RulerText text = MakeRulerText(std::vector<std::string>{document});
    EXPECT_THAT(text.sentences, Each(SizeIs(AllOf(Le(402), ::testing::Gt(0)))));
    std::string whole;
    for (const std::string& sentence : text.sentences) whole += sentence;
    EXPECT_EQ(whole, document);
  }
  const RulerText of_stars = MakeRulerText(std::vector<std::string>{stars});
  for (const std::string& sentence : of_stars.sentences) EXPECT_EQ(sentence.size() % 3, 0u);
}

}  // namespace
}  // namespace eta::testing
