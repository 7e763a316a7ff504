#include "engine/tokenizer/json/json_codec.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/text_stream.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/tokenizer_json.h"

namespace eta {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kSpace[] = "\xE2\x96\x81";
const json kSpecial = {{"special", true}};

ModelConfig ConfigOf(int32_t vocab_size) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  return config;
}

std::unique_ptr<Tokenizer> Load(const TokenizerJson& file, int32_t vocab_size = 64,
                                const std::string& chat_template = "") {
  TokenizerFiles files{.tokenizer_json = file.Dump()};
  if (!chat_template.empty()) files.chat_template = chat_template;
  auto tokenizer = Tokenizer::Load(files, ConfigOf(vocab_size));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

absl::Status Refusal(const TokenizerJson& file, int32_t vocab_size = 64) {
  const absl::Status status =
      Tokenizer::Load({.tokenizer_json = file.Dump()}, ConfigOf(vocab_size)).status();
  EXPECT_FALSE(status.ok()) << file.Dump();
  return status;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text, bool special = false) {
  const auto ids = tokenizer.Encode(text, false, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

// "a", "b", " " and "ab", of text as it is.
TokenizerJson Plain() {
  return TokenizerJson({"a", "b", " ", "ab", "<", ">", "s", "/"}, {{"a", "b"}});
}

TEST(JsonCodec, ControlTokensAreReadWhereTheCallerSaysSo) {
  TokenizerJson file = Plain();
  file.Add("<s>", 10, kSpecial);
  file.Add("<b>", 11);
  const auto tokenizer = Load(file);
  EXPECT_THAT(Ids(*tokenizer, "<s>ab<b>"), ElementsAre(4, 6, 5, 3, 11)) << "text stays text";
  EXPECT_THAT(Ids(*tokenizer, "<s>ab<b>", true), ElementsAre(10, 3, 11));
  const std::vector<ByteRange> last = {{5, 8}};
  EXPECT_THAT(*tokenizer->Encode("<s>ab<s>", false, last), ElementsAre(4, 6, 5, 3, 10));
  const std::vector<ByteRange> wrong[] = {{{4, 2}}, {{0, 9}}, {{2, 4}, {0, 1}}, {{0, 4}, {3, 5}}};
  for (const std::vector<ByteRange>& ranges : wrong) {
    EXPECT_TRUE(absl::IsInvalidArgument(tokenizer->Encode("<s>ab<s>", false, ranges).status()));
  }
}

TEST(JsonCodec, WhatTheChatTemplateSpellsIsControl) {
  TokenizerJson file = Plain();
  file.Add("<b>", 11);
  const auto tokenizer = Load(file, 64, "{{ '<b>' }}");
  EXPECT_THAT(Ids(*tokenizer, "<b>"), ElementsAre(4, 1, 5));
  EXPECT_THAT(Ids(*tokenizer, "<b>", true), ElementsAre(11));
  EXPECT_EQ(tokenizer->PieceBytes(11), "<b>") << "yet it is not special, so it is seen";
}

TEST(JsonCodec, WhiteSpaceIsNoControlThoughTheTemplateSpellsIt) {
  TokenizerJson file = Plain();
  file.Add("  ", 11);
  const auto tokenizer = Load(file, 64, "{{ '  ' }}");
  EXPECT_THAT(Ids(*tokenizer, "a  b"), ElementsAre(0, 11, 1));
}

TEST(JsonCodec, WhiteSpaceThatANormalizerSpellsOtherwiseIsNoneEither) {
  TokenizerJson file({"a", "b", kSpace}, {});
  file.root["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  file.Add("  ", 11, {{"normalized", true}});
  const auto tokenizer = Load(file, 64, "{{ '  ' }}");
  EXPECT_THAT(Ids(*tokenizer, "a  b"), ElementsAre(0, 11, 1));
  const std::vector<ByteRange> written = {{0, 3}};
  EXPECT_THAT(*tokenizer->Encode("  ba  b", false, written), ElementsAre(11, 1, 0, 11, 1));
}

TEST(JsonCodec, TheLanguageOfATemplateIsNotWhatItWrites) {
  TokenizerJson file({"a", "b", "t", "r", "i", "m", "f", "%", "{", "|"}, {});
  for (const char* text : {"trim", "if", "{%", "mm", "br", "ab"}) {
    file.Add(text, static_cast<int>(10 + file.root["added_tokens"].size()));
  }
  const auto tokenizer = Load(file, 64,
                              "{% for mm in messages %}{% if mm['br'] %}{{ mm.br | trim }}"
                              "{% endif %}{% endfor %}{% if no %}ab{% endif %}{# trim #}");
  EXPECT_THAT(Ids(*tokenizer, "trimif{%mmbr"), ElementsAre(10, 11, 12, 13, 14));
  EXPECT_THAT(Ids(*tokenizer, "ab"), ElementsAre(0, 1)) << "what it may write";
}

TEST(JsonCodec, ACharacterOfTheVocabularyStaysTextThoughTheTemplateWritesIt) {
  for (const bool byte_level : {false, true}) {
    TokenizerJson file({"a", "b", "|"}, {});
    if (byte_level) {
      file.root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
    }
    file.Add("|", 2);
    const auto tokenizer = Load(file, 64, "{{ '|' ~ 'a' | trim }}");
    EXPECT_THAT(Ids(*tokenizer, "a|b"), ElementsAre(0, 2, 1));
    const std::vector<ByteRange> written = {{0, 1}};
    EXPECT_THAT(*tokenizer->Encode("|a|b", false, written), ElementsAre(2, 0, 2, 1));
    file.root["added_tokens"][0]["special"] = true;
    EXPECT_FALSE(Load(file)->Encode("a|b", false).ok()) << "unless the file calls it special";
  }
}

TEST(JsonCodec, AnUnknownTokenThatIsStructureIsNone) {
  TokenizerJson file({"a", "<", "m", ">", "<m>"}, {});
  file.root["model"]["unk_token"] = "<m>";
  file.Add("<m>", 4, kSpecial);
  const auto ids = [&file](const std::string& chat_template, std::vector<int32_t> ends) {
    TokenizerFiles files{.tokenizer_json = file.Dump()};
    if (!chat_template.empty()) files.chat_template = chat_template;
    ModelConfig config = ConfigOf(64);
    config.eos_ids = std::move(ends);
    const auto tokenizer = Tokenizer::Load(files, config);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Encode("az", false);
  };
  EXPECT_THAT(*ids("", {}), ElementsAre(0, 4));
  EXPECT_THAT(*ids("{{ '<s>' }}", {2}), ElementsAre(0, 4)) << "special alone is no structure";
  EXPECT_THAT(std::string(ids("{{ '<m>' }}", {}).status().message()),
              HasSubstr("no token for character U+007A, at offset 1"));
  EXPECT_FALSE(ids("{{ '<' + 'm>' }}", {}).ok());
  EXPECT_FALSE(ids("", {4}).ok());
  file.root["added_tokens"][0]["special"] = false;
  EXPECT_FALSE(ids("{{ '<m>' }}", {}).ok());
  EXPECT_FALSE(ids("", {4}).ok());
  const json marker = {{"SpecialToken", {{"id", "<m>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json tokens;
  tokens["<m>"] = {{"id", "<m>"}, {"ids", {4}}, {"tokens", {"<m>"}}};
  file.root["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", {marker, text}},
                                 {"pair", json::array()},
                                 {"special_tokens", tokens}};
  EXPECT_FALSE(ids("", {}).ok()) << "what the file puts before a text";
}

// A marker that the template makes of parts, which its source does not spell.
constexpr char kBuiltMarkers[] =
    "{% for m in messages %}{{ '<' + m['role'][:1] + '>' + m['content'] }}{% endfor %}"
    "{% if tools %}{{ '<' + 'b>' }}{% endif %}";

// bad input: Chats | markers that the model's file calls text, or that the template builds | text
//   in messages
TEST(JsonCodec, WhatTheTemplateBuildsIsControl) {
  TokenizerJson file({"a", "b", "<", ">", "s", "u", "t"}, {});
  file.Add("<u>", 10);
  file.Add("<s>", 11);
  file.Add("<b>", 12);
  file.Add("<ab>", 13);
  file.Add("  ", 14);
  const auto plain = Load(file);
  EXPECT_THAT(Ids(*plain, "<u><b>"), ElementsAre(10, 12)) << "no template, no structure";
  const auto tokenizer = Load(file, 64, kBuiltMarkers);
  EXPECT_THAT(Ids(*tokenizer, "<u><s>"), ElementsAre(2, 5, 3, 2, 4, 3));
  EXPECT_THAT(Ids(*tokenizer, "<b>"), ElementsAre(2, 1, 3)) << "written with tools alone";
  EXPECT_THAT(Ids(*tokenizer, "<ab>  a"), ElementsAre(13, 14, 0)) << "others are as they were";
  const std::vector<ByteRange> first = {{0, 1}, {1, 3}};
  EXPECT_THAT(*tokenizer->Encode("<u><u>", false, first), ElementsAre(10, 2, 5, 3));
}

TEST(JsonCodec, WhatIsStructureInOneChatIsNoTextInIt) {
  for (const bool normalized : {false, true}) {
    TokenizerJson file({"a", "b", "<", ">", "<b", "<b>"}, {{"<", "b"}, {"<b", ">"}});
    if (normalized) file.root["normalizer"] = {{"type", "Lowercase"}};
    file.Add("<b>", 5, {{"normalized", normalized}});
    file.Add("<a>", 6, kSpecial);
    file.Add("  ", 7);
    const auto tokenizer = Load(file);
    EXPECT_THAT(Ids(*tokenizer, "a<b>"), ElementsAre(0, 5));
    const std::vector<ByteRange> first = {{0, 6}};
    EXPECT_THAT(*tokenizer->Encode("<a><b>a<b>  ", false, first), ElementsAre(6, 5, 0, 2, 1, 3, 7))
        << "neither as a token nor by merges";
    const std::vector<ByteRange> other = {{0, 3}};
    EXPECT_THAT(*tokenizer->Encode("<a><b>", false, other), ElementsAre(6, 5));
  }
}

TEST(JsonCodec, WhatBeginsAndEndsATextIsControl) {
  TokenizerJson file = Plain();
  file.Add("<s>", 10);
  ModelConfig config = ConfigOf(64);
  config.eos_ids = {10};
  const auto tokenizer = Tokenizer::Load({.tokenizer_json = file.Dump()}, config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Ids(**tokenizer, "<s>"), ElementsAre(4, 6, 5));
}

TEST(JsonCodec, WhatNoTokenStandsForIsNamedWithItsPlace) {
  TokenizerJson file = Plain();
  const auto error = [](const Tokenizer& tokenizer, std::string_view text) {
    const absl::Status status = tokenizer.Encode(text, true).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const auto characters = Load(file);
  EXPECT_THAT(error(*characters, "ab \xC3\xA9"), HasSubstr("character U+00E9, at offset 3"));
  EXPECT_THAT(error(*characters, std::string_view("a\0", 2)), HasSubstr("U+0000, at offset 1"));
  file.root["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(error(*Load(file), "abX"), HasSubstr("character U+0078, which its tokenizer writes"));
  EXPECT_THAT(error(*Load(file), "abxX"), HasSubstr("character U+0078, at offset 2"));
  file.root["normalizer"] = nullptr;
  file.root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto bytes = Load(file);
  EXPECT_THAT(error(*bytes, "ab\x04"), HasSubstr("no token for byte 0x04, at offset 2"));
  EXPECT_THAT(error(*bytes, "\xC3\xA9"), HasSubstr("byte 0xC3, at offset 0"));
  EXPECT_THAT(Ids(*bytes, "ab"), ElementsAre(3));
}

TEST(JsonCodec, NeitherWholePiecesNorMergesMakeAControlToken) {
  TokenizerJson file({"a", "b", "ab"}, {{"a", "b"}});
  file.Add("ab", 2, kSpecial);
  EXPECT_THAT(Ids(*Load(file), "ab"), ElementsAre(0, 1));
  EXPECT_THAT(Ids(*Load(file), "ab", true), ElementsAre(2));
  file.root["model"]["ignore_merges"] = true;
  EXPECT_THAT(Ids(*Load(file), "ab"), ElementsAre(0, 1));
}

TEST(JsonCodec, TokensAreLookedForInTheNormalizedTextToo) {
  TokenizerJson file = Plain();
  file.root["normalizer"] = {{"type", "Lowercase"}};
  json flags = kSpecial;
  flags["normalized"] = true;
  file.Add("<S>", 10, flags);
  const auto tokenizer = Load(file);
  EXPECT_THAT(Ids(*tokenizer, "A<s>B<S>", true), ElementsAre(0, 10, 1, 10));
  EXPECT_THAT(Ids(*tokenizer, "A<s>"), ElementsAre(0, 4, 6, 5));
  const std::vector<ByteRange> last = {{4, 7}};
  EXPECT_THAT(*tokenizer->Encode("<S>B<S>", false, last), ElementsAre(4, 6, 5, 1, 10));
}

TEST(JsonCodec, TheTemplateOfOneTextSaysWhatBeginsAndEndsIt) {
  TokenizerJson file = Plain();
  file.Add("<s>", 10, kSpecial);
  file.Add("</s>", 11, kSpecial);
  const auto special = [](const char* id) {
    return json{{"SpecialToken", {{"id", id}, {"type_id", 0}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json tokens;
  tokens["<s>"] = {{"id", "<s>"}, {"ids", {10}}, {"tokens", {"<s>"}}};
  tokens["</s>"] = {{"id", "</s>"}, {"ids", {11}}, {"tokens", {"</s>"}}};
  file.root["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", {special("<s>"), text, special("</s>")}},
                                 {"pair", json::array()},
                                 {"special_tokens", tokens}};
  const auto tokenizer = Load(file);
  EXPECT_THAT(tokenizer->beginning(), ElementsAre(10));
  EXPECT_EQ(tokenizer->bos_text(), "<s>");
  EXPECT_THAT(*tokenizer->Encode("ab", true), ElementsAre(10, 3, 11));
  EXPECT_THAT(*tokenizer->Encode("ab", false), ElementsAre(3));
  EXPECT_THAT(*tokenizer->Encode("<s>ab", true, true), ElementsAre(10, 3, 11)) << "no second one";
  EXPECT_THAT(*tokenizer->Encode("", true), ElementsAre(10, 11));
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(file, 11)));
  file.root["post_processor"]["single"] = json::array({special("<s>")});
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("must have it once"));
  file.root["post_processor"]["single"] = {special("<x>"), text};
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("lacks a token"));
}

TEST(JsonCodec, NoTemplateNoBeginning) {
  ModelConfig config = ConfigOf(64);
  config.bos_id = 3;
  config.eos_ids = {2};
  const auto tokenizer = Tokenizer::Load({.tokenizer_json = Plain().Dump()}, config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->beginning(), IsEmpty()) << "config.json's is not added by itself";
  EXPECT_THAT(*(*tokenizer)->Encode("ab", true), ElementsAre(3));
  EXPECT_EQ((*tokenizer)->bos_text(), "ab") << "but chat templates may name it";
  EXPECT_EQ((*tokenizer)->eos_text(), " ");
  EXPECT_EQ((*tokenizer)->TokenText(3), "ab");
  EXPECT_EQ((*tokenizer)->TokenText(63), "") << "room that the model has and the file does not";
  EXPECT_EQ((*tokenizer)->TokenText(64), "");
  EXPECT_EQ((*tokenizer)->TokenText(-1), "");
}

TEST(JsonCodec, TokenizerConfigNamesTheSpecialTokens) {
  TokenizerFiles files{
      .tokenizer_json = Plain().Dump(),
      .tokenizer_config_json = R"({"bos_token":{"content":"<s>"},"eos_token":"ab"})"};
  const auto tokenizer = Tokenizer::Load(files, ConfigOf(64));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_text(), "<s>");
  EXPECT_EQ((*tokenizer)->eos_text(), "ab");
  EXPECT_THAT((*tokenizer)->eos_ids(), ElementsAre(3)) << "where config.json names none";
  TokenizerJson added = Plain();
  added.Add("ab", 3);
  files.tokenizer_json = added.Dump();
  const auto ended = Tokenizer::Load(files, ConfigOf(64));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_THAT(Ids(**ended, "ab"), ElementsAre(0, 1)) << "what ends a text is no text";
  for (const char* wrong : {R"({"bos_token":1})", R"({"eos_token":{"content":1}})", "[]", "{"}) {
    files.tokenizer_config_json = wrong;
    EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::Load(files, ConfigOf(64)).status())) << wrong;
  }
}

TEST(JsonCodec, AnswersAreToldTokenByToken) {
  TokenizerJson file({kSpace, "a", absl::StrCat(kSpace, "a"), "<0xC3>", "<0xA9>", "<0x20>"}, {});
  file.Add("<s>", 6, kSpecial);
  file.root["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}},
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  const auto tokenizer = Load(file);
  const auto read = [&](const std::vector<int32_t>& ids) {
    TextStream stream(*tokenizer, {}, {}, false);
    std::string text;
    for (const int32_t id : ids) text += stream.Push(id).text;
    text += stream.Flush();
    EXPECT_EQ(tokenizer->Decode(ids), text);
    return text;
  };
  EXPECT_EQ(read({2, 2, 0, 1}), "a a a");
  EXPECT_EQ(read({6, 2, 6, 3, 4, 1}),
            "a\xC3\xA9"
            "a");
  EXPECT_EQ(read({5, 1}), "a") << "a byte may be that space";
  EXPECT_EQ(read({0, 2}), " a") << "one space goes, no more";
  EXPECT_EQ(read({1, 3}), "a\xEF\xBF\xBD");
  EXPECT_EQ(read({}), "");
}

TEST(JsonCodec, DecodersOfOneToken) {
  const auto read = [](const json& decoder, const std::vector<int32_t>& ids) {
    TokenizerJson file({"_a_b", "_", "\xC4\xA0x", "\xE4\xB8\xAD"}, {});
    file.root["decoder"] = decoder;
    return Load(file)->Decode(ids);
  };
  const json metaspace = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}, {"split", true}};
  EXPECT_EQ(read(metaspace, {0, 0}), "ab a b") << "the first token loses all of them";
  json never = metaspace;
  never["prepend_scheme"] = "never";
  EXPECT_EQ(read(never, {0, 1}), " a b ");
  EXPECT_EQ(read(nullptr, {0, 1}), "_a_b _") << "no decoder: spaces between tokens";
  EXPECT_EQ(
      read({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}, {2, 3}),
      " x\xE4\xB8\xAD")
      << "what is no byte is itself";
  EXPECT_EQ(read({{"type", "Strip"}, {"content", "_"}, {"start", 2}, {"stop", 0}}, {0, 1, 0}),
            "a_ba_b");
}

// bad input: Tokenizer files | tokenizer.json: models, parts, fields that are not known |
//   UNIMPLEMENTED, named | BadModelTest.ATokenizerIsRefusedInOneLine
TEST(JsonCodec, UnknownPartsAreNamed) {
  const std::pair<const char*, json> parts[] = {
      {"normalizer", {{"type", "Nmt"}}},
      {"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AA=="}}},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "StripAccents"}}}}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor", {{"type", "RobertaProcessing"}}},
      {"decoder", {{"type", "WordPiece"}}}};
  for (const auto& [place, part] : parts) {
    TokenizerJson file = Plain();
    file.root[place] = part;
    const absl::Status status = Refusal(file);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(place));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not supported"));
  }
  TokenizerJson file = Plain();
  file.root["model"]["type"] = "Unigram";
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("model: type 'Unigram'"));
  file = Plain();
  file.root["model"]["dropout"] = 0.1;
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("model.dropout"));
  file.root["model"]["dropout"] = nullptr;
  file.root["model"]["end_of_word_suffix"] = "</w>";
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("model.end_of_word_suffix"));
  file = Plain();
  file.root["colour"] = 1;
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("tokenizer.json: 'colour'"));
  file = Plain();
  file.root["version"] = "2.0";
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("version"));
}

