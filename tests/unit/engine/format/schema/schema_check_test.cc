#include "engine/format/schema/schema_check.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/format/schema/schema_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

// What is said, and of which place.
std::string Refusal(const std::string& schema) {
  const absl::Status status = CheckSchema(schema);
  const ErrorDetail detail = GetErrorDetail(status);
  if (status.ok()) return "passes";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(detail.reason, "INVALID_FIELD");
  EXPECT_EQ(detail.field, "format.json_schema");
  constexpr std::string_view kBegin = "format.json_schema: ";
  EXPECT_TRUE(std::string(status.message()).starts_with(kBegin));
  return absl::StrCat(std::string(status.message()).substr(kBegin.size()),
                      detail.unlogged.empty() ? "" : ": ", detail.unlogged);
}

std::string Enforceable(const std::string& schema) {
  const auto enforceable = EnforceableSchema(schema);
  return enforceable.ok() ? *enforceable : Refusal(schema);
}

// The only node of a schema that has one.
std::string Node(const std::string& schema) {
  const std::string text = Enforceable(schema);
  const std::string begin = "{\"$ref\":\"#/$defs/n0\",\"$defs\":{\"n0\":";
  if (!text.starts_with(begin)) return text;
  return text.substr(begin.size(), text.size() - begin.size() - 2);
}

// bad input: Formats of answers | keywords that are not enforced (not, if, contains, uniqueItems,
//   dependentRequired, $dynamicRef, ...), that are not known, allOf of several schemas |
//   INVALID_ARGUMENT, field `format.json_schema`, with the JSON pointer of the keyword
TEST(SchemaCheck, NamesKeywordsThatAreNotEnforced) {
  for (const std::string keyword :
       {"$anchor", "$dynamicRef", "$recursiveRef", "additionalItems", "contains", "contentSchema",
        "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "maxContains",
        "minContains", "not", "nullable", "then"}) {
    const std::string schema =
        absl::StrCat(R"({"type":"object","properties":{"a/b":{")", keyword, R"(":{}}}})");
    EXPECT_EQ(Refusal(schema), keyword + " is not enforced: /properties/a~1b/" + keyword);
  }
  EXPECT_EQ(Refusal(R"({"minlength":1})"), "a keyword that is not known: /minlength");
  EXPECT_EQ(Refusal(R"({"type":"array","uniqueItems":true})"),
            "uniqueItems is not enforced: /uniqueItems");
  EXPECT_EQ(Refusal(R"({"type":"array","uniqueItems":false})"), "passes");
  EXPECT_EQ(Refusal(R"({"allOf":[{},{}]})"), "allOf of several schemas is not enforced: /allOf");
  EXPECT_EQ(Refusal(R"({"type":"object","unevaluatedProperties":{}})"),
            "unevaluatedProperties other than false of drafts from 2019-09 is not enforced: "
            "/unevaluatedProperties");
  EXPECT_EQ(Refusal(R"({"type":"string","format":"regex"})"),
            "this format is not enforced: /format");
}

TEST(SchemaCheck, AnnotationsPass) {
  EXPECT_EQ(Node(R"({"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"x",
                     "title":"a","description":"b","default":{"not":1},"examples":[1],
                     "$comment":"c","deprecated":true,"readOnly":true,"writeOnly":false,
                     "x-order":1,"discriminator":{},"contentEncoding":"base64","type":"string",
                     "format":"phone"})"),
            R"({"type":"string"})");
  EXPECT_EQ(Refusal(R"({"items":{"$id":"x"},"type":"array"})"),
            "$id is known at the root only: /items/$id");
  EXPECT_EQ(Refusal(R"({"$schema":"http://json-schema.org/draft-04/schema#"})"),
            "$schema must be draft 2020-12, 2019-09, 07 or 06: /$schema");
  EXPECT_EQ(Refusal(R"({"prefixItems":[{}],"type":"array",
                        "$schema":"http://json-schema.org/draft-07/schema#"})"),
            "prefixItems came with draft 2020-12, which $schema is not: /prefixItems");
}

