// What is said of small schemas that a library for grammars, xgrammar 0.2.8, enforced wrongly or
// might: each is a case of the issue that its name has, or of one like it.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/schema/answer_check.h"
#include "engine/format/schema/schema_check.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

struct Probe {
  const char* name;
  const char* schema;
  const char* refused;               // what is said of which keyword; empty: it passes
  std::vector<const char*> answers;  // + is valid, - is not
};

// clang-format off
const Probe kProbes[] = {
    {"x104a required-without-properties (xgrammar#104)",
     R"({"type":"object","required":["a"]})",
     "",
     {R"(+{"a":1})", R"(-{})"}},
    {"x104b minProperties only",
     R"({"type":"object","minProperties":1})",
     "",
     {R"(+{"a":1})", R"(-{})"}},
    {"x104c array minItems, no items",
     R"({"type":"array","minItems":1})",
     "",
     {R"(+[1])", R"(-[])"}},
    {"x858 anyOf beside properties (xgrammar#858)",
     R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"additionalProperties":false,"anyOf":[{"required":["a"]},{"required":["b"]}]})",
     "beside $ref, allOf, anyOf and oneOf no other keyword is enforced: put it into each of their schemas: /type",
     {}},
    {"x639 empty enum (xgrammar#639)",
     R"({"type":"object","properties":{"x":{"type":"string","enum":[]}},"required":["x"]})",
     "enum must be a list of values, at least one: /properties/x/enum",
     {}},
    {"s37707 pattern + minLength (sglang#37707)",
     R"({"type":"string","pattern":"^[a-z]+$","minLength":5})",
     "",
     {R"(+"abcde")", R"(-"ab")"}},
    {"x774 unresolved $ref (xgrammar#774)",
     R"({"type":"object","properties":{"c":{"$ref":"/$defs/Color"}},"required":["c"],"$defs":{"Color":{"enum":["red"]}}})",
     "$ref must be # and a JSON pointer into this schema: /properties/c/$ref",
     {}},
    {"l15830 allOf of two enums (llama.cpp#15830)",
     R"({"allOf":[{"type":"string","enum":["a","b"]},{"type":"string","enum":["b","c"]}]})",
     "allOf of several schemas is not enforced: /allOf",
     {}},
    {"s28804 multipleOf (sglang#28804)",
     R"({"type":"integer","multipleOf":2})",
     "",
     {R"(+4)", R"(-3)"}},
    {"s28804 uniqueItems",
     R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})",
     "uniqueItems is not enforced: /uniqueItems",
     {}},
    {"s28804 contains",
     R"({"type":"array","items":{"type":"integer"},"contains":{"const":7}})",
     "contains is not enforced: /contains",
     {}},
    {"s28804 propertyNames",
     R"({"type":"object","propertyNames":{"pattern":"^x"},"additionalProperties":{"type":"integer"}})",
     "",
     {R"(+{"x1":1})", R"(-{"y":1})"}},
    {"patternProperties",
     R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
     "",
     {R"(+{"x1":1})", R"(-{"x1":"s"})", R"(-{"y":1})"}},
    {"not",
     R"({"not":{"type":"string"}})",
     "not is not enforced: /not",
     {}},
    {"if-then-else",
     R"({"type":"object","properties":{"k":{"enum":["a","b"]},"v":{}},"required":["k"],"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["v"]}})",
     "if is not enforced: /if",
     {}},
    {"dependentRequired",
     R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
     "dependentRequired is not enforced: /dependentRequired",
     {}},
    {"l13116 maxItems 0 (llama.cpp#13116)",
     R"({"type":"array","items":{"type":"string"},"maxItems":0})",
     "",
     {R"(+[])", R"(-["a"])"}},
    {"l25923 no properties (llama.cpp#25923)",
     R"({"type":"object","properties":{}})",
     "",
     {R"(+{})"}},
    {"l25923 strict no properties",
     R"({"type":"object","properties":{},"additionalProperties":false})",
     "",
     {R"(+{})", R"(-{"a":1})"}},
    {"l25746 nested pattern (llama.cpp#25746)",
     R"({"type":"object","properties":{"o":{"type":"object","properties":{"s":{"type":"string","pattern":"^[a-z]+$"}}}}})",
     "",
     {R"(+{"o":{"s":"ab"}})", R"(-{"o":{"s":"A"}})"}},
    {"unanchored pattern",
     R"({"type":"string","pattern":"b"})",
     "",
     {R"(+"abc")", R"(-"acc")"}},
    {"pattern \\\\S",
     R"({"type":"string","pattern":"\\S"})",
     "",
     {R"(+" a ")", R"(-"  ")"}},
    {"l17574 not {} (llama.cpp#17574)",
     R"({"type":"object","properties":{"a":{"not":{}}}})",
     "not is not enforced: /properties/a/not",
     {}},
    {"oneOf exclusive",
     R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":2}]})",
     "this branch of oneOf may hold together with another: tell them apart by their types, by required properties that others do not have, or by one with a const of its own; or take anyOf: /oneOf/1",
     {}},
    {"type list with null",
     R"({"type":["string","null"],"maxLength":2})",
     "",
     {R"(+null)", R"(+"ab")", R"(-"abc")"}},
    {"const with escape",
     R"({"const":"a\"b\n"})",
     "",
     {R"(+"a\"b\n")"}},
    {"enum non-string",
     R"({"enum":[1,null,{"a":[true]}]})",
     "",
     {R"(+null)", R"(+{"a":[true]})", R"(-2)"}},
    {"number exponent",
     R"({"type":"number"})",
     "",
     {R"(+1e5)", R"(+-0.5)", R"(-01)", R"(-.5)"}},
    {"integer 1.0",
     R"({"type":"integer"})",
     "",
     {R"(+1.0)", R"(-1.5)"}},
    {"integer range neg",
     R"({"type":"integer","minimum":-3,"exclusiveMaximum":10})",
     "",
     {R"(+-3)", R"(+9)", R"(-10)", R"(--4)"}},
    {"lone surrogate escape",
     R"({"type":"string"})",
     "",
     {R"(+"\ud83d\ude00")"}},
    {"maxLength counts code points",
     R"({"type":"string","maxLength":1})",
     "",
     {R"(+"é")", R"(-"éé")"}},
    {"maxLength escape = 1",
     R"({"type":"string","maxLength":1})",
     "",
     {R"(+"\n")", R"(-"\n\n")"}},
    {"recursion $ref #",
     R"({"type":"object","properties":{"n":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["n"],"additionalProperties":false})",
     "",
     {R"(+{"n":{"n":null}})", R"(-{"n":1})"}},
    {"property order",
     R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false})",
     "",
     {R"(+{"a":1,"b":2})", R"(+{"b":2,"a":1})"}},
    {"duplicate key",
     R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
     "",
     {R"(-{"a":1,"a":"s"})"}},
    {"date format",
     R"({"type":"string","format":"date"})",
     "",
     {R"(+"2026-11-26")", R"(+"2026-13-45")"}},
    {"unknown format",
     R"({"type":"string","format":"phone"})",
     "",
     {R"(+"1")"}},
    {"false schema",
     R"({"type":"object","properties":{"a":false}})",
     "",
     {R"(+{})", R"(-{"a":1})"}},
    {"boolean true root",
     R"(true)",
     "",
     {R"(+1)"}},
    {"invalid: type 5",
     R"({"type":5})",
     "type must be null, boolean, integer, number, string, array or object, or a list: /type",
     {}},
    {"invalid json",
     R"({"type":)",
     "is not JSON at byte 8: ",
     {}},
    {"$ref cycle",
     R"({"$ref":"#/$defs/N","$defs":{"N":{"$ref":"#/$defs/N"}}})",
     "this schema holds itself without an end: /$ref",
     {}},
    {"huge maxItems",
     R"({"type":"array","items":{"type":"integer"},"maxItems":1000000})",
     "",
     {R"(+[1])"}},
    {"huge minItems",
     R"({"type":"array","items":{"type":"integer"},"minItems":100000})",
     "",
     {R"(-[1])"}},
    {"x852 maxLength 100000 (xgrammar#852)",
     R"({"type":"object","properties":{"content":{"type":"string","maxLength":100000}},"required":["content"]})",
     "",
     {R"(+{"content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})"}},
};
// clang-format on