// bad input: Tokenizer files | tokenizer.json: decoders that need several tokens | UNIMPLEMENTED,
//   named
TEST(JsonCodec, DecodersThatNeedMoreThanOneTokenAreNamed) {
  const json fuse = {{"type", "Fuse"}};
  const json bytes = {{"type", "ByteFallback"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}};
  const auto strip = [](int start, int stop) {
    return json{{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
  };
  for (const json& chain : {json{fuse, strip(2, 0)}, json{fuse, strip(1, 1)}, json{fuse, replace},
                            json{bytes, replace}, json{bytes, strip(1, 0)}}) {
    TokenizerJson file = Plain();
    file.root["decoder"] = {{"type", "Sequence"}, {"decoders", chain}};
    EXPECT_TRUE(absl::IsUnimplemented(Refusal(file))) << chain;
    EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("decoder"));
  }
}

// bad input: Tokenizer files | tokenizer.json: fields of parts of another type or out of range |
//   INVALID_ARGUMENT, the part named
TEST(JsonCodec, FieldsOfPartsAreChecked) {
  const json nfc = {{"type", "NFC"}};
  const std::pair<const char*, json> parts[] = {
      {"normalizer", json::array()},
      {"normalizer", {{"type", 1}}},
      {"normalizer", {{"type", "NFC"}, {"x", 1}}},
      {"normalizer", {{"type", "Strip"}, {"strip_left", 1}, {"strip_right", true}}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "a"}}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", "a"}}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"Glob", "a"}}}, {"content", "a"}}},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", json(33, nfc)}}},
      {"pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}, {"invert", false}}},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", "(a"}}},
        {"behavior", "Isolated"},
        {"invert", false}}},
      {"pre_tokenizer", {{"type", "Digits"}}},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "a"}, {"prepend_scheme", "odd"}}},
      {"decoder", {{"type", "Strip"}, {"content", "ab"}, {"start", 1}, {"stop", 0}}},
      {"decoder", {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}}},
      {"post_processor", {{"type", "TemplateProcessing"}}},
      {"model", 1}};
  for (const auto& [place, part] : parts) {
    TokenizerJson file = Plain();
    file.root[place] = part;
    const absl::Status status = Refusal(file);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << part << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(place)) << status;
  }
  TokenizerJson many = Plain();
  many.root["normalizer"] = {{"type", "Sequence"}, {"normalizers", json(32, nfc)}};
  EXPECT_EQ(Load(many)->max_token_bytes(), 0) << "so much may shrink that there is no bound";
  many.root["normalizer"]["normalizers"] = json(33, nfc);
  EXPECT_THAT(std::string(Refusal(many).message()), HasSubstr("normalizer: has over 32 parts"));
}