// bad input: Formats of answers | a schema whose keywords have values of the wrong kind |
//   INVALID_ARGUMENT, field `format.json_schema`, what it must be, and the JSON pointer
TEST(SchemaCheck, NamesKeywordsOfTheWrongKind) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"([])", "a schema must be an object, true or false: the root"},
      {R"({"$defs":[]})", "$defs must be an object of schemas: /$defs"},
      {R"({"$defs":{"a":1}})", "a schema must be an object, true or false: /$defs/a"},
      {R"({"$ref":1})", "$ref must be a text: /$ref"},
      {R"({"anyOf":[]})", "anyOf must be a list of schemas, at least one: /anyOf"},
      {R"({"enum":1})", "enum must be a list: /enum"},
      {R"({"enum":[]})", "enum must be a list of values, at least one: /enum"},
      {R"({"format":1})", "format must be a text: /format"},
      {R"({"items":[{}]})", "items must be one schema; use prefixItems for a list: /items"},
      {R"({"minLength":-1})", "minLength must be an integer of 0 to 100000: /minLength"},
      {R"({"minLength":1.5})", "minLength must be an integer of 0 to 100000: /minLength"},
      {R"({"maxItems":"1"})", "maxItems must be an integer of 0 to 2147483647: /maxItems"},
      {R"({"minimum":"1"})", "minimum must be a number: /minimum"},
      {R"({"exclusiveMinimum":true})", "exclusiveMinimum must be a number: /exclusiveMinimum"},
      {R"({"multipleOf":0})", "multipleOf must be a number above 0: /multipleOf"},
      {R"({"pattern":1})", "pattern must be a text: /pattern"},
      {R"({"prefixItems":[]})",
       "prefixItems must be a list of schemas, at least one: /prefixItems"},
      {R"({"properties":[]})", "properties must be an object of schemas: /properties"},
      {R"({"required":[1]})", "required must be a list of names: /required"},
      {R"({"required":true})", "required must be a list of names: /required"},
      {R"({"type":[]})",
       "type must be null, boolean, integer, number, string, array or object, or a list: /type"},
      {R"({"type":"text"})",
       "type must be null, boolean, integer, number, string, array or object, or a list: /type"}};
  for (const auto& [schema, said] : kCases) EXPECT_EQ(Refusal(schema), said) << schema;
}

