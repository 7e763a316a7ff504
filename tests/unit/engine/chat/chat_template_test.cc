#include "engine/chat/chat_template.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ChatTemplate::Tokens kTokens = {};

absl::StatusOr<RenderedChat> Render(std::string_view source, const Chat& chat) {
  const auto made = ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
  if (!made.ok()) return made.status();
  return (*made)->Render(chat);
}

Chat Says(std::string content, std::string variables = "") {
  return {.messages = {{.role = "user", .content = std::move(content)}},
          .variables_json = std::move(variables)};
}

// The text of a template without a chat; its error where there is one.
std::string Text(std::string_view source, const Chat& chat = Says("hi")) {
  const auto rendered = Render(source, chat);
  return rendered.ok() ? rendered->text : std::string(rendered.status().message());
}

// The text with what the template wrote in brackets.
std::string Marked(std::string_view source, const Chat& chat) {
  const auto rendered = Render(source, chat);
  if (!rendered.ok()) return std::string(rendered.status().message());
  std::string out;
  size_t at = 0;
  for (const ByteRange& range : rendered->control) {
    out += rendered->text.substr(at, range.begin - at);
    out += "[" + rendered->text.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return out + rendered->text.substr(at);
}

absl::Status Error(std::string_view source, const Chat& chat = Says("hi")) {
  return Render(source, chat).status();
}

TEST(ChatTemplate, LiteralsAreWhatItMayWrite) {
  const auto made = ChatTemplate::Parse(
      "{# note #}{% macro say(x, y='m') %}[{{ x ~ y }}]{% endmacro %}{% set ns = namespace(a='n') "
      "%}"
      "{% if messages[0]['content'] == 'q' %}{{ say('<|' \"im\", y=1) | replace('u', 'v') }}"
      "{% endif %}end",
      kTokens);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT((*made)->Literals(), ElementsAre("<|im", "[", "]", "end", "m", "n", "q", "u", "v"));
}

TEST(ChatTemplate, RendersAsTransformersDoes) {
  constexpr std::string_view kChatMl =
      "{% for m in messages %}\n<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\n"
      "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}";
  Chat chat = Says("Hello");
  EXPECT_EQ(Text(kChatMl, chat), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  chat.add_generation_prompt = false;
  EXPECT_EQ(Text(kChatMl, chat), "<|im_start|>user\nHello<|im_end|>\n");
}

TEST(ChatTemplate, HandsOutWhatAMessageHas) {
  Chat chat{.messages = {{.role = "tool", .content = "4", .name = "add", .tool_call_id = "c1"}}};
  EXPECT_EQ(Text("{{ messages[0] }}", chat),
            "{'role': 'tool', 'content': '4', 'name': 'add', 'tool_call_id': 'c1'}");
  EXPECT_EQ(Text("{{ messages[0].name is defined }}"), "False");
  EXPECT_EQ(Text("{{ tools is none }}{{ documents }}{{ other is defined }}"), "TrueNoneFalse");
}

TEST(ChatTemplate, VariablesKeepTheirOrderAndTheirTypes) {
  const Chat chat = Says("", R"({"tools": [{"z": 1, "a": 2.0, "m": [true, null, "é"]}]})");
  EXPECT_EQ(Text("{{ tools[0]|tojson }}", chat), R"({"z": 1, "a": 2.0, "m": [true, null, "é"]})");
}

TEST(ChatTemplate, OnlyWhatTheTemplateWroteIsItsOwn) {
  EXPECT_EQ(Marked("{{ bos_token }}a{{ messages[0].content }}b", Says("<s>")), "[<s>a]<s>[b]");
  EXPECT_EQ(
      Marked("{{ '<' ~ messages[0].role ~ '>' + messages[0].content + eos_token }}", Says("</s>")),
      "[<user>]</s>[</s>]");
  EXPECT_EQ(Marked("{{ 1 }}{{ messages|length }}", Says("")), "11");
}

TEST(ChatTemplate, ARoleThatIsNoneOfTheProtocolsIsAUsersText) {
  Chat chat = Says("x");
  chat.messages[0].role = "<|im_start|>";
  EXPECT_EQ(Marked("{{ messages[0].role }}", chat), "<|im_start|>");
}

TEST(ChatTemplate, EveryWayOfATextKeepsWhoWroteIt) {
  const Chat chat = Says(" ab,Cd ", R"({"v": "w", "list": ["x", "y"]})");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ ('<' + messages[0].content + '>')[1:-1] }}", " ab,Cd "},
      {"{{ ('<' + messages[0].content)|upper }}", "[<] AB,CD "},
      {"{{ ('é' + messages[0].content).upper() }}", "[É] AB,CD "},
      {"{{ messages[0].content.split(',')|join('|') }}", " ab[|]Cd "},
      {"{{ messages[0].content.replace(',', '<s>') }}", " ab[<s>]Cd "},
      {"{{ '<s>'.replace('s', v) }}", "[<]w[>]"},
      {"{{ messages[0].content|trim }}", "ab,Cd"},
      {"{{ list|join('<s>') }}", "x[<s>]y"},
      {"{{ [v, '<s>'] }}", "['w', '[<s>]']"},
      {"{{ {'k': v}|tojson }}", R"({"[k]": "w"})"},
      {"{{ '{}<s>'.format(v) }}", "w[<s>]"},
      {"{{ (v ~ '<')|reverse }}", "[<]w"},
      {"{% set x %}<s>{{ v }}{% endset %}{{ x }}", "[<s>]w"},
      {"{% macro f(x) %}<s>{{ x }}{% endmacro %}{{ f(v)|upper }}", "[<S>]W"},
      {"{% filter upper %}a{{ v }}{% endfilter %}", "[A]W"},
      {"{{ v * 2 ~ 'x' * 2 }}", "ww[xx]"},
      {"{{ v|default('<s>') }}{{ nobody|default('<s>') }}", "w[<s>]"},
      {"{{ (v ~ '\n' ~ 'b')|indent(2) }}", "w\n  [b]"},
      {"{% for c in '<' ~ v %}{{ c }}{% endfor %}", "[<]w"},
      {"{{ ['<s>', v]|sort|first }}", "[<s>]"},
  };
  for (const auto& [source, marked] : cases) EXPECT_EQ(Marked(source, chat), marked) << source;
}