TEST(SchemaProbes, AreRefusedByNameOrTheirAnswersAreToldApart) {
  for (const Probe& probe : kProbes) {
    SCOPED_TRACE(probe.name);
    const absl::Status status = CheckSchema(probe.schema);
    if (probe.refused[0] != '\0') {
      const ErrorDetail detail = GetErrorDetail(status);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(detail.reason, "INVALID_FIELD");
      EXPECT_EQ(detail.field, "format.json_schema");
      EXPECT_EQ(std::string(status.message()) + ": " + detail.unlogged,
                std::string("format.json_schema: ") + probe.refused);
      continue;
    }
    EXPECT_EQ(status, absl::OkStatus());
    for (const char* answer : probe.answers) {
      EXPECT_EQ(CheckAnswer(probe.schema, answer + 1).ok(), answer[0] == '+') << answer;
    }
  }
}

// What two branches ask for may hold together: each level is nested in that before it.
std::string NestedChoice(int depth, bool apart) {
  if (depth == 0) return R"({"type":"string"})";
  const std::string inner = NestedChoice(depth - 1, apart);
  std::string schema = R"({"oneOf":[)";
  for (const std::string name : {"a", "b"}) {
    if (name == "b") schema += ",";
    absl::StrAppend(&schema, R"({"type":"object","properties":{")", name, R"(":)", inner,
                    R"(},"required":[")", name, R"("])",
                    apart ? "" : R"(,"additionalProperties":true)", "}");
  }
  return schema + "]}";
}

// vllm#54003
TEST(SchemaProbes, BranchesThatRequireWhatOthersDoNotHaveAreApart) {
  for (const int depth : {1, 3, 5}) {
    EXPECT_EQ(CheckSchema(NestedChoice(depth, /*apart=*/true)), absl::OkStatus()) << depth;
    EXPECT_FALSE(CheckSchema(NestedChoice(depth, /*apart=*/false)).ok()) << depth;
  }
  const std::string schema = NestedChoice(2, /*apart=*/true);
  EXPECT_EQ(CheckAnswer(schema, R"({"a":{"b":"x"}})"), absl::OkStatus());
  EXPECT_FALSE(CheckAnswer(schema, R"({"a":{"b":1}})").ok());
  EXPECT_FALSE(CheckAnswer(schema, R"({"a":{"b":"x"},"b":{"b":"x"}})").ok());
}

}  // namespace
}  // namespace eta