// bad input: Formats of answers | a schema that is no JSON, not UTF-8, has a key twice, is over 64
//   KiB or nested over 64 deep; an enum of over 256, over 64 branches, a length over 100000 |
//   INVALID_ARGUMENT, field `format.json_schema`, with the limit
TEST(SchemaCheck, NamesLimits) {
  EXPECT_EQ(Refusal("{"), "is not JSON at byte 1");
  EXPECT_EQ(Refusal("{\"title\":\"\xff\"}"), "is not UTF-8 at byte 10");
  EXPECT_EQ(Refusal(R"({"type":"null","\u0074ype":"null"})"), "has a key twice in one object");
  EXPECT_EQ(Refusal(std::string(1 << 20, ' ') + "{}"), "is over 65536 bytes");
  EXPECT_EQ(Refusal(R"({"const":)" + std::string(1000, '[') + std::string(1000, ']') + "}"),
            "is nested over 64 deep");
  const std::vector<int> values(257, 1);
  EXPECT_EQ(Refusal(R"({"enum":[)" + absl::StrJoin(values, ",") + "]}"),
            "enum must be a list of at most 256: /enum");
  EXPECT_EQ(Refusal(R"({"enum":[)" + absl::StrJoin(std::vector<int>(1'000'000, 1), ",") + "]}"),
            "is over 65536 bytes");
  EXPECT_EQ(
      Refusal(R"({"anyOf":[)" + absl::StrJoin(std::vector<std::string>(65, "{}"), ",") + "]}"),
      "anyOf must be a list of at most 64 schemas: /anyOf");
  EXPECT_EQ(Refusal(R"({"type":"string","maxLength":100000})"), "passes");
  EXPECT_EQ(Refusal(R"({"type":"string","maxLength":100001})"),
            "maxLength must be an integer of 0 to 100000: /maxLength");
  EXPECT_EQ(Refusal(R"({"type":"integer","multipleOf":1025})"),
            "multipleOf must be an integer of 1 to 1024: /multipleOf");
  EXPECT_EQ(Refusal(R"({"const":9223372036854775808})"),
            "a number of an enum must fit 64 bits: /const");
  EXPECT_EQ(Refusal(R"({"const":1e999})"), "a number of an enum must fit 64 bits: /const");
  std::vector<std::string> patterns;
  for (int i = 0; i < 200; ++i) {
    patterns.push_back(absl::StrCat("\"p", i, R"(":{"type":"string","pattern":"^[a-z]{100}$"})"));
  }
  EXPECT_EQ(Refusal(R"({"type":"object","properties":{)" + absl::StrJoin(patterns, ",") + "}}"),
            "patterns of over 16384 steps in all: /properties/p163/pattern");
}

// bad input: Formats of answers | a schema that holds itself, points at no schema in it, that no
//   finite value satisfies, whose bounds contradict each other | INVALID_ARGUMENT, field
//   `format.json_schema`, with the JSON pointer; without recursion
TEST(SchemaCheck, RefusesCirclesAndWhatNoValueSatisfies) {
  EXPECT_EQ(Refusal(R"({"$ref":"#"})"), "this schema holds itself without an end: /$ref");
  EXPECT_EQ(Refusal(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})"),
            "this schema holds itself without an end: /$defs/a/$ref");
  EXPECT_EQ(Refusal(R"({"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]})"),
            "no finite value satisfies this schema: the root");
  EXPECT_EQ(Refusal(R"({"type":"array","items":{"$ref":"#"},"minItems":1})"),
            "no finite value satisfies this schema: the root");
  EXPECT_EQ(Refusal("false"), "no finite value satisfies this schema: the root");
  EXPECT_EQ(Refusal(R"({"type":"string","enum":[1]})"),
            "no finite value satisfies this schema: the root");
  for (const char* ref : {"#/$defs/b", "#/type", "#/$defs", "#a", "x", "#/$defs/a/", "/$defs/a"}) {
    const std::string schema = R"({"type":"object","properties":{"c":{"$ref":")" +
                               std::string(ref) + R"("}},"$defs":{"a":{}}})";
    EXPECT_THAT(Refusal(schema), HasSubstr("/properties/c/$ref")) << ref;
  }
  EXPECT_EQ(Refusal(R"({"type":"string","minLength":2,"maxLength":1})"),
            "minLength is over maxLength: the root");
  EXPECT_EQ(Refusal(R"({"type":"array","minItems":2,"maxItems":1})"),
            "minItems is over maxItems: the root");
  EXPECT_EQ(Refusal(R"({"type":"array","prefixItems":[{}],"minItems":2})"),
            "minItems is over the number of items there may be: the root");
  EXPECT_EQ(Refusal(R"({"type":"object","minProperties":2,"maxProperties":1})"),
            "minProperties is over maxProperties: the root");
  EXPECT_EQ(Refusal(R"({"type":"object","properties":{"a":{}},"minProperties":2})"),
            "minProperties is over the number of properties there may be: the root");
  EXPECT_EQ(Refusal(R"({"type":"object","required":["a","b"],"maxProperties":1})"),
            "more properties are required than maxProperties: the root");
  EXPECT_EQ(Refusal(R"({"type":"object","additionalProperties":false,"required":["a"]})"),
            "required names a property that may not be there: /required");
  EXPECT_EQ(Refusal(R"({"type":"integer","minimum":2,"exclusiveMaximum":2})"),
            "no number lies between these bounds: /exclusiveMaximum");
  EXPECT_EQ(Refusal(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.000001})"),
            "no number lies between these bounds: /exclusiveMaximum");
  EXPECT_EQ(Refusal(R"({"type":"integer","minimum":1,"maximum":6,"multipleOf":7})"),
            "no multiple lies between the bounds: /multipleOf");
  EXPECT_EQ(Refusal(R"({"type":"string","pattern":"^\"$"})"),
            "no text that needs no escapes matches it: /pattern");
}

