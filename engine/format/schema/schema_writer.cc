// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/schema_writer.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/format/schema/number_range.h"
#include "engine/format/schema/schema_rules.h"

namespace eta::schema {
namespace {

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (size_t at = 0; at < text.size(); at += Utf8Length(text[at])) {
    const auto c = static_cast<uint32_t>(Utf8At(text, at));
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(c);
    } else if (c >= 0x20 && c < 0x7F) {
      quoted += static_cast<char>(c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&quoted, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
    }
  }
  return quoted + '"';
}

class SchemaWriter {
 public:
  explicit SchemaWriter(const SchemaModel& model)
      : model_(model), number_of_(model.nodes.size(), kNoNode) {}

  absl::StatusOr<std::string> Write() {
    const std::string root = Name(0);
    std::string nodes;
    for (size_t i = 0; i < named_.size(); ++i) {
      ASSIGN_OR_RETURN(const std::string body, Body(model_.nodes[named_[i]]));
      absl::StrAppend(&nodes, i == 0 ? "" : ",", "\"n", i, "\":", body);
    }
    return absl::StrCat("{", root, ",\"$defs\":{", nodes, "}}");
  }

 private:
  // The library tells schemas apart by their text without properties called "title", "default" and
  // so on. This keyword, which it knows nothing of, keeps two of them apart.
  std::string Mark() { return absl::StrCat("\"mark\":", ++marks_); }

  bool IsPossible(uint32_t node) const { return model_.nodes[node].possible; }

  // A reference to a node, without its braces. The node is written once for all.
  std::string Name(uint32_t node) {
    uint32_t& number = number_of_[node];
    if (number == kNoNode) {
      number = static_cast<uint32_t>(named_.size());
      named_.push_back(node);
    }
    return absl::StrCat("\"$ref\":\"#/$defs/n", number, "\"");
  }
  // What the library has a rule of its own for stands where it is used.
  std::string Reference(uint32_t node) {
    const SchemaNode& meant = model_.nodes[node];
    if (meant.IsAny()) return "{}";
    const bool plain = !meant.HasValues() && !meant.Joins();
    switch (plain ? meant.possible_types : 0) {
      case kNullType:
        return "{\"type\":\"null\"}";
      case kBooleanType:
        return "{\"type\":\"boolean\"}";
      case kIntegerType:
        if (meant.bounds.empty() && meant.multiple_of.value_or(1) == 1) {
          return "{\"type\":\"integer\"}";
        }
        break;
      case kNumberType:
        if (meant.bounds.empty()) return "{\"type\":\"number\"}";
        break;
      case kStringType:
        if (!meant.pattern && meant.format == nullptr && LengthsOf(meant) == Lengths()) {
          return "{\"type\":\"string\"}";
        }
        break;
      default:
        break;
    }
    return "{" + Name(node) + "}";
  }

  absl::StatusOr<std::string> Body(const SchemaNode& node) {
    if (node.HasValues()) return Values(node);
    if (node.IsAny()) return std::string("{}");
    if (node.Joins()) return Joined(node);
    std::vector<std::string> types;
    if (node.possible_types & kNullType) types.push_back("{\"type\":\"null\"}");
    if (node.possible_types & kBooleanType) types.push_back("{\"type\":\"boolean\"}");
    if (node.possible_types & kNumberType) {
      ASSIGN_OR_RETURN(types.emplace_back(), NumberBody(node));
    } else if (node.possible_types & kIntegerType) {
      ASSIGN_OR_RETURN(types.emplace_back(), IntegerBody(node));
    }
    if (node.possible_types & kStringType) types.push_back(StringBody(node));
    if (node.possible_types & kArrayType) types.push_back(ArrayBody(node));
    if (node.possible_types & kObjectType) types.push_back(ObjectBody(node));
    return types.size() == 1 ? types[0] : AnyOf(types);
  }

  std::string AnyOf(const std::vector<std::string>& schemas) {
    return absl::StrCat("{\"anyOf\":[", absl::StrJoin(schemas, ","), "],", Mark(), "}");
  }

  std::string Joined(const SchemaNode& node) {
    std::vector<std::string> joined;
    for (const auto* nodes : {&node.same, &node.any_of, &node.one_of}) {
      for (const uint32_t other : *nodes) {
        if (IsPossible(other)) joined.push_back(Reference(other));
      }
    }
    return joined.size() == 1 ? joined[0] : AnyOf(joined);
  }

