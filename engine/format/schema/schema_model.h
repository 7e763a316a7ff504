// A schema as it was read: its nodes, each with what its keywords say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/format/schema/json/json_number.h"
#include "engine/format/schema/json/json_text.h"
#include "engine/format/schema/patterns/pattern.h"

namespace eta::schema {

inline constexpr uint32_t kNoNode = UINT32_MAX;

// Sets of types, as bits.
using Types = uint16_t;
inline constexpr Types kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8,
                       kStringType = 16, kArrayType = 32, kObjectType = 64, kAnyType = 127;

// A bound of numbers.
struct Bound {
  Number number;
  bool lower = false;
  bool exclusive = false;
  uint32_t at = 0;  // of the keyword
};

struct SchemaProperty {
  std::string_view name;
  uint32_t node = kNoNode;  // kNoNode: it is required alone
  bool required = false;
};

struct SchemaNode {
  explicit SchemaNode(uint32_t place) : at(place) {}

  uint32_t at;            // in the text
  bool never = false;     // the schema `false`
  bool of_keys = false;   // of propertyNames: what has no type is of strings
  Types types = 0;        // 0: no keyword says
  uint32_t alone_at = 0;  // a keyword beside which no other is enforced; 0: none
  uint32_t other_at = 0;  // the first other keyword that asks for something; 0: none

  std::vector<uint32_t> same;        // nodes that hold here as well: of $ref and allOf
  std::vector<uint32_t> any_of;      // nodes one of which holds here
  std::vector<uint32_t> one_of;      // nodes exactly one of which holds here
  std::optional<uint32_t> enum_at;   // values are among its items
  std::optional<uint32_t> const_at;  // the value is equal to it
  std::vector<uint32_t> values;      // of enum or const: those that the other keywords allow

  // Declared ones in order, then those that are required alone.
  std::vector<SchemaProperty> properties;
  std::vector<std::pair<std::string_view, uint32_t>> by_name;  // sorted: which of them
  bool says_properties = false;
  bool no_unevaluated = false;                        // unevaluatedProperties is false
  std::optional<uint32_t> more_properties;            // node of additionalProperties
  std::optional<uint32_t> names;                      // node of propertyNames
  std::vector<std::pair<Pattern, uint32_t>> matched;  // of patternProperties
  uint64_t min_properties = 0;
  std::optional<uint64_t> max_properties;

  std::vector<uint32_t> prefix;
  std::optional<uint32_t> items;  // node of those behind the prefix
  bool no_unevaluated_items = false;
  uint64_t min_items = 0;
  std::optional<uint64_t> max_items;

  std::optional<uint64_t> min_length;
  std::optional<uint64_t> max_length;
  std::optional<Pattern> pattern;
  const Pattern* format = nullptr;  // of a standard format
  uint32_t pattern_at = 0;          // of pattern or format

  std::vector<Bound> bounds;
  std::optional<uint32_t> multiple_of;
  uint32_t multiple_at = 0;

  bool HasValues() const { return enum_at || const_at; }
  bool Joins() const { return !same.empty() || !any_of.empty() || !one_of.empty(); }
  // No keyword asks for anything.
  bool IsAny() const { return !never && types == 0 && alone_at == 0 && other_at == 0; }

  // Found once all nodes are read:
  Types value_types = 0;     // that a value may have, all told
  Types possible_types = 0;  // of a node that joins no others: those of which it has a value
  bool possible = false;     // it has a value
};

// The root is the first node. Immutable once it is read; its views are of `text`.
struct SchemaModel {
  explicit SchemaModel(JsonText schema) : text(std::move(schema)) {}

  JsonText text;
  std::vector<SchemaNode> nodes;
};

inline constexpr char kSchemaField[] = "format.json_schema";

// INVALID_ARGUMENT (INVALID_FIELD), field format.json_schema: the sentence, and where `at` stands.
absl::Status RefuseSchema(const JsonText& text, uint32_t at, const std::string& sentence);

}  // namespace eta::schema