// bad input: Formats of answers | keywords that are enforced apart and not together: beside anyOf,
//   without a type, lengths beside a pattern, free names beside propertyNames, ... |
//   INVALID_ARGUMENT, field `format.json_schema`, what would be, and the JSON pointer
TEST(SchemaCheck, RefusesWhatIsNotEnforcedTogether) {
  EXPECT_THAT(Refusal(R"({"anyOf":[{}],"type":"object"})"),
              HasSubstr("no other keyword is enforced"));
  EXPECT_THAT(Refusal(R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{}}})"),
              HasSubstr("into each of their schemas: /minLength"));
  EXPECT_THAT(Refusal(R"({"anyOf":[{}],"oneOf":[{}]})"), HasSubstr(": /oneOf"));
  for (const char* alone : {R"("minimum":1)", R"("properties":{})", R"("items":{})",
                            R"("required":["a"])", R"("pattern":"a")", R"("format":"date")"}) {
    EXPECT_THAT(Refusal("{" + std::string(alone) + "}"),
                HasSubstr("it is not enforced without a type beside it: /"))
        << alone;
  }
  EXPECT_THAT(Refusal(R"({"type":"string","pattern":"a","maxLength":3})"),
              HasSubstr("write them into a pattern from ^ to $: /pattern"));
  EXPECT_EQ(Refusal(R"({"type":"string","pattern":"a","format":"date"})"),
            "pattern and format are not enforced together: /pattern");
  EXPECT_EQ(Refusal(R"({"type":"number","multipleOf":0.5})"),
            "multipleOf must be an integer of 1 to 1024: /multipleOf");
  EXPECT_EQ(Refusal(R"({"type":"number","multipleOf":2})"),
            "multipleOf is enforced for integers only: /multipleOf");
  EXPECT_THAT(Refusal(R"({"type":"integer","multipleOf":2,"minimum":0})"),
              HasSubstr("multipleOf is enforced for at most 1024 numbers"));
  EXPECT_EQ(Refusal(R"({"type":"number","minimum":0.1234567})"),
            "a bound of numbers has at most 6 digits behind the point: /minimum");
  EXPECT_EQ(Refusal(R"({"type":"number","maximum":1e300})"),
            "a bound of numbers must be within +-9007199254740992: /maximum");
  EXPECT_EQ(Refusal(R"({"type":"number","exclusiveMaximum":1e10})"),
            "a bound of numbers must be within +-1000000000: /exclusiveMaximum");
  EXPECT_EQ(Refusal(R"({"type":"integer","minimum":9223372036854775808})"),
            "a bound of integers must fit 64 bits: /minimum");
  EXPECT_EQ(Refusal(R"({"type":"integer","exclusiveMinimum":9223372036854775807})"),
            "a bound of integers must fit 64 bits: /exclusiveMinimum");
  EXPECT_EQ(Refusal(R"({"type":"object","minProperties":2})"),
            "minProperties over 1 is not enforced where names are free: the root");
  EXPECT_THAT(Refusal(R"({"type":"object","properties":{"é":{}},"additionalProperties":true})"),
              HasSubstr("set additionalProperties to false"));
  EXPECT_THAT(Refusal(R"({"type":"object","properties":{"a":false},"additionalProperties":true})"),
              HasSubstr("where additionalProperties is false only: /properties/a"));
  EXPECT_THAT(Refusal(R"({"type":"object","properties":{"a":{}},"propertyNames":{}})"),
              HasSubstr("is enforced alone, without properties beside it: /propertyNames"));
  EXPECT_THAT(Refusal(R"({"type":"object","patternProperties":{"a":{},"b":{}}})"),
              HasSubstr("is enforced alone"));
  EXPECT_THAT(
      Refusal(R"({"type":"object","patternProperties":{"a":{}},"additionalProperties":{}})"),
      HasSubstr("where additionalProperties is false only: /patternProperties/a"));
  EXPECT_EQ(Refusal(R"({"type":"object","propertyNames":{"type":"integer"}})"),
            "propertyNames must be of strings: /propertyNames");
}