  absl::StatusOr<std::string> Values(const SchemaNode& node) {
    std::string list;
    for (const uint32_t value : node.values) {
      if (!list.empty()) list += ',';
      RETURN_IF_ERROR(AddValue(value, list));
    }
    return absl::StrCat("{\"enum\":[", list, "],", Mark(), "}");
  }

  absl::Status AddValue(uint32_t value, std::string& text) const {
    std::vector<uint32_t> open;
    const uint32_t end = model_.text[value].end;
    for (uint32_t at = value; at < end; ++at) {
      while (!open.empty() && model_.text[open.back()].end == at) CloseLast(open, text);
      const JsonValue& part = model_.text[at];
      const bool first = open.empty() || open.back() + 1 == at;
      if (!first) text += ',';
      if (!open.empty() && model_.text[open.back()].kind == JsonKind::kObject) {
        text += Quote(part.key) + ":";
      }
      switch (part.kind) {
        case JsonKind::kNull:
          text += "null";
          break;
        case JsonKind::kFalse:
          text += "false";
          break;
        case JsonKind::kTrue:
          text += "true";
          break;
        case JsonKind::kNumber:
          RETURN_IF_ERROR(AddNumber(at, text));
          break;
        case JsonKind::kString:
          text += Quote(part.text);
          break;
        case JsonKind::kArray:
        case JsonKind::kObject:
          text += part.kind == JsonKind::kArray ? '[' : '{';
          open.push_back(at);
          break;
      }
    }
    while (!open.empty()) CloseLast(open, text);
    return absl::OkStatus();
  }

  void CloseLast(std::vector<uint32_t>& open, std::string& text) const {
    text += model_.text[open.back()].kind == JsonKind::kArray ? ']' : '}';
    open.pop_back();
  }