// bad input: Chat templates | raise_exception | INVALID_ARGUMENT, field `chat`, with the line and
//   the template's words
TEST(ChatTemplate, WhatItSaysByRaiseExceptionIsTheError) {
  const absl::Status status = Error("\n{{ raise_exception('Roles must alternate!') }}");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "chat template, line 2: Roles must alternate!");
}

// bad input: Chat templates | undefined values, operations that a type does not have |
//   INVALID_ARGUMENT, field `chat`, with the line
TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(Text("a\n{{ x.y }}"), "chat template, line 2: 'x' is undefined");
  EXPECT_EQ(Text("{% if %}"), "chat template, line 1: expected an expression, got '%}'");
  EXPECT_EQ(Text("\n\n{% if true %}"), "chat template, line 3: 'if' has no end");
  EXPECT_THAT(Text("{{ 'a' + 1 }}"), HasSubstr("unsupported operand types for +: 'str' and 'int'"));
  EXPECT_THAT(Text("{{ '\\u12' }}"), HasSubstr("an escape that is cut short"));
  EXPECT_THAT(Text("{{ 'a }}"), HasSubstr("a string has no end"));
  EXPECT_THAT(Text("\n{{ x is filter }}"), HasSubstr("line 2: test 'filter' is not known here"));
}