TEST(SchemaCheck, BranchesOfOneOfMustExcludeEachOther) {
  const auto one_of = [](const std::string& branches) {
    return Refusal(R"({"oneOf":[)" + branches + R"(],"$defs":{"n":{"type":"null"}}})");
  };
  EXPECT_EQ(one_of(R"({"type":"string"},{"$ref":"#/$defs/n"},{"type":["array","boolean"]})"),
            "passes");
  EXPECT_EQ(one_of(R"({"const":"a"},{"enum":["b",1]},{"const":true})"), "passes");
  EXPECT_EQ(one_of(R"({"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},
                      {"type":"object","properties":{"k":{"const":2}},"required":["k"]})"),
            "passes");
  EXPECT_EQ(one_of(R"({"type":"object","properties":{"a":{}},"required":["a"]},
                      {"type":"object","properties":{"b":{}},"required":["b"]})"),
            "passes");
  EXPECT_EQ(one_of(R"(false,{"type":"string"},{"type":"string","enum":[1]})"), "passes");
  for (const char* branches :
       {R"({"type":"integer"},{"type":"number"})", R"({},{"type":"null"})",
        R"({"enum":["a","b"]},{"enum":["b"]})", R"({"const":"a"},{"type":"string"})",
        R"({"const":[1]},{"const":[2]})", R"({"const":1},{"const":1.0})",
        R"({"type":"object","properties":{"a":{}},"required":["a"]},
           {"type":"object","properties":{"b":{}}})",
        R"({"type":"object","properties":{"k":{"const":"a"}}},
           {"type":"object","properties":{"k":{"const":"b"}}})"}) {
    EXPECT_THAT(one_of(branches), HasSubstr("may hold together with another")) << branches;
  }
}

// What the library would take wrongly is said in other words.
TEST(EnforceableSchema, SaysWhatIsMeant) {
  EXPECT_EQ(Node("true"), "{}");
  EXPECT_EQ(Node(R"({"type":"object"})"),
            R"({"type":"object","additionalProperties":{},"mark":1})");
  EXPECT_EQ(Node(R"({"type":"object","required":["a"]})"),
            R"({"type":"object","properties":{"a":{}},"required":["a"],)"
            R"("additionalProperties":{},"mark":1})");
  EXPECT_EQ(Node(R"({"type":"object","properties":{"b":{"type":"null"},"a":false},"required":[]})"),
            R"({"type":"object","properties":{"b":{"type":"null"}},)"
            R"("additionalProperties":false,"mark":1})");
  EXPECT_EQ(Node(R"({"type":"array","minItems":1})"),
            R"({"type":"array","items":{},"minItems":1,"mark":1})");
  EXPECT_EQ(Node(R"({"type":"array","prefixItems":[{},{},{}],"maxItems":2})"),
            R"({"type":"array","prefixItems":[{},{}],"items":false,"mark":1})");
  EXPECT_EQ(Node(R"({"type":["string","null"],"maxLength":2})"),
            R"({"anyOf":[{"type":"null"},{"type":"string","minLength":0,"maxLength":2,"mark":1}],)"
            R"("mark":2})");
  EXPECT_EQ(Node(R"({"type":"string","pattern":"^[a-z]+$","minLength":5})"),
            R"({"type":"string","pattern":"[a-z]{5,}","mark":1})");
  EXPECT_EQ(Node(R"({"type":"integer","minimum":0.5,"exclusiveMaximum":3.0})"),
            R"({"type":"integer","minimum":1,"maximum":2,"mark":1})");
  EXPECT_EQ(Node(R"({"type":"number","exclusiveMinimum":0,"minimum":0,"maximum":1.5e0})"),
            R"({"type":"number","exclusiveMinimum":0,"maximum":1.5,"mark":1})");
  EXPECT_EQ(Node(R"({"type":"integer","multipleOf":7,"minimum":-7,"maximum":8})"),
            R"({"enum":[-7,0,7],"mark":1})");
  EXPECT_EQ(Node(R"({"type":"string","enum":["a",1,"b","a"]})"), R"({"enum":["a","b"],"mark":1})");
  EXPECT_EQ(Node(R"({"const":{"a":[1.0,"é\n"],"b":{}}})"),
            R"({"enum":[{"a":[1,"\u00e9\u000a"],"b":{}}],"mark":1})");
  EXPECT_EQ(Node(R"({"type":"object","patternProperties":{"^x$":{"type":"null"}}})"),
            R"-({"type":"object","propertyNames":{"type":"string","pattern":"([x])","mark":1},)-"
            R"("additionalProperties":{"type":"null"},"mark":2})");
}

