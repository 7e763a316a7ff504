#include "engine/chat/tools/form_probe.h"

#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/engine/tool_templates.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

AnswerForm FormOf(const std::string& source) {
  const auto made = ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
  return ProbeAnswerForm(**made).value();
}

TEST(FormProbe, TellsHowAModelCallsTools) {
  const AnswerForm tagged = FormOf(testing::kTaggedTemplate);
  EXPECT_TRUE(tagged.shows_tools);
  EXPECT_EQ(tagged.calls, CallSyntax::kTagged);
  EXPECT_EQ(tagged.begin, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(tagged.middle, "\", \"arguments\": ");
  EXPECT_EQ(tagged.end, "}\n</tool_call>");
  EXPECT_FALSE(tagged.short_ids);
  EXPECT_EQ(tagged.reasoning_begin, "<think>");
  EXPECT_THAT(MarksOf(tagged), ElementsAre("<tool_call>", "</tool_call>", "<think>", "</think>"));

  const AnswerForm bare = FormOf(testing::kBareTemplate);
  EXPECT_EQ(bare.calls, CallSyntax::kBare);
  EXPECT_EQ(bare.begin, "{\"name\": \"");
  EXPECT_EQ(bare.middle, "\", \"parameters\": ");
  EXPECT_EQ(bare.end, "}");
  EXPECT_EQ(bare.reasoning_begin, "");

  const AnswerForm list = FormOf(testing::kListTemplate);
  EXPECT_EQ(list.calls, CallSyntax::kMistral);
  EXPECT_EQ(list.begin, "[TOOL_CALLS][{\"name\": \"");
  EXPECT_EQ(list.end, "}]");
  EXPECT_TRUE(list.short_ids);

  const AnswerForm named = FormOf(testing::kNamedTemplate);
  EXPECT_EQ(named.calls, CallSyntax::kMistral);
  EXPECT_EQ(named.begin, "[TOOL_CALLS]");
  EXPECT_EQ(named.middle, "[ARGS]");
  EXPECT_EQ(named.end, "");
}

// The template of gpt-oss, as it was published.
TEST(FormProbe, TellsAnswersWithChannels) {
  std::ifstream file(ETA_SOURCE_DIR "/tests/oracles/chat_templates/llama_cpp.json");
  const auto templates = nlohmann::json::parse(file);
  const AnswerForm harmony = FormOf(templates.at("models/templates/openai-gpt-oss-120b.jinja"));
  EXPECT_TRUE(harmony.channels);
  EXPECT_TRUE(harmony.shows_tools);
  EXPECT_EQ(harmony.calls, CallSyntax::kChannel);
  EXPECT_EQ(harmony.begin, "to=functions.");
  EXPECT_EQ(harmony.middle, "<|channel|>commentary json<|message|>");
  EXPECT_EQ(harmony.end, "<|call|>");
  EXPECT_EQ(harmony.reasoning_begin, "<|channel|>analysis<|message|>");
  EXPECT_EQ(harmony.reasoning_end, "<|end|><|start|>assistant<|channel|>final<|message|>");
  EXPECT_THAT(MarksOf(harmony), ::testing::SizeIs(7));
}

TEST(FormProbe, KnowsNoFormThatItCannotRead) {
  const AnswerForm none = FormOf("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(none, AnswerForm());
  EXPECT_THAT(MarksOf(none), IsEmpty());
  const AnswerForm other = FormOf(
      "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
      "<f={{ c.function.name }}>{{ c.function.arguments | tojson }}</f>{% endfor %}{% endfor %}");
  EXPECT_TRUE(other.shows_tools);
  EXPECT_EQ(other.calls, CallSyntax::kNone);
  EXPECT_EQ(FormOf("{{ raise_exception('never') }}"), AnswerForm());
}

TEST(FormProbe, TellsWhetherAPromptHasBegunToReason) {
  const auto made = ChatTemplate::Parse(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if open %}<think>\n{% endif %}"
      "{% if closed %}</think>{% endif %}",
      {});
  const AnswerForm form = ProbeAnswerForm(**made).value();
  const auto ends = [&](const std::string& said, const std::string& variables) {
    Chat chat{.messages = {{.role = "user", .content = said}}, .variables_json = variables};
    return EndsInReasoning(form, (*made)->Render(chat).value());
  };
  EXPECT_TRUE(ends("Hi", R"({"open": true})"));
  EXPECT_FALSE(ends("Hi", R"({"open": true, "closed": true})"));
  EXPECT_FALSE(ends("Hi", ""));
  EXPECT_FALSE(ends("Hi <think>", "")) << "a message begins nothing";
  EXPECT_FALSE(ends("", ""));
}

}  // namespace
}  // namespace eta
