// Formats of all kinds, compiled and followed by the library that this build has.
#include "engine/format/library/grammar_library.h"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/chat/tools/form_probe.h"
#include "engine/format/compiler/helper_compiler.h"
#include "engine/request/answers/tool_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/fake_library.h"
#include "tests/unit/engine/format/grammar_library_fixture.h"

namespace eta {
namespace {

using Kind = AnswerFormatKind;
using testing::Has;
using testing::IsFollowedExactly;
using testing::MaskOf;
using testing::SmallVocabulary;
using testing::TokenOf;

class GrammarLibraryTest : public testing::GrammarLibraryFixture {};

TEST_F(GrammarLibraryTest, Schemas) {
  Expect(
      {.kind = Kind::kJsonSchema,
       .source = R"({"type":"object","properties":{"z":{"type":"integer"},)"
                 R"("a":{"enum":["x","y"]}},"required":["z","a"],"additionalProperties":false})"},
      {R"({"z":1,"a":"x"})", R"({ "z": -12, "a": "y" })"},
      {R"({"z":1})", R"({"z":1.5,"a":"x"})", R"({"z":1,"a":"w"})", R"({"z":1,"a":"x","b":1})", "[]",
       ""});
}

TEST_F(GrammarLibraryTest, Objects) {
  Expect({.kind = Kind::kJsonObject}, {"{}", R"({"a":[1,2,{"b":null}],"c":"d"})"},
         {"[]", "1", R"({"a")", "{}x"});
}

TEST_F(GrammarLibraryTest, WhiteSpaceIsBounded) {
  const auto object = Make({.kind = Kind::kJsonObject});
  EXPECT_TRUE(Takes(*object, R"({  "a"  :  [  1  ,  2  ]  })"));
  EXPECT_FALSE(Takes(*object, R"({   "a":1})"));
  EXPECT_FALSE(Takes(*object, R"({"a":   1})"));
  EXPECT_FALSE(Takes(*object, R"({"a":[1,   2]})"));
}

TEST_F(GrammarLibraryTest, RegularExpressions) {
  Expect({.kind = Kind::kRegex, .source = "[A-Z]{2,3}-\\d+"}, {"AB-1", "ABC-1234"},
         {"A-1", "AB-", "xAB-1", "AB-1x"});
  // They match from end to end, whatever anchors say.
  Expect({.kind = Kind::kRegex, .source = "^foo$"}, {"foo"}, {"foox", "xfoo"});
}

// bad input: Formats of answers | a regular expression with look-around, references back, flags,
//   boundaries of words, classes of Unicode, or that is none | INVALID_ARGUMENT, field
//   `format.regex`
TEST_F(GrammarLibraryTest, RegularExpressionsThatCannotBeEnforcedAreRefused) {
  for (const char* const regex : {"(?=a)b", "(?!a)b", "(?<=a)b", "(a)\\1", "\\bfoo", "\\p{L}+",
                                  "(?i)abc", "a^b", "[", "(", "a{2,1}", "*"}) {
    EXPECT_NE(Refusal({.kind = Kind::kRegex, .source = regex}), "") << regex;
  }
}

TEST_F(GrammarLibraryTest, Grammars) {
  Expect({.kind = Kind::kGrammar,
          .source = "root ::= \"a\" more*\nmore ::= [x-z] | \"[\" root \"]\"\n"},
         {"a", "axyz", "ax[a[ay]]"}, {"", "x", "a[a"});
}

// bad input: Formats of answers | a grammar without `root`, with a syntax error, an unknown rule,
//   options of rules, or that no text fits | INVALID_ARGUMENT, field `format.grammar`
TEST_F(GrammarLibraryTest, GrammarsThatAreNoneAreRefused) {
  for (const char* const grammar :
       {"top ::= \"a\"", "root ::= ", "root ::= \"a", "root ::= other", "root = \"a\"",
        "root[temperature=0.5] ::= \"a\"", "root ::= a\na[capture] ::= \"a\""}) {
    EXPECT_NE(Refusal({.kind = Kind::kGrammar, .source = grammar}), "") << grammar;
  }
}

TEST_F(GrammarLibraryTest, Choices) {
  Expect({.kind = Kind::kChoice, .choices = {"yes", "no", "not \"now\"\\\n", "h\xc3\xa9"}},
         {"yes", "no", "not \"now\"\\\n", "h\xc3\xa9"}, {"", "y", "noo", "maybe", "h"});
}

TEST_F(GrammarLibraryTest, StructuralTags) {
  const AnswerFormat format = {
      .kind = Kind::kStructuralTag,
      .source = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f="],)"
                R"("tags":[{"type":"tag","begin":"<f=g>","content":{"type":"json_schema",)"
                R"("json_schema":{"type":"object","properties":{"z":{"type":"null"},"a":{"type":)"
                R"("null"}},"required":["z","a"]}},"end":"</f>"}]}})"};
  Expect(format, {"free text", R"(call <f=g>{"z": null, "a": null}</f> done)"},
         {"<f=h>", R"(<f=g>{"a":null,"z":null}</f>)", R"(<f=g>{"z":null})"});
}

TEST_F(GrammarLibraryTest, SpecialTokensAreNoText) {
  const int32_t tool = TokenOf(vocabulary_, "[TOOL]");
  const int32_t begin = TokenOf(vocabulary_, "<s>");
  const int32_t end = vocabulary_.ends[0];
  for (const AnswerFormat& format :
       {AnswerFormat{.kind = Kind::kRegex, .source = "(.|\\n)*"},
        AnswerFormat{.kind = Kind::kRegex, .source = "\\[TOOL\\]"},
        AnswerFormat{.kind = Kind::kGrammar, .source = "root ::= [^x]*"},
        AnswerFormat{.kind = Kind::kStructuralTag,
        .source = R"({"type":"structural_tag","format":{"type":"any_text"}})"}}) {
    const auto guide = Make(format)->NewGuide(/*in_reasoning=*/false);
    const auto mask = MaskOf(*guide, vocabulary_);
    for (const int32_t special : {tool, begin}) {
      EXPECT_FALSE(Has(mask, special));
      EXPECT_FALSE(guide->Accept(special));
    }
    // Nor are those that the model has and the tokenizer has not.
    for (auto id = static_cast<int32_t>(vocabulary_.tokens.size()); id < vocabulary_.size; ++id) {
      EXPECT_FALSE(Has(mask, id));
      EXPECT_FALSE(guide->Accept(id));
    }
    EXPECT_EQ(Has(mask, end), guide->Complete());
  }
}

TEST_F(GrammarLibraryTest, AStructuralTagMayNameSpecialTokens) {
  const auto format = Make(
      {.kind = Kind::kStructuralTag,
       .source = R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
                 R"({"type":"token","token":"[TOOL]"},{"type":"const_string","value":"ab"}]}})"});
  const int32_t tool = TokenOf(vocabulary_, "[TOOL]");
  const auto guide = format->NewGuide(/*in_reasoning=*/false);
  const auto mask = MaskOf(*guide, vocabulary_);
  for (int32_t id = 0; id < vocabulary_.size; ++id) EXPECT_EQ(Has(mask, id), id == tool) << id;
  ASSERT_TRUE(guide->Accept(tool));
  EXPECT_FALSE(guide->Accept(tool));
  ASSERT_TRUE(guide->Accept(TokenOf(vocabulary_, "ab")));
  EXPECT_TRUE(guide->Complete());
}

TEST_F(GrammarLibraryTest, MasksAreThoseOfTheGuideAfterEveryToken) {
  const auto format = Make(
      {.kind = Kind::kJsonSchema,
       .source =
           R"({"type":"object","properties":{"ab":{"type":"array","items":{"type":"boolean"}},)"
           R"("c":{"type":"string","maxLength":3}},"required":["ab","c"]})"});
  EXPECT_TRUE(IsFollowedExactly(*format, vocabulary_));
}

// Tokens that end before, at and behind the end of a repetition, or hold what it does not take.
TEST_F(GrammarLibraryTest, MasksOfRepetitionsAreThoseOfTheGuide) {
  FormatVocabulary vocabulary = SmallVocabulary();
  for (const char* const token : {"aa", "aaaaa", "abab", "ababababab", "aaaaaaaaaaaaaaaaaaaaaaaaa",
                                  "aaaa\"", "a\"}", "aaaaaaaaaaaa\"", "a\nb", "aa\xc3\xa9",
                                  "\xc3\xa9\xc3\xa9", "abc", "bcd", "bbbccc", "dddd", "cccddd"}) {
    vocabulary.tokens.emplace_back(token);
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.tokens.size());
  const auto library = MakeGrammarLibrary(vocabulary);
  ASSERT_TRUE(library.ok()) << library.status();
  const auto schema = [](const std::string& bounds) {
    return AnswerFormat{.kind = Kind::kJsonSchema,
                        .source = R"({"type":"object","properties":{"a":{"type":"string",)" +
                                  bounds + R"(}},"required":["a"]})"};
  };
  for (const AnswerFormat& format :
       {schema(R"("maxLength":9)"), schema(R"("minLength":4,"maxLength":12)"),
        schema(R"("maxLength":30)"), schema(R"("maxLength":200)"), schema(R"("minLength":150)"),
        schema(R"("pattern":"^[ab]{3,40}$")"),
        AnswerFormat{.kind = Kind::kRegex, .source = "[a-c]{3}[b-d]{5}"},
        AnswerFormat{.kind = Kind::kRegex, .source = "(ab|abab|c){4}[ab]{0,7}"},
        AnswerFormat{.kind = Kind::kRegex, .source = "[^x]{2,20}"},
        AnswerFormat{.kind = Kind::kGrammar,
        .source = "root ::= one{2,9} [ab]{0,4}\none ::= [a-c] [a-b] | \"d\""},
        AnswerFormat{.kind = Kind::kGrammar,
        .source = "root ::= [a-c] two\ntwo ::= [b-d] three | \"\"\nthree ::= [a-d] root"}}) {
    const auto compiled = (*library)->Compile(format);
    ASSERT_TRUE(compiled.ok()) << format.source << compiled.status();
    const auto read = (*library)->Read(format, *compiled);
    ASSERT_TRUE(read.ok()) << read.status();
    IsFollowedExactly(**read, vocabulary);
    if (HasFailure()) FAIL() << format.source;
  }
}

TEST_F(GrammarLibraryTest, AnEndIsTakenWhereTheAnswerMayEndAndTakenBack) {
  const auto guide = Make({.kind = Kind::kRegex, .source = "ab"})->NewGuide(/*in_reasoning=*/false);
  const int32_t end = vocabulary_.ends[0];
  EXPECT_FALSE(guide->Accept(end));
  ASSERT_TRUE(guide->Accept(TokenOf(vocabulary_, "ab")));
  ASSERT_TRUE(guide->Accept(end));
  EXPECT_EQ(MaskOf(*guide, vocabulary_), std::vector<uint32_t>((vocabulary_.size + 31) / 32));
  EXPECT_FALSE(guide->Accept(end));
  guide->Rollback(2);
  EXPECT_FALSE(guide->Complete());
  EXPECT_TRUE(guide->Accept(TokenOf(vocabulary_, "a")));
}

TEST_F(GrammarLibraryTest, ReasoningComesBeforeTheFormat) {
  const AnswerFormat format = {.kind = Kind::kRegex,
                               .source = "[0-9]+",
                               .reasoning_begin = "<think>",
                               .reasoning_end = "</think>"};
  Expect(format, {"12", "<think>so\n</think>12", "<think></think>1"},
         {"x", "<think>12", "<think>1</think>x", "12<think></think>"});
}

// A model that answers by messages, after reasoning or at once.
TEST_F(GrammarLibraryTest, ARequiredCallIsOneMessageToATool) {
  FormatVocabulary vocabulary = vocabulary_;
  AnswerForm form;
  form.shows_tools = form.channels = true;
  form.calls = CallSyntax::kChannel;
  form.begin = "to=functions.";
  form.middle = "<|channel|>commentary json<|message|>";
  form.reasoning_begin = "<|channel|>analysis<|message|>";
  form.reasoning_end = "<|end|><|start|>assistant<|channel|>final<|message|>";
  for (const std::string& mark : MarksOf(form)) {
    const auto id = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(mark);
    vocabulary.special.push_back(id);
    if (mark == kMessageCall || mark == kMessageReturn) vocabulary.ends.push_back(id);
    form.marks.push_back({.id = id, .text = mark});
  }
  vocabulary.size += 7;
  auto made = MakeGrammarLibrary(vocabulary);
  ASSERT_TRUE(made.ok()) << made.status();
  library_ = *std::move(made);

  Chat chat;
  chat.tools = {{.name = "f",
                 .parameters_json = R"({"type":"object","properties":{"a":)"
                                    R"({"type":"integer"}},"required":["a"]})"},
                {.name = "g"}};
  // Whether a call of `chat` may be so, by tokens of which marks are one each, and end there.
  const auto takes = [&](std::string_view text) {
    const auto guide = Make(*ToolFormat(chat, form))->NewGuide(/*in_reasoning=*/false);
    while (!text.empty()) {
      std::string_view piece = text.substr(0, 1);
      for (const auto& mark : form.marks) {
        if (text.starts_with(mark.text)) piece = mark.text;
      }
      const int32_t token = TokenOf(vocabulary, piece);
      const bool masked = Has(MaskOf(*guide, vocabulary), token);
      EXPECT_EQ(masked, guide->Accept(token)) << text;
      if (!masked) return false;
      text.remove_prefix(piece.size());
    }
    const auto mask = MaskOf(*guide, vocabulary);
    for (const int32_t end : vocabulary.ends) EXPECT_EQ(Has(mask, end), guide->Complete());
    return guide->Complete();
  };
  const std::string thought = "<|channel|>analysis<|message|>so {<|end|><|start|>assistant";
  const std::string f =
      "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}";
  const std::string g = " to=functions.g<|channel|>commentary json<|message|>{}";
  for (const auto choice : {true, false}) {
    if (choice) {
      chat.tool_choice = ToolChoice::kRequired;
    } else {
      chat.tool_choice.reset();
      chat.tool_to_call = "f";
    }
    EXPECT_TRUE(takes(f));
    EXPECT_TRUE(takes(thought + f));
    EXPECT_EQ(takes(g), choice);
    EXPECT_EQ(takes(thought + g), choice);
    EXPECT_FALSE(takes(thought + thought + f)) << "it has thought";
    EXPECT_FALSE(takes("<|channel|>final<|message|>x"));
    EXPECT_FALSE(takes(thought + "<|channel|>final<|message|>x"));
    EXPECT_FALSE(takes(f.substr(0, f.size() - 2) + "null}"));
    EXPECT_FALSE(takes(f + "<|end|>")) << "one call ends the answer";
    EXPECT_FALSE(takes("<|channel|>commentary to=functions.h <|constrain|>json<|message|>{}"));
    EXPECT_FALSE(takes(""));
    EXPECT_FALSE(takes(thought));
  }
}

TEST_F(GrammarLibraryTest, ChecksNameWhereAnAnswerLeavesItsFormat) {
  const auto format = Make({.kind = Kind::kRegex, .source = "ab+"});
  EXPECT_EQ(format->Check("abx").message(),
            "the answer is not what its format asks for: it leaves it at byte 2");
  EXPECT_EQ(format->Check("a").message(),
            "the answer is not what its format asks for: it ends too early, after 1 bytes");
}

TEST_F(GrammarLibraryTest, WhatIsNoCompiledFormatIsAnError) {
  const AnswerFormat format = {.kind = Kind::kRegex, .source = "ab"};
  const std::string good = *library_->Compile(format);
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[]"), std::string("null"),
        std::string(200'000, '['), std::string("\xff\xfe"), good.substr(0, good.size() / 2),
        good + "]", std::string(R"({"__VERSION__":"v0","grammar":null})")}) {
    const auto read = library_->Read(format, bad);
    if (read.ok()) {
      EXPECT_EQ(bad, good + "]");  // its JSON reader stops at the end of the value
      continue;
    }
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInternal) << bad.substr(0, 80);
  }
}

// What a helper process sends back, and what is kept of it.
TEST_F(GrammarLibraryTest, CompiledFormatsGrowWithTheirSource) {
  const auto bytes = [&](int properties) {
    std::string schema = R"({"type":"object","properties":{)";
    for (int i = 0; i < properties; ++i) {
      absl::StrAppend(&schema, i == 0 ? "" : ",", "\"name", i, R"(":{"type":"array","items":)",
                      R"({"enum":["x)", i, R"("]}})");
    }
    const auto compiled =
        library_->Compile({.kind = Kind::kJsonSchema, .source = absl::StrCat(schema, "}}")});
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return compiled.ok() ? compiled->size() : 0;
  };
  EXPECT_LT(bytes(200), 5 * bytes(50));
}

TEST_F(GrammarLibraryTest, RulesOfCompiledFormatsHaveTheirStates) {
  const AnswerFormat format = {.kind = Kind::kRegex, .source = "ab"};
  const std::string good = *library_->Compile(format);
  for (const int32_t state : {-1, 1'000'000'000}) {
    nlohmann::json bad = nlohmann::json::parse(good);
    bad["grammar"]["per_rule_fsms"][0][0][0] = state;
    EXPECT_EQ(library_->Read(format, bad.dump()).status().code(), absl::StatusCode::kInternal);
    bad = nlohmann::json::parse(good);
    bad["grammar"]["per_rule_fsms"][0][0][1][0] = state;
    EXPECT_EQ(library_->Read(format, bad.dump()).status().code(), absl::StatusCode::kInternal);
  }
  nlohmann::json none = nlohmann::json::parse(good);
  none["grammar"]["complete_fsm"] = nullptr;
  EXPECT_EQ(library_->Read(format, none.dump()).status().code(), absl::StatusCode::kInternal);
}

// bad input: Formats of answers | a regular expression or grammar that takes long to compile or to
//   follow: nested repetitions, ambiguity, circles | INVALID_ARGUMENT, FORMAT_TOO_SLOW or
//   FORMAT_TOO_LARGE within the deadline
TEST_F(GrammarLibraryTest, HostileFormatsMeetTheirLimits) {
  const auto helper = FormatHelper::Start({.memory_bytes = int64_t{256} << 20});
  ASSERT_TRUE(helper.ok()) << helper.status();
  const std::chrono::milliseconds limit(2000);
  auto compiler = HelperCompiler::Create({.compile_timeout = limit}, **helper, vocabulary_);
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  std::string regex = "(a|a)*";
  for (int i = 0; i < 10; ++i) regex = "(" + regex + "|" + regex + ")*";
  std::string circle = "root ::= root root | \"a\"\n";
  for (const AnswerFormat& format :
       {AnswerFormat{.kind = Kind::kRegex, .source = regex},
        AnswerFormat{.kind = Kind::kRegex, .source = "((a{0,999}){0,999}){0,999}"},
        AnswerFormat{.kind = Kind::kRegex,
        .source = std::string(30'000, '(') + std::string(30'000, ')')},
        AnswerFormat{.kind = Kind::kGrammar, .source = circle},
        AnswerFormat{.kind = Kind::kGrammar, .source = "root ::= \"a\"{0,2000000000}"},
        AnswerFormat{.kind = Kind::kGrammar, .source = "root ::= root"}}) {
    const Clock::time_point begin = Clock::now();
    const auto made = (*compiler)->Compile("", format, Clock::time_point::max());
    EXPECT_LT(Clock::now() - begin, limit + std::chrono::seconds(2)) << format.source.substr(0, 40);
    if (made.ok()) continue;
    const std::string reason = Reason(made.status());
    EXPECT_TRUE(reason == "INVALID_FIELD" || reason == "FORMAT_TOO_SLOW" ||
                reason == "FORMAT_TOO_LARGE")
        << format.source.substr(0, 40) << made.status();
  }
  EXPECT_TRUE((*compiler)
                  ->Compile("", {.kind = Kind::kChoice, .choices = {"a"}}, Clock::time_point::max())
                  .ok());
}

// bad input: Formats of answers | a grammar that is too slow to follow only in the middle of an
//   answer | DEADLINE_EXCEEDED, FORMAT_TOO_SLOW, with what it took |
//   BoundAnswers.WhoseGuideFailsSayWhy
TEST_F(GrammarLibraryTest, WhatBecomesTooSlowToFollowSaysSo) {
  // Each token ends words that began at any token before it, and of many kinds.
  std::string grammar = "root ::= word root | word\nword ::= w0";
  std::string words = "\n";
  for (int i = 0; i < 40; ++i) {
    if (i > 0) absl::StrAppend(&grammar, " | w", i);
    absl::StrAppend(&words, "w", i, " ::= \"a\" w", i, " | \"a\"\n");
  }
  const auto format = Make({.kind = Kind::kGrammar, .source = grammar + words});
  ASSERT_NE(format, nullptr);
  const auto guide = format->NewGuide(/*in_reasoning=*/false);
  const int32_t token = TokenOf(vocabulary_, "a");
  int taken = 0;
  EXPECT_TRUE(guide->failure().ok());
  while (taken < 100'000 && guide->Accept(token)) ++taken;
  EXPECT_FALSE(Has(MaskOf(*guide, vocabulary_), token));
  EXPECT_FALSE(Has(MaskOf(*guide, vocabulary_), vocabulary_.ends[0]));
  const absl::Status failure = guide->failure();
  EXPECT_EQ(failure.code(), absl::StatusCode::kDeadlineExceeded) << taken;
  EXPECT_EQ(Reason(failure), "FORMAT_TOO_SLOW");
  EXPECT_EQ(GetErrorDetail(failure).field, "format");
  EXPECT_NE(std::string(failure.message()).find(absl::StrCat("for ", taken, " tokens")),
            std::string::npos)
      << failure;
}

}  // namespace
}  // namespace eta
