// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/schema_rules.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/format/schema/number_range.h"

namespace eta::schema {
namespace {

constexpr uint64_t kMaxMultiples = 1024;  // that are listed

// A name that JSON writes as it is, in ASCII.
bool IsPlainName(std::string_view name) {
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

class NodeRules {
 public:
  NodeRules(const SchemaModel& model, const SchemaNode& node) : model_(model), node_(node) {}

  absl::Status Check() const {
    // Values are tried one by one: whatever stands beside them is taken as it is meant.
    if (node_.HasValues() || node_.never || node_.IsAny()) return absl::OkStatus();
    if (node_.alone_at != 0) {
      if (node_.other_at == 0) return absl::OkStatus();
      return Refuse(node_.other_at,
                    "beside $ref, allOf, anyOf and oneOf no other keyword is enforced: put it into "
                    "each of their schemas");
    }
    if (node_.types == 0) {
      return Refuse(node_.other_at, "it is not enforced without a type beside it");
    }
    if (node_.types & kStringType) RETURN_IF_ERROR(CheckString());
    if (node_.types & (kIntegerType | kNumberType)) RETURN_IF_ERROR(CheckNumber());
    if (node_.types & kArrayType) RETURN_IF_ERROR(CheckArray());
    if (node_.types & kObjectType) RETURN_IF_ERROR(CheckObject());
    return absl::OkStatus();
  }

 private:
  absl::Status Refuse(uint32_t at, const std::string& sentence) const {
    return RefuseSchema(model_.text, at, sentence);
  }

  absl::Status CheckString() const {
    const Lengths lengths = LengthsOf(node_);
    if (lengths.low > lengths.high) return Refuse(node_.at, "minLength is over maxLength");
    if (node_.pattern && node_.format != nullptr) {
      return Refuse(node_.pattern_at, "pattern and format are not enforced together");
    }
    const Pattern* const pattern = node_.pattern ? &*node_.pattern : node_.format;
    if (pattern == nullptr) return absl::OkStatus();
    const std::optional<std::string> text = pattern->WholeText(lengths);
    if (!text) {
      return Refuse(node_.pattern_at,
                    "beside it minLength and maxLength are not enforced: write them into a pattern "
                    "from ^ to $");
    }
    if (text->empty()) return Refuse(node_.pattern_at, "no text that needs no escapes matches it");
    return absl::OkStatus();
  }

  absl::Status CheckNumber() const {
    if (node_.types & kNumberType) RETURN_IF_ERROR(NumberRangeOf(model_, node_).status());
    if (!(node_.types & kIntegerType)) {
      if (!node_.multiple_of) return absl::OkStatus();
      return Refuse(node_.multiple_at, "multipleOf is enforced for integers only");
    }
    ASSIGN_OR_RETURN(const IntegerRange range, IntegerRangeOf(model_, node_));
    if (!node_.multiple_of) return absl::OkStatus();
    if (node_.types & kNumberType) {
      return Refuse(node_.multiple_at, "multipleOf is enforced for integers only");
    }
    return *node_.multiple_of == 1 ? absl::OkStatus() : CheckMultiples(range);
  }

  absl::Status CheckMultiples(const IntegerRange& range) const {
    if (!range.low && !range.high) return absl::OkStatus();
    const auto of = static_cast<int64_t>(*node_.multiple_of);
    int64_t width = 0;
    if (!range.low || !range.high || __builtin_sub_overflow(*range.high, *range.low, &width) ||
        static_cast<uint64_t>(width / of) >= kMaxMultiples) {
      return Refuse(node_.multiple_at,
                    absl::StrCat("beside bounds multipleOf is enforced for at most ", kMaxMultiples,
                                 " numbers from minimum to maximum"));
    }
    const int64_t rest = ((*range.low % of) + of) % of;
    if (rest != 0 && width < of - rest) {
      return Refuse(node_.multiple_at, "no multiple lies between the bounds");
    }
    return absl::OkStatus();
  }

  absl::Status CheckArray() const {
    if (node_.max_items && node_.min_items > *node_.max_items) {
      return Refuse(node_.at, "minItems is over maxItems");
    }
    if (!HasMoreItems(model_, node_) && node_.min_items > node_.prefix.size()) {
      return Refuse(node_.at, "minItems is over the number of items there may be");
    }
    return absl::OkStatus();
  }

  absl::Status CheckObject() const {
    if (node_.max_properties && node_.min_properties > *node_.max_properties) {
      return Refuse(node_.at, "minProperties is over maxProperties");
    }
    RETURN_IF_ERROR(CheckNames());
    const auto required = static_cast<uint64_t>(
        std::count_if(node_.properties.begin(), node_.properties.end(),
                      [](const SchemaProperty& property) { return property.required; }));
    if (node_.max_properties && required > *node_.max_properties) {
      return Refuse(node_.at, "more properties are required than maxProperties");
    }
    if (!HasMoreProperties(model_, node_)) {
      if (node_.min_properties <= node_.properties.size()) return absl::OkStatus();
      return Refuse(node_.at, "minProperties is over the number of properties there may be");
    }
    // A name that is free may come twice, and is one property then.
    if (node_.min_properties > std::max<uint64_t>(1, required)) {
      return Refuse(node_.at, "minProperties over 1 is not enforced where names are free");
    }
    for (const SchemaProperty& property : node_.properties) {
      if (IsPlainName(property.name)) continue;
      return Refuse(node_.at,
                    "beside properties of other names, names of ASCII without quotes and "
                    "backslashes are enforced only: set additionalProperties to false");
    }
    return absl::OkStatus();
  }

  // Patterns of names.
  absl::Status CheckNames() const {
    if (!node_.names && node_.matched.empty()) return absl::OkStatus();
    const uint32_t at =
        node_.names ? model_.nodes[*node_.names].at : model_.nodes[node_.matched[0].second].at;
    if (!node_.properties.empty() || (node_.names && !node_.matched.empty()) ||
        node_.matched.size() > 1) {
      return Refuse(
          at,
          "propertyNames, or one pattern of patternProperties, is enforced alone, without "
          "properties beside it");
    }
    if (node_.matched.empty()) return absl::OkStatus();
    if (node_.more_properties && !model_.nodes[*node_.more_properties].never) {
      return Refuse(at, "patternProperties is enforced where additionalProperties is false only");
    }
    const std::optional<std::string> text = node_.matched[0].first.WholeText({});
    return text && !text->empty() ? absl::OkStatus()
                                  : Refuse(at, "no name that needs no escapes matches it");
  }

  const SchemaModel& model_;
  const SchemaNode& node_;
};

}  // namespace

Lengths LengthsOf(const SchemaNode& node) {
  return {static_cast<uint32_t>(node.min_length.value_or(0)),
          static_cast<uint32_t>(node.max_length.value_or(kUnbounded))};
}

bool HasMoreProperties(const SchemaModel& model, const SchemaNode& node) {
  if (node.more_properties)
    return !model.nodes[*node.more_properties].never || !node.matched.empty();
  if (!node.matched.empty()) return true;
  return !node.says_properties && !node.no_unevaluated;
}

bool HasMoreItems(const SchemaModel& model, const SchemaNode& node) {
  if (node.items) return !model.nodes[*node.items].never;
  return node.prefix.empty() && !node.no_unevaluated_items;
}

absl::Status CheckNodes(const SchemaModel& model) {
  for (const SchemaNode& node : model.nodes) {
    RETURN_IF_ERROR(NodeRules(model, node).Check());
  }
  return absl::OkStatus();
}

}  // namespace eta::schema