// They are one to the library without the marks, which would enforce the first in both places.
TEST(EnforceableSchema, TellsNodesApartThatDifferInPropertiesCalledTitle) {
  EXPECT_EQ(
      Enforceable(R"({"type":"object","properties":{
                  "a":{"type":"object","properties":{"title":{"type":"string"}}},
                  "b":{"type":"object","properties":{"title":{"type":"integer"}}}}})"),
      R"({"$ref":"#/$defs/n0","$defs":{)"
      R"("n0":{"type":"object","properties":{"a":{"$ref":"#/$defs/n1"},"b":{"$ref":"#/$defs/n2"}},)"
      R"("additionalProperties":false,"mark":1},)"
      R"("n1":{"type":"object","properties":{"title":{"type":"string"}},)"
      R"("additionalProperties":false,"mark":2},)"
      R"("n2":{"type":"object","properties":{"title":{"type":"integer"}},)"
      R"("additionalProperties":false,"mark":3}}})");
}

TEST(EnforceableSchema, RecursionIsAReferenceToANodeThatIsWrittenOnce) {
  EXPECT_EQ(Enforceable(R"({"type":"object","properties":{
                  "n":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["n"]})"),
            R"({"$ref":"#/$defs/n0","$defs":{)"
            R"("n0":{"type":"object","properties":{"n":{"$ref":"#/$defs/n1"}},"required":["n"],)"
            R"("additionalProperties":false,"mark":1},)"
            R"("n1":{"anyOf":[{"$ref":"#/$defs/n2"},{"type":"null"}],"mark":2},)"
            R"("n2":{"$ref":"#/$defs/n0"}}})");
}

// 64 KiB at their worst: linear, or nearly so, in time and memory.
TEST(SchemaCheck, HostileSchemasTakeLittle) {
  const auto filled = [](const std::string& begin, const std::string& part,
                         const std::string& end) {
    std::string text = begin;
    for (int i = 0; text.size() + part.size() + end.size() + 16 < schema::kMaxSchemaBytes; ++i) {
      if (i > 0) text += ',';
      text += absl::StrCat("\"", i, "\":", part);
    }
    return text + end;
  };
  (void)Refusal(filled(R"({"type":"object","properties":{)", "{}", "}}"));
  (void)Refusal(filled(R"({"type":"object","properties":{)", R"({"$ref":"#"})", "}}"));
  (void)Refusal(filled(R"({"$ref":"#","$defs":{)", R"({"$ref":"#"})", "}}"));
  (void)Refusal(filled(R"({"const":{)", "1", "}}"));
  (void)Refusal(
      filled(R"({"type":"object","properties":{)", R"({"pattern":".","type":"string"})", "}}"));
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 700; ++i) {
    absl::StrAppend(&chain, "\"", i, R"(":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/)",
                    i + 1, "\"}},");
  }
  EXPECT_EQ(Refusal(chain + R"("700":{}}})"), "passes");
}

}  // namespace
}  // namespace eta
