#include "engine/chat/tools/answer_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kCall[] = R"({"name": "weather", "arguments": {"city": "Paris"}})";
constexpr int32_t kSpecial = 7;  // the token of marks in tests that have one

// A whole answer. Calls read as "weather {...}", withdrawn ones with a "-" in front.
struct Reading {
  std::string text;
  std::string reasoning;
  std::vector<std::string> calls;
  std::vector<ToolCall> kept;

  void Add(AnswerPart part) {
    text += part.text;
    reasoning += part.reasoning;
    for (const CallDelta& delta : part.calls) {
      if (static_cast<size_t>(delta.index) == calls.size()) {
        EXPECT_FALSE(delta.id.empty());
        calls.push_back(delta.name + " ");
      }
      calls.at(static_cast<size_t>(delta.index)) += delta.arguments;
      if (delta.withdrawn) calls.back().insert(0, "-");
    }
  }
};

AnswerReader::Options Options(CallSyntax calls, bool reasons = false) {
  AnswerReader::Options options;
  options.form.calls = calls;
  if (reasons) {
    options.form.reasoning_begin = "<think>";
    options.form.reasoning_end = "</think>";
  }
  options.tools = {"weather", "get.time"};
  options.seed = 3;
  options.prompt_tokens = 40;
  return options;
}

// In pieces of so many bytes.
Reading ReadIn(const AnswerReader::Options& options, const std::string& answer, size_t piece) {
  AnswerReader reader(options);
  Reading reading;
  for (size_t at = 0; at < answer.size(); at += piece) {
    reading.Add(reader.Push(answer.substr(at, piece), {}));
  }
  reading.Add(reader.Finish());
  reading.kept = reader.calls();
  return reading;
}

Reading Read(const AnswerReader::Options& options, const std::string& answer) {
  Reading whole = ReadIn(options, answer, answer.size() + 1);
  for (const size_t piece : {1, 2, 5}) {
    const Reading cut = ReadIn(options, answer, piece);
    EXPECT_EQ(cut.text, whole.text) << answer;
    EXPECT_EQ(cut.reasoning, whole.reasoning) << answer;
    EXPECT_EQ(cut.calls, whole.calls) << answer;
    EXPECT_EQ(cut.kept, whole.kept) << answer;
  }
  return whole;
}

std::string Tagged(const std::string& call) {
  return "<tool_call>\n" + call + "\n</tool_call>";
}

TEST(AnswerReader, TellsTaggedCallsFromTheTextAroundThem) {
  const auto options = Options(CallSyntax::kTagged);
  const Reading read = Read(options, "Let me look.\n\n" + Tagged(kCall) + "\n" +
                                         Tagged(R"({"name":"get.time","arguments":{}})") + "\n");
  EXPECT_EQ(read.text, "Let me look.");
  EXPECT_THAT(read.calls, ElementsAre(R"(weather {"city": "Paris"})", "get.time {}"));
  ASSERT_THAT(read.kept, SizeIs(2));
  EXPECT_EQ(read.kept[0].arguments_json, R"({"city": "Paris"})");
  EXPECT_NE(read.kept[0].id, read.kept[1].id);
  EXPECT_EQ(read.kept[0].id, ReadIn(options, Tagged(kCall), 3).kept.at(0).id)
      << "ids repeat, and depend on seed, prompt and index alone";

  const Reading follows = Read(options, Tagged(kCall) + "\n\nDone. \n");
  EXPECT_EQ(follows.text, "\n\nDone. \n");
  EXPECT_THAT(follows.calls, SizeIs(1));
}

TEST(AnswerReader, ACallIsToldAsItComes) {
  AnswerReader reader(Options(CallSyntax::kTagged));
  EXPECT_TRUE(reader.Push("<tool_call>\n{\"name\": \"weather\", \"argu", {}).empty());
  AnswerPart part = reader.Push("ments\": {\"ci", {});
  ASSERT_THAT(part.calls, SizeIs(1));
  EXPECT_EQ(part.calls[0].name, "weather");
  EXPECT_THAT(part.calls[0].id, SizeIs(29));
  EXPECT_EQ(part.calls[0].arguments, "{\"ci");
  part = reader.Push("ty\": 1}}", {});
  ASSERT_THAT(part.calls, SizeIs(1));
  EXPECT_EQ(part.calls[0].name, "");
  EXPECT_EQ(part.calls[0].arguments, "ty\": 1}");
  EXPECT_THAT(reader.calls(), IsEmpty());
  EXPECT_TRUE(reader.Push("\n</tool_call>", {}).empty());
  EXPECT_THAT(reader.calls(), SizeIs(1));
}