// bad input: Tokenizer files | tokenizer.json: ids twice or outside the vocabulary, added tokens in
//   the place of others | refused, the token named
TEST(JsonCodec, IdsAreCheckedAgainstOneAnotherAndTheConfig) {
  TokenizerJson file = Plain();
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(file, 7)));
  EXPECT_THAT(std::string(Refusal(file, 7).message()), HasSubstr("vocab_size"));
  file.Add("<s>", 64);
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(file)));
  file = Plain();
  file.Add("<s>", 9);
  file.Add("<s>", 10);
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("added_tokens[1]: its content"));
  file = Plain();
  file.Add("<s>", 9);
  file.Add("<t>", 9);
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("added_tokens[1]: id 9"));
  file = Plain();
  file.Add("ab", 9);
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("but 3 in model.vocab"));
  file = Plain();
  file.Add("<s>", 3);
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("is another token in model.vocab"));
}

TEST(JsonCodec, ATextThatAPatternExceedsItsLimitsOnIsRefusedAndOthersAreNot) {
  TokenizerJson file = Plain();
  file.root["pre_tokenizer"] = {{"type", "Split"},
                                {"pattern", {{"Regex", "(a+)+b"}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  const auto tokenizer = Load(file);
  const absl::Status status = tokenizer->Encode(std::string(80, 'a') + "-b", false).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a pattern of the model's tokenizer"));
  EXPECT_THAT(Ids(*tokenizer, "ab"), ElementsAre(3));
}

TEST(JsonCodec, BytesOfTextThatOneTokenStandsFor) {
  TokenizerJson file = Plain();
  file.root["model"]["unk_token"] = "/";
  EXPECT_EQ(Load(file)->max_token_bytes(), 4u) << "a character outside of the vocabulary";
  file.Add("<long>", 20);
  EXPECT_EQ(Load(file)->max_token_bytes(), 6u);
  file.root["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(Load(file)->max_token_bytes(), 24u);
  file.root["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
  EXPECT_EQ(Load(file)->max_token_bytes(), 0u) << "any number";
  file.root["normalizer"] = nullptr;
  file.root["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  EXPECT_EQ(Load(file)->max_token_bytes(), 0u);
  file.root["pre_tokenizer"] = nullptr;
  file.Add("<x>", 21, {{"lstrip", true}});
  EXPECT_EQ(Load(file)->max_token_bytes(), 0u);
}

TEST(JsonCodec, ManyThreadsEncodeAtOnce) {
  const auto tokenizer = Load(Plain());
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&tokenizer] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_THAT(Ids(*tokenizer, "ab a b"), ElementsAre(3, 2, 0, 2, 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JsonCodec, PrefixesAndFirstPiecesFollowWhereATextBegins) {
  TokenizerJson file({"a", "_", "_a", "<m>"}, {{"_", "a"}});
  file.root["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"split", false}};
  file.Add("<m>", 3, kSpecial);
  const auto tokenizer = Load(file);
  EXPECT_THAT(Ids(*tokenizer, "a a"), ElementsAre(2, 2));
  EXPECT_THAT(Ids(*tokenizer, "<m>a", true), ElementsAre(3, 0)) << "not the beginning";
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
}

}  // namespace
}  // namespace eta
