// Answers in Harmony's format, through AnswerReader.
#include "engine/chat/tools/channel_reader.h"

#include <string>
#include <vector>

#include "engine/chat/tools/answer_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kMarks[] = {kMessageStart, kMessageChannel, kMessageText,  kMessageConstrain,
                                  kMessageEnd,   kMessageCall,    kMessageReturn};

struct ChannelReading {
  std::string text;
  std::string reasoning;
  std::vector<std::string> calls;  // "weather {...}", withdrawn ones with a "-" in front
  std::vector<ToolCall> kept;

  void Add(const AnswerPart& part) {
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

AnswerReader::Options Harmony() {
  AnswerReader::Options options;
  options.form.channels = true;
  options.form.calls = CallSyntax::kChannel;
  options.form.reasoning_begin = "<|channel|>analysis<|message|>";
  options.form.reasoning_end = "<|end|><|start|>assistant<|channel|>final<|message|>";
  options.tools = {"weather", "get.time"};
  options.seed = 3;
  return options;
}

// In letters.
ChannelReading InPieces(const AnswerReader::Options& options, const std::string& answer,
                        size_t piece) {
  AnswerReader reader(options);
  ChannelReading reading;
  for (size_t at = 0; at < answer.size(); at += piece) {
    reading.Add(reader.Push(answer.substr(at, piece), {}));
  }
  reading.Add(reader.Finish());
  reading.kept = reader.calls();
  return reading;
}

// With marks as special tokens, one at a time.
ChannelReading InTokens(AnswerReader::Options options, const std::string& answer) {
  for (int32_t id = 0; id < 7; ++id) options.form.marks.push_back({id + 10, kMarks[id]});
  AnswerReader reader(options);
  ChannelReading reading;
  for (size_t at = 0; at < answer.size();) {
    size_t size = 1;
    std::vector<TextMark> marks;
    for (int32_t id = 0; id < 7; ++id) {
      const std::string_view mark = kMarks[id];
      if (std::string_view(answer).substr(at).starts_with(mark)) {
        size = mark.size();
        marks.push_back({.at = 0, .id = id + 10});
      }
    }
    reading.Add(reader.Push(marks.empty() ? answer.substr(at, size) : "", marks));
    at += size;
  }
  reading.Add(reader.Finish());
  reading.kept = reader.calls();
  return reading;
}

ChannelReading ReadChannels(const AnswerReader::Options& options, const std::string& answer) {
  ChannelReading whole = InPieces(options, answer, answer.size() + 1);
  std::vector<ChannelReading> others = {InTokens(options, answer)};
  for (const size_t piece : {1, 2, 5}) others.push_back(InPieces(options, answer, piece));
  for (const ChannelReading& other : others) {
    EXPECT_EQ(other.text, whole.text) << answer;
    EXPECT_EQ(other.reasoning, whole.reasoning) << answer;
    EXPECT_EQ(other.calls, whole.calls) << answer;
    EXPECT_EQ(other.kept, whole.kept) << answer;
  }
  return whole;
}

constexpr char kThought[] = "<|channel|>analysis<|message|>Think < of it.<|end|><|start|>assistant";

TEST(ChannelReader, TellsReasoningFromText) {
  for (const char* end : {"", "<|return|>", "<|end|>"}) {
    const auto reading = ReadChannels(
        Harmony(), std::string(kThought) + "<|channel|>final<|message|>It is <b> so.\n" + end);
    EXPECT_EQ(reading.reasoning, "Think < of it.");
    EXPECT_EQ(reading.text, "It is <b> so.\n");
    EXPECT_THAT(reading.calls, IsEmpty());
  }
}

TEST(ChannelReader, ReadsACallWhereverItsToolStands) {
  for (const char* header :
       {"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.weather<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.weather code<|message|>"}) {
    for (const char* end : {"", "<|call|>"}) {
      const auto reading = ReadChannels(
          Harmony(), std::string(kThought) + header + " {\"city\": \"Paris\"}\n" + end);
      EXPECT_EQ(reading.reasoning, "Think < of it.") << header;
      EXPECT_EQ(reading.text, "") << header;
      EXPECT_THAT(reading.calls, ElementsAre("weather {\"city\": \"Paris\"}")) << header;
      ASSERT_THAT(reading.kept, SizeIs(1)) << header;
      EXPECT_EQ(reading.kept[0].arguments_json, "{\"city\": \"Paris\"}");
    }
  }
}

TEST(ChannelReader, ReadsACallThatBeginsTheAnswer) {
  const auto reading = ReadChannels(
      Harmony(), " to=functions.get.time<|channel|>commentary json<|message|>{}<|call|>");
  EXPECT_THAT(reading.calls, ElementsAre("get.time {}"));
  EXPECT_EQ(reading.text, "");
}

TEST(ChannelReader, PutsALineEndBetweenMessagesOfAKind) {
  const auto reading =
      ReadChannels(Harmony(), std::string(kThought) +
                                  "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                                  "<|channel|>analysis<|message|>More.<|end|>\n<|start|>assistant"
                                  "<|channel|>final<|message|>Done.<|return|>");
  EXPECT_EQ(reading.reasoning, "Think < of it.\nMore.");
  EXPECT_EQ(reading.text, "I look.\nDone.");
}

TEST(ChannelReader, ACallThatIsNoneIsText) {
  const std::string to = "<|channel|>commentary to=functions.weather<|message|>";
  auto reading = ReadChannels(Harmony(), to + "{\"city\": Paris}<|call|>");
  EXPECT_EQ(reading.text, "{\"city\": Paris}");
  EXPECT_THAT(reading.calls, ElementsAre("-weather {\"city\": "));
  EXPECT_THAT(reading.kept, IsEmpty());
  reading = ReadChannels(Harmony(), to + "{\"city\": \"Par");
  EXPECT_EQ(reading.text, "{\"city\": \"Par");
  EXPECT_THAT(reading.calls, ElementsAre("-weather {\"city\": \"Par"));
  reading = ReadChannels(Harmony(), to + "city<|call|>");
  EXPECT_EQ(reading.text, "city");
  EXPECT_THAT(reading.calls, IsEmpty());
  reading = ReadChannels(Harmony(), to + "{\"a\": 1, \"a\": 2}<|call|>");
  EXPECT_THAT(reading.calls, ElementsAre("-weather {\"a\": 1, \"a\": 2}"));
  EXPECT_THAT(reading.kept, IsEmpty());
  for (const char* other : {"functions.other", "browser.search", "functions.", ""}) {
    const auto unknown = ReadChannels(
        Harmony(), "<|channel|>commentary to=" + std::string(other) + "<|message|>{}<|call|>");
    EXPECT_EQ(unknown.text, "{}") << other;
    EXPECT_THAT(unknown.calls, IsEmpty()) << other;
  }
}

TEST(ChannelReader, WithoutToolsACallIsText) {
  AnswerReader::Options options = Harmony();
  options.tools.clear();
  const auto reading =
      ReadChannels(options, "<|channel|>commentary to=functions.weather<|message|>{}<|call|>");
  EXPECT_EQ(reading.text, "{}");
}

TEST(ChannelReader, AnAnswerWithoutMessagesIsText) {
  for (const char* answer : {"Hello.", " to", " to be", "<", "a <|start|", "\n<|x|>"}) {
    const auto reading = ReadChannels(Harmony(), answer);
    EXPECT_EQ(reading.text, answer);
    EXPECT_EQ(reading.reasoning, "");
  }
  const std::string endless = "<|channel|>" + std::string(2000, 'x');
  EXPECT_THAT(InPieces(Harmony(), endless, 7).text, ::testing::EndsWith("xxx"));
}

TEST(ChannelReader, ACutHeaderIsNothing) {
  for (const char* answer : {"<|channel|>ana", "<|channel|>analysis<|mess", "<|chan"}) {
    const auto reading = ReadChannels(Harmony(), std::string(kThought) + answer);
    EXPECT_EQ(reading.text, "") << answer;
    EXPECT_EQ(reading.reasoning, "Think < of it.") << answer;
  }
}

TEST(ChannelReader, ReasoningIsTextWhereNobodyAsks) {
  AnswerReader::Options options = Harmony();
  options.tell_reasoning = false;
  const auto reading =
      ReadChannels(options, std::string(kThought) + "<|channel|>final<|message|>So.<|return|>");
  EXPECT_EQ(reading.reasoning, "");
  EXPECT_EQ(reading.text, "Think < of it.\nSo.");
}

}  // namespace
}  // namespace eta
