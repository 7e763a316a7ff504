// Every allocation of reading a chat template and of rendering a chat fails once, in turn.
#include <string>

#include "engine/chat/chat_template.h"
#include "gtest/gtest.h"
#include "tests/testing/faults/failing_memory.h"

namespace eta::testing {
namespace {

// A bit of everything that holds memory.
constexpr char kTemplate[] =
    "{% set ns = namespace(seen=[], self=none) %}{% set ns.self = [ns] %}"
    "{% macro turn(m, end='<|end|>') %}<|{{ m.role }}|>{{ m.content|trim }}{{ end }}{{ caller() }}"
    "{% endmacro %}"
    "{% for m in messages if m.content is string %}"
    "{% call turn(m) %}{{ loop.index }}{% endcall %}"
    "{% set ns.seen = ns.seen + [m.content.split(' ')|first|upper] %}"
    "{% set x %}{{ ns.seen|sort|join(', ') }}{% endset %}{{ x|length }}"
    "{% endfor %}"
    "{{ tools|map(attribute='name')|list }}{{ tools|tojson(indent=2) }}"
    "{{ '%s %d'|format('a', 1) }}{{ '{}'.format(tools) }}{{ {'a': 1}.items()|list }}";

TEST(NthFailureChat, AllocationWhileATemplateIsReadAndAChatRendered) {
  EXPECT_GT(FailEachAllocation([] {
              return ChatTemplate::Parse(kTemplate, {"<s>", "</s>"}).status();
            }),
            20);
  const auto made = ChatTemplate::Parse(kTemplate, {.bos = "<s>", .eos = "</s>"});
  ASSERT_TRUE(made.ok()) << made.status();
  const Chat chat{.messages = {{.role = "user", .content = "Good day to you, all of you here"},
                               {.role = "assistant", .content = "And to you"}},
                  .variables_json = R"({"tools": [{"name": "f", "list": [1, 2.5, null, "é"]}]})"};
  EXPECT_GT(FailEachAllocation([&] { return (*made)->Render(chat).status(); }), 20);
  ASSERT_TRUE((*made)->Render(chat).ok());
}

}  // namespace
}  // namespace eta::testing