TEST(AnswerReader, WhatOnlyLooksLikeACallStaysText) {
  for (const std::string& answer :
       {Tagged(R"({"name": "unknown", "arguments": {}})"), Tagged(R"({"name": "weather"})"),
        Tagged(R"({"name": "weather", "arguments": "x"})"),
        Tagged(R"({"name": "weather", "arguments": {"a": 1, "a": 2}})"),
        Tagged(R"({"name": "weather", "arguments": {"a": "\ud800"}})"),
        Tagged(R"({"name": "weather", "arguments": {"a": 01}})"),
        Tagged(R"({"name": "weather", "arguments": {}, "more": 1})"),
        Tagged(R"([{"name": "weather", "arguments": {}}])"),
        Tagged(R"({"name": "weather", "arguments": {}} and)"), std::string("<tool_call>"),
        std::string(R"(<tool_call>{"name": "weather", "arguments": {"city": "Par)"),
        std::string("a <tool_ca"), std::string(R"({"name": "weather", "arguments": {}})"),
        std::string("<tool_call> is a tag \n")}) {
    const Reading read = Read(Options(CallSyntax::kTagged), answer);
    EXPECT_EQ(read.text, answer);
    EXPECT_THAT(read.kept, IsEmpty()) << answer;
  }
}

TEST(AnswerReader, ACallThatBreaksIsWithdrawn) {
  const auto options = Options(CallSyntax::kTagged);
  const std::string broken = R"(<tool_call>{"name": "weather", "arguments": {"city": oops)";
  const Reading read = Read(options, broken + " " + Tagged(kCall));
  EXPECT_EQ(read.text, broken);
  EXPECT_THAT(read.calls, ElementsAre(R"(-weather {"city": )", R"(weather {"city": "Paris"})"));
  EXPECT_THAT(read.kept, SizeIs(1));
}

TEST(AnswerReader, NamesMayComeLastAndTheEndMayLackItsTag) {
  const auto options = Options(CallSyntax::kTagged);
  EXPECT_THAT(Read(options, Tagged(R"({"arguments": {"a": [1]}, "name": "weather"})")).calls,
              ElementsAre(R"(weather {"a": [1]})"));
  EXPECT_THAT(Read(options, "<tool_call>" + std::string(kCall) + "\n").kept, SizeIs(1));
}

TEST(AnswerReader, BareCallsAreTheWholeAnswer) {
  const auto options = Options(CallSyntax::kBare);
  const std::string call = R"({"name": "weather", "parameters": {"city": "Paris"}})";
  EXPECT_THAT(Read(options, call).calls, ElementsAre(R"(weather {"city": "Paris"})"));
  EXPECT_THAT(Read(options, "<|python_tag|>" + call + "\n").kept, SizeIs(1));
  EXPECT_THAT(Read(options, " " + call + "; " + call).kept, SizeIs(2));
  EXPECT_EQ(Read(options, "\n " + call + ";").text, "\n " + call + ";");
  for (const std::string& answer :
       {"I call " + call, call + " as you see", std::string(R"({"city": "Paris"})"),
        std::string("<|python_tag|>print(1)"), std::string("{")}) {
    const Reading read = Read(options, answer);
    EXPECT_EQ(read.text, answer);
    EXPECT_THAT(read.kept, IsEmpty()) << answer;
  }
}

TEST(AnswerReader, MistralCallsInListsOrByName) {
  const auto options = Options(CallSyntax::kMistral);
  const std::string list = "[" + std::string(kCall) + R"(, {"name": "get.time", "arguments": {}}])";
  for (const char* begin : {"[TOOL_CALLS]", "[TOOL_CALLS] "}) {
    EXPECT_THAT(Read(options, begin + list).calls,
                ElementsAre(R"(weather {"city": "Paris"})", "get.time {}"));
  }
  const std::string named = R"([TOOL_CALLS]weather[ARGS]{"a": 1}[TOOL_CALLS]get.time[CALL_ID])"
                            R"(abc123456[ARGS] {})";
  EXPECT_THAT(Read(options, "So:" + named).calls,
              ElementsAre(R"(weather {"a": 1})", "get.time {}"));
  EXPECT_EQ(Read(options, "So:" + named).text, "So:");
  for (const std::string& answer :
       {"[TOOL_CALLS][" + std::string(kCall) + " and", std::string("[TOOL_CALLS][]"),
        "[TOOL_CALLS][" + std::string(kCall).substr(0, 40),
        std::string("[TOOL_CALLS]nobody[ARGS]{}"), std::string("[TOOL_CALLS]weather[ARGS]{"),
        std::string("[TOOL_CALLS]weather {}"), std::string("[TOOL_CALLS][ARGS]{}")}) {
    const Reading read = Read(options, answer);
    EXPECT_EQ(read.text, answer);
    EXPECT_THAT(read.kept, IsEmpty()) << answer;
  }
}