  absl::Status AddNumber(uint32_t at, std::string& text) const {
    const Number number(model_.text[at].text);
    if (const auto whole = number.Int64()) {
      absl::StrAppend(&text, *whole);
      return absl::OkStatus();
    }
    if (number.whole_text || !std::isfinite(number.value)) {
      return RefuseSchema(model_.text, at, "a number of an enum must fit 64 bits");
    }
    absl::StrAppendFormat(&text, "%.17g", number.value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> NumberBody(const SchemaNode& node) {
    ASSIGN_OR_RETURN(const NumberRange range, NumberRangeOf(model_, node));
    if (!range.low && !range.high) return std::string("{\"type\":\"number\"}");
    std::string body = "{\"type\":\"number\",";
    if (range.low) {
      absl::StrAppend(&body, range.low->exclusive ? "\"exclusiveMinimum\":" : "\"minimum\":",
                      range.low->text, ",");
    }
    if (range.high) {
      absl::StrAppend(&body, range.high->exclusive ? "\"exclusiveMaximum\":" : "\"maximum\":",
                      range.high->text, ",");
    }
    return absl::StrCat(body, Mark(), "}");
  }

  absl::StatusOr<std::string> IntegerBody(const SchemaNode& node) {
    ASSIGN_OR_RETURN(const IntegerRange range, IntegerRangeOf(model_, node));
    const int64_t of = node.multiple_of.value_or(1);
    if (of > 1 && range.low && range.high) return Multiples(*range.low, *range.high, of);
    if (of == 1 && !range.low && !range.high) return std::string("{\"type\":\"integer\"}");
    std::string body = "{\"type\":\"integer\",";
    if (range.low) absl::StrAppend(&body, "\"minimum\":", *range.low, ",");
    if (range.high) absl::StrAppend(&body, "\"maximum\":", *range.high, ",");
    if (of > 1) absl::StrAppend(&body, "\"multipleOf\":", of, ",");
    return absl::StrCat(body, Mark(), "}");
  }

  // CheckNodes bounds how many there are.
  std::string Multiples(int64_t low, int64_t high, int64_t of) {
    const int64_t rest = ((low % of) + of) % of;
    std::vector<int64_t> multiples = {rest == 0 ? low : low + (of - rest)};
    while (multiples.back() <= high - of) multiples.push_back(multiples.back() + of);
    return absl::StrCat("{\"enum\":[", absl::StrJoin(multiples, ","), "],", Mark(), "}");
  }

  std::string StringBody(const SchemaNode& node) {
    const Lengths lengths = LengthsOf(node);
    const Pattern* const pattern = node.pattern ? &*node.pattern : node.format;
    if (pattern != nullptr) return Matching(pattern->WholeText(lengths).value_or(""));
    if (lengths == Lengths()) return "{\"type\":\"string\"}";
    std::string body = absl::StrCat("{\"type\":\"string\",\"minLength\":", lengths.low, ",");
    if (lengths.high != kUnbounded) absl::StrAppend(&body, "\"maxLength\":", lengths.high, ",");
    return absl::StrCat(body, Mark(), "}");
  }

  std::string Matching(const std::string& pattern) {
    return absl::StrCat("{\"type\":\"string\",\"pattern\":", Quote(pattern), ",", Mark(), "}");
  }

  std::string ArrayBody(const SchemaNode& node) {
    size_t most = node.prefix.size();
    for (size_t i = 0; i < node.prefix.size() && most == node.prefix.size(); ++i) {
      if (!IsPossible(node.prefix[i])) most = i;
    }
    const bool whole = most == node.prefix.size();
    const bool more =
        whole && HasMoreItems(model_, node) && (!node.items || IsPossible(*node.items));
    const bool any = !node.items || model_.nodes[*node.items].IsAny();
    if (node.max_items && *node.max_items < most) most = static_cast<size_t>(*node.max_items);
    std::string body = "{\"type\":\"array\",";
    if (most > 0) {
      std::vector<std::string> items;
      for (size_t i = 0; i < most; ++i) items.push_back(Reference(node.prefix[i]));
      absl::StrAppend(&body, "\"prefixItems\":[", absl::StrJoin(items, ","), "],");
    }
    absl::StrAppend(&body, "\"items\":",
                    !more ? "false"
                    : any ? "{}"
                          : Reference(*node.items),
                    ",");
    if (node.min_items > 0) absl::StrAppend(&body, "\"minItems\":", node.min_items, ",");
    if (more && node.max_items) absl::StrAppend(&body, "\"maxItems\":", *node.max_items, ",");
    return absl::StrCat(body, Mark(), "}");
  }

  // What the values of properties without a name in the schema are; empty: there are none.
  std::string MoreProperties(const SchemaNode& node) {
    if (!HasMoreProperties(model_, node)) return {};
    if (node.names && !IsPossible(*node.names)) return {};
    const std::optional<uint32_t> values =
        node.matched.empty() ? node.more_properties : node.matched[0].second;
    if (!values) return "{}";
    return IsPossible(*values) ? Reference(*values) : std::string();
  }

  std::string ObjectBody(const SchemaNode& node) {
    const std::string more = MoreProperties(node);
    std::vector<std::string> properties;
    std::vector<std::string> required;
    for (const SchemaProperty& property : node.properties) {
      const uint32_t value =
          property.node != kNoNode ? property.node : node.more_properties.value_or(kNoNode);
      if (value != kNoNode && !IsPossible(value)) continue;
      properties.push_back(
          absl::StrCat(Quote(property.name), ":", value == kNoNode ? "{}" : Reference(value)));
      if (property.required) required.push_back(Quote(property.name));
    }
    std::string body = "{\"type\":\"object\",";
    if (!properties.empty()) {
      absl::StrAppend(&body, "\"properties\":{", absl::StrJoin(properties, ","), "},");
    }
    if (!required.empty()) {
      absl::StrAppend(&body, "\"required\":[", absl::StrJoin(required, ","), "],");
    }
    if (!more.empty() && node.names) {
      absl::StrAppend(&body, "\"propertyNames\":", Reference(*node.names), ",");
    } else if (!more.empty() && !node.matched.empty()) {
      absl::StrAppend(&body, "\"propertyNames\":",
                      Matching(node.matched[0].first.WholeText({}).value_or("")), ",");
    }
    absl::StrAppend(&body, "\"additionalProperties\":", more.empty() ? "false" : more, ",");
    if (node.min_properties > 0) {
      absl::StrAppend(&body, "\"minProperties\":", node.min_properties, ",");
    }
    if (node.max_properties) {
      absl::StrAppend(&body, "\"maxProperties\":", *node.max_properties, ",");
    }
    return absl::StrCat(body, Mark(), "}");
  }

  const SchemaModel& model_;
  std::vector<uint32_t> number_of_;  // by node
  std::vector<uint32_t> named_;      // nodes, by number
  size_t marks_ = 0;
};

}  // namespace

absl::StatusOr<std::string> WriteSchema(const SchemaModel& model) {
  return SchemaWriter(model).Write();
}

}  // namespace eta::schema
