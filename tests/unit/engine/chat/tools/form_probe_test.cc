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

// The form that a model's template gives, as it was published.
AnswerForm FormOfModel(const std::string& name) {
  std::ifstream file(ETA_SOURCE_DIR "/tests/oracles/chat_templates/llama_cpp.json");
  const auto templates = nlohmann::json::parse(file);
  return FormOf(templates.at("models/templates/" + name + ".jinja"));
}

void ExpectCalls(const AnswerForm& form, CallSyntax calls, const std::string& begin,
                 const std::string& middle, const std::string& end) {
  EXPECT_TRUE(form.shows_tools);
  EXPECT_EQ(form.calls, calls);
  EXPECT_EQ(form.begin, begin);
  EXPECT_EQ(form.middle, middle);
  EXPECT_EQ(form.end, end);
}

TEST(FormProbe, KnowsTheFamiliesThatAreServed) {
  for (const char* name : {"Qwen-Qwen2.5-7B-Instruct", "Qwen-QwQ-32B", "Qwen-Qwen3-0.6B",
                           "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
                           "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"}) {
    SCOPED_TRACE(name);
    ExpectCalls(FormOfModel(name), CallSyntax::kTagged, "<tool_call>\n{\"name\": \"",
                "\", \"arguments\": ", "}\n</tool_call>");
  }
  EXPECT_EQ(FormOfModel("Qwen-Qwen3-0.6B").reasoning_begin, "<think>");
  for (const char* name : {"meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
                           "meta-llama-Llama-3.3-70B-Instruct"}) {
    SCOPED_TRACE(name);
    ExpectCalls(FormOfModel(name), CallSyntax::kBare, "{\"name\": \"", "\", \"parameters\": ", "}");
  }
  const AnswerForm nemo = FormOfModel("mistralai-Mistral-Nemo-Instruct-2407");
  ExpectCalls(nemo, CallSyntax::kMistral, "[TOOL_CALLS][{\"name\": \"",
              "\", \"arguments\": ", "}]");
  EXPECT_TRUE(nemo.short_ids);
  for (const char* name :
       {"Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512"}) {
    SCOPED_TRACE(name);
    ExpectCalls(FormOfModel(name), CallSyntax::kMistral, "[TOOL_CALLS]", "[ARGS]", "");
  }
}

TEST(FormProbe, TellsAnswersWithChannels) {
  const AnswerForm harmony = FormOfModel("openai-gpt-oss-120b");
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