TEST(AnswerReader, OfAListThatTheEndCutWholeCallsStay) {
  const auto options = Options(CallSyntax::kMistral);
  const std::string begin = "So: [TOOL_CALLS] [" + std::string(kCall);
  const std::string next = R"({"name": "get.time", "arguments": {"a)";
  for (const char* const between : {"", " ", ",", " , "}) {
    const Reading read = Read(options, begin + between);
    EXPECT_THAT(read.calls, ElementsAre(R"(weather {"city": "Paris"})"));
    EXPECT_THAT(read.kept, SizeIs(1));
    EXPECT_EQ(read.text, "So:");
  }
  const Reading cut = Read(options, begin + "," + next);
  EXPECT_THAT(cut.calls, ElementsAre(R"(weather {"city": "Paris"})", "-get.time {\"a"));
  EXPECT_THAT(cut.kept, SizeIs(1));
  EXPECT_EQ(cut.text, "So:" + next);
}

TEST(AnswerReader, ShortIdsAreOfNineCharacters) {
  auto options = Options(CallSyntax::kMistral);
  options.form.short_ids = true;
  EXPECT_THAT(Read(options, "[TOOL_CALLS]weather[ARGS]{}").kept.at(0).id, SizeIs(9));
}

TEST(AnswerReader, SpecialTokensAreMarksAndNoText) {
  auto options = Options(CallSyntax::kMistral);
  options.form.marks = {{.id = kSpecial, .text = kMistralCalls},
                        {.id = kSpecial + 1, .text = kMistralArguments}};
  AnswerReader reader(options);
  Reading reading;
  reading.Add(reader.Push(
      "So: weather{\"a\": 1}",
      std::vector<TextMark>{
          {.at = 4, .id = kSpecial}, {.at = 5, .id = 99}, {.at = 11, .id = kSpecial + 1}}));
  EXPECT_EQ(reading.text, "So:");
  EXPECT_THAT(reading.calls, ElementsAre(R"(weather {"a": 1})"));
  reading.Add(reader.Push("nothing", std::vector<TextMark>{{.at = 0, .id = kSpecial}}));
  reading.Add(reader.Finish());
  EXPECT_EQ(reading.text, "So:nothing") << "the mark has no text";
}

TEST(AnswerReader, ReasoningComesFirst) {
  const auto options = Options(CallSyntax::kTagged, /*reasons=*/true);
  const Reading read =
      Read(options, "<think>\nIs it " + Tagged(kCall) + "?\n</think>\n\nYes " + Tagged(kCall));
  EXPECT_EQ(read.reasoning, "Is it " + Tagged(kCall) + "?");
  EXPECT_EQ(read.text, "Yes");
  EXPECT_THAT(read.kept, SizeIs(1));
  EXPECT_EQ(Read(options, "<think>\n\n</think>\n\nYes").text, "Yes");
  EXPECT_EQ(Read(options, "No <think>x</think>").text, "No <think>x</think>");
  EXPECT_EQ(Read(options, "<thinking>").text, "<thinking>");
  EXPECT_EQ(Read(options, "<think>and on \n").reasoning, "and on");

  auto begun = options;
  begun.in_reasoning = true;
  EXPECT_EQ(Read(begun, "Hm.\n</think>\n\nYes").reasoning, "Hm.");
  EXPECT_EQ(Read(begun, "Hm.\n</think>\n\nYes").text, "Yes");
}

TEST(AnswerReader, ReasoningThatIsNotToldIsTextWithItsMarks) {
  auto options = Options(CallSyntax::kTagged, /*reasons=*/true);
  options.tell_reasoning = false;
  const std::string thought = "<think>\n" + Tagged(kCall) + "</think>\n";
  const Reading read = Read(options, thought + "Yes" + Tagged(kCall));
  EXPECT_EQ(read.text, thought + "Yes");
  EXPECT_THAT(read.kept, SizeIs(1));
}

TEST(AnswerReader, WithoutToolsNothingIsACall) {
  auto options = Options(CallSyntax::kTagged);
  options.tools.clear();
  EXPECT_EQ(Read(options, Tagged(kCall)).text, Tagged(kCall));
}

TEST(AnswerReader, CallsBeyondAMessagesAreText) {
  const auto options = Options(CallSyntax::kTagged);
  std::string answer;
  for (size_t i = 0; i < kMaxToolCalls + 1; ++i) answer += Tagged(kCall);
  const Reading read = ReadIn(options, answer, 100);
  EXPECT_THAT(read.kept, SizeIs(kMaxToolCalls));
  EXPECT_EQ(read.text, Tagged(kCall));
}

}  // namespace
}  // namespace eta