// bad input: Chat templates | unknown statements, filters, tests | at the start refused by name
TEST(ChatTemplate, WhatIsNotKnownIsRefusedByName) {
  for (const auto& [source, name] : std::vector<std::pair<std::string, std::string>>{
           {"{{ x|urlize }}", "filter 'urlize'"},
           {"{{ x|groupby('a') }}", "filter 'groupby'"},
           {"{{ x is filter }}", "test 'filter'"},
           {"{{ 1 is divisibleby(2) }}", "test 'divisibleby'"},
           {"{{ cycler('a', 'b') }}", "'cycler'"},
           {"{% do x %}", "statement 'do'"},
           {"{% include 'x' %}", "statement 'include'"},
           {"{% call x() %}{% endcall %}", "statement 'call'"},
           {"{{ 'a'.encode() }}", "'encode' of a str"},
           {"{{ 'a'.isalpha() }}", "'isalpha' of a str"},
           {"{{ [1].index(1) }}", "'index' of a list"},
           {"{% for x in [1] %}{{ loop.cycle(1, 2) }}{% endfor %}", "'cycle' of a LoopContext"},
           {"{{ 'a'.startswith('b', 1) }}", "argument 'start' of 'startswith'"},
           {"{{ [1]|tojson(sort_keys=true) }}", "argument 'sort_keys' of 'tojson'"},
           {"{{ '%s' % 1 }}", "'%' of a str"},
           {"{{ '{0}'.format(1) }}", "format '{0}'"},
           {"{{ 2 ** 3 }}", "operator '**'"},
           {"{{ [1] * 2 }}", "'*' of a list"},
           {"{{ 'abc'[::2] }}", "steps of a slice"},
           {"{{ 0x1F }}", "numbers spelled like 0x1F"},
           {"{{ f(*x) }}", "arguments unpacked by a star"},
           {"{{ lipsum() }}", "'lipsum'"},
           {"{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1) }}", "'varargs'"},
           {"{{ 123456789012345678901 }}", "integers of over 64 bits"},
           {"{{ 9223372036854775808 }}", "integers of over 64 bits"},
           {"{{ '\\ud800' }}", "surrogates in strings are not known here"},
           {"{% for x in y recursive %}{% endfor %}", "recursive loops"},
           {"{{ é }}", "characters outside ASCII"}}) {
    const absl::Status status = Error(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name)) << source;
  }
}

TEST(ChatTemplate, AnUnknownFilterBehindAConditionIsRefusedWhenItRuns) {
  EXPECT_EQ(Text("{% if false %}{{ 1|from_json }}{% endif %}x"), "x");
  EXPECT_EQ(Text("{{ 1|from_json if false else 'x' }}"), "x");
  const absl::Status ran = Error("{% if true %}{{ 1|from_json }}{% endif %}");
  EXPECT_EQ(ran.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(ran.message()), HasSubstr("filter 'from_json' is not known here"));
  EXPECT_FALSE(ChatTemplate::Parse("{% for x in y %}{{ x|from_json }}{% endfor %}", kTokens).ok());
}

// bad input: Chat templates | attributes of Python's objects | undefined
TEST(ChatTemplate, NothingOfPythonsObjectsIsReached) {
  for (const std::string source :
       {"{{ ''.__class__ }}", "{{ [].__class__.__base__ }}", "{{ messages.__len__() }}",
        "{{ raise_exception.__globals__ }}", "{{ messages[0].items.__self__ }}"}) {
    const auto rendered = Render(source, Says("hi"));
    EXPECT_TRUE(!rendered.ok() || rendered->text.empty()) << source;
  }
  EXPECT_THAT(Text("{{ messages[0].content.__class__.__mro__ }}"),
              HasSubstr("no attribute '__class__'"));
}

// bad input: Chat templates | methods that change a value | INVALID_ARGUMENT, field `chat`
TEST(ChatTemplate, ValuesAreNotChanged) {
  for (const std::string source :
       {"{{ messages.append(1) }}", "{{ messages[0].update({}) }}", "{{ messages.pop() }}",
        "{{ messages.sort() }}", "{{ messages[0].clear() }}",
        "{{ messages[0].setdefault('a') }}"}) {
    EXPECT_THAT(Text(source), HasSubstr("forbidden in templates")) << source;
  }
  EXPECT_THAT(Text("{% set messages.x = 1 %}"), HasSubstr("namespace"));
}

}  // namespace
}  // namespace eta
