// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/value_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/utf8_characters.h"

namespace eta::schema {
namespace {

uint64_t KeyOf(uint32_t node, uint32_t value) {
  return uint64_t{node} << 32 | value;
}

}  // namespace

Types TypesOf(JsonKind kind, std::string_view text) {
  switch (kind) {
    case JsonKind::kNull:
      return kNullType;
    case JsonKind::kFalse:
    case JsonKind::kTrue:
      return kBooleanType;
    case JsonKind::kNumber:
      return Number(text).IsWhole() ? kIntegerType | kNumberType : kNumberType;
    case JsonKind::kString:
      return kStringType;
    case JsonKind::kArray:
      return kArrayType;
    case JsonKind::kObject:
      return kObjectType;
  }
  return 0;
}

bool ValueCheck::Accepts(uint32_t node, uint32_t value) {
  frames_.clear();
  goals_.clear();
  known_.clear();
  choices_ = 0;
  result_ = false;
  Begin({.node = node, .value = value});
  while (!frames_.empty()) {
    Frame& frame = frames_.back();
    const Way way = frame.goal.way;
    const bool failed = frame.held < frame.tried;
    const bool over = frame.next == frame.end || (way == Way::kAll && failed) ||
                      (way == Way::kAny && frame.held > 0) || (way == Way::kOne && frame.held > 1);
    if (!over) {
      const Goal next = goals_[frame.next++];  // goals_ grows meanwhile
      Begin(next);
      continue;
    }
    const Frame ended = frame;
    frames_.pop_back();
    goals_.resize(ended.first);
    bool holds = !failed;
    if (way != Way::kAll) {
      --choices_;
      holds = way == Way::kAny ? ended.held > 0 : ended.held == 1;
      if (!holds) Breaks(way == Way::kAny ? "anyOf" : "oneOf", ended.goal);
    } else if (choices_ > 0 && !ended.goal.of_key) {
      known_[KeyOf(ended.goal.node, ended.goal.value)] = holds;
    }
    Count(holds);
  }
  return result_;
}

bool ValueCheck::Breaks(std::string_view keyword, const Goal& goal) {
  broken_keyword_ = keyword;
  broken_value_ = goal.value;
  return false;
}

void ValueCheck::Count(bool holds) {
  if (frames_.empty()) {
    result_ = holds;
    return;
  }
  ++frames_.back().tried;
  if (holds) ++frames_.back().held;
}

void ValueCheck::Begin(const Goal& goal) {
  const SchemaNode& node = model_.nodes[goal.node];
  const size_t first = goals_.size();
  if (goal.way != Way::kAll) {
    for (const uint32_t branch : goal.way == Way::kAny ? node.any_of : node.one_of) {
      goals_.push_back({.node = branch, .value = goal.value, .of_key = goal.of_key});
    }
    ++choices_;
  } else {
    if (choices_ > 0 && !goal.of_key) {
      const auto known = known_.find(KeyOf(goal.node, goal.value));
      if (known != known_.end()) return Count(known->second);
    }
    if (!Fits(node, goal)) {
      goals_.resize(first);
      return Count(false);
    }
    for (const uint32_t same : node.same) {
      goals_.push_back({.node = same, .value = goal.value, .of_key = goal.of_key});
    }
    for (const Way way : {Way::kAny, Way::kOne}) {
      if ((way == Way::kAny ? node.any_of : node.one_of).empty()) continue;
      goals_.push_back({goal.node, goal.value, goal.of_key, way});
    }
    if (goals_.size() == first) return Count(true);
  }
  frames_.push_back({.goal = goal, .first = first, .next = first, .end = goals_.size()});
}

bool ValueCheck::IsAmong(uint32_t list, const Goal& goal) const {
  const JsonText& schema = model_.text;
  for (const uint32_t item : schema.ChildrenOf(list)) {
    if (goal.of_key
            ? schema[item].kind == JsonKind::kString && schema[item].text == values_[goal.value].key
            : JsonEqual(schema, item, values_, goal.value)) {
      return true;
    }
  }
  return false;
}

bool ValueCheck::Fits(const SchemaNode& node, const Goal& goal) {
  const JsonValue& value = values_[goal.value];
  const JsonKind kind = goal.of_key ? JsonKind::kString : value.kind;
  if (node.never) return Breaks("false", goal);
  if (node.types != 0 && !(node.types & TypesOf(kind, value.text))) return Breaks("type", goal);
  if (node.const_at) {
    const uint32_t wanted = *node.const_at;
    const bool equal = goal.of_key ? model_.text[wanted].kind == JsonKind::kString &&
                                         model_.text[wanted].text == value.key
                                   : JsonEqual(model_.text, wanted, values_, goal.value);
    if (!equal) return Breaks("const", goal);
  }
  if (node.enum_at && !IsAmong(*node.enum_at, goal)) return Breaks("enum", goal);
  switch (kind) {
    case JsonKind::kNumber:
      return FitsNumber(node, goal);
    case JsonKind::kString:
      return FitsString(node, goal);
    case JsonKind::kArray:
      return FitsArray(node, goal);
    case JsonKind::kObject:
      return FitsObject(node, goal);
    default:
      return true;
  }
}

bool ValueCheck::FitsNumber(const SchemaNode& node, const Goal& goal) {
  const Number number(values_[goal.value].text);
  for (const Bound& bound : node.bounds) {
    const int order = Compare(number, bound.number);
    const int inside = bound.lower ? order : -order;
    if (inside < 0 || (bound.exclusive && inside == 0)) {
      return Breaks(model_.text[bound.at].key, goal);
    }
  }
  if (node.multiple_of && !number.IsMultipleOf(*node.multiple_of)) {
    return Breaks("multipleOf", goal);
  }
  return true;
}

bool ValueCheck::FitsString(const SchemaNode& node, const Goal& goal) {
  const JsonValue& value = values_[goal.value];
  const std::string_view text = goal.of_key ? value.key : value.text;
  if (node.min_length || node.max_length) {
    const size_t length = CountCharacters(text);
    if (node.min_length && length < *node.min_length) return Breaks("minLength", goal);
    if (node.max_length && length > *node.max_length) return Breaks("maxLength", goal);
  }
  return !node.pattern || node.pattern->Matches(text) || Breaks("pattern", goal);
}

bool ValueCheck::FitsArray(const SchemaNode& node, const Goal& goal) {
  size_t count = 0;
  for (const uint32_t item : values_.ChildrenOf(goal.value)) {
    if (count < node.prefix.size()) {
      goals_.push_back({.node = node.prefix[count], .value = item});
    } else if (node.items) {
      if (model_.nodes[*node.items].never) return Breaks("items", goal);
      goals_.push_back({.node = *node.items, .value = item});
    } else if (node.no_unevaluated_items) {
      return Breaks("unevaluatedItems", goal);
    }
    ++count;
  }
  if (count < node.min_items) return Breaks("minItems", goal);
  return !node.max_items || count <= *node.max_items || Breaks("maxItems", goal);
}

bool ValueCheck::FitsObject(const SchemaNode& node, const Goal& goal) {
  const std::vector<uint32_t> members = values_.SortedMembers(goal.value);
  if (members.size() < node.min_properties) return Breaks("minProperties", goal);
  if (node.max_properties && members.size() > *node.max_properties) {
    return Breaks("maxProperties", goal);
  }
  size_t required = 0;
  for (const SchemaProperty& property : node.properties) required += property.required ? 1 : 0;
  for (const uint32_t member : members) {
    const std::string_view key = values_[member].key;
    if (node.names) goals_.push_back({.node = *node.names, .value = member, .of_key = true});
    bool named = false;
    const auto found = std::lower_bound(node.by_name.begin(), node.by_name.end(),
                                        std::pair<std::string_view, uint32_t>(key, 0));
    if (found != node.by_name.end() && found->first == key) {
      const SchemaProperty& property = node.properties[found->second];
      if (property.required) --required;
      named = property.node != kNoNode;
      if (named) goals_.push_back({.node = property.node, .value = member});
    }
    for (const auto& [pattern, schema] : node.matched) {
      if (!pattern.Matches(key)) continue;
      named = true;
      goals_.push_back({.node = schema, .value = member});
    }
    if (named) continue;
    if (node.more_properties) {
      if (model_.nodes[*node.more_properties].never) return Breaks("additionalProperties", goal);
      goals_.push_back({.node = *node.more_properties, .value = member});
    } else if (node.no_unevaluated) {
      return Breaks("unevaluatedProperties", goal);
    }
  }
  return required == 0 || Breaks("required", goal);
}

}  // namespace eta::schema
