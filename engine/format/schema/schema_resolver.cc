// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/schema_resolver.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/format/schema/schema_rules.h"
#include "engine/format/schema/value_check.h"

namespace eta::schema {
namespace {

// The nodes that hold of the same value.
void ForEachJoined(const SchemaNode& node, const std::function<void(uint32_t)>& visit) {
  for (const uint32_t same : node.same) visit(same);
  for (const uint32_t branch : node.any_of) visit(branch);
  for (const uint32_t branch : node.one_of) visit(branch);
}

// Each node behind those that it joins; shorter than all nodes where some join themselves.
std::vector<uint32_t> JoinedFirst(const SchemaModel& model) {
  const auto count = static_cast<uint32_t>(model.nodes.size());
  std::vector<std::vector<uint32_t>> joined_by(count);
  std::vector<size_t> open(count, 0);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < count; ++i) {
    ForEachJoined(model.nodes[i], [&](uint32_t other) {
      joined_by[other].push_back(i);
      ++open[i];
    });
    if (open[i] == 0) order.push_back(i);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const uint32_t by : joined_by[order[i]]) {
      if (--open[by] == 0) order.push_back(by);
    }
  }
  return order;
}

class Resolver {
 public:
  explicit Resolver(SchemaModel& model) : model_(model), order_(JoinedFirst(model)) {}

  absl::Status Run() {
    KeepValues();
    FindTypes();
    FindPossible();
    if (!model_.nodes[0].possible) {
      return RefuseSchema(model_.text, 0, "no finite value satisfies this schema");
    }
    for (const SchemaNode& node : model_.nodes) {
      if (node.names && (model_.nodes[*node.names].value_types & ~kStringType) != 0) {
        return RefuseSchema(model_.text, model_.nodes[*node.names].at,
                            "propertyNames must be of strings");
      }
      if (node.HasValues()) continue;
      RETURN_IF_ERROR(CheckExcluded(node));
      RETURN_IF_ERROR(CheckApart(node));
    }
    return absl::OkStatus();
  }

 private:
  // Of the values that are listed, those that all keywords of the node allow, each once.
  void KeepValues() {
    for (uint32_t i = 0; i < model_.nodes.size(); ++i) {
      SchemaNode& node = model_.nodes[i];
      std::vector<uint32_t> listed;
      if (node.const_at) {
        listed.push_back(*node.const_at);
      } else if (node.enum_at) {
        for (const uint32_t item : model_.text.ChildrenOf(*node.enum_at)) listed.push_back(item);
      }
      ValueCheck check(model_, model_.text);
      for (const uint32_t value : listed) {
        const bool again = std::any_of(node.values.begin(), node.values.end(), [&](uint32_t kept) {
          return JsonEqual(model_.text, kept, model_.text, value);
        });
        if (!again && check.Accepts(i, value)) node.values.push_back(value);
      }
    }
  }

  void FindTypes() {
    for (const uint32_t i : order_) {
      SchemaNode& node = model_.nodes[i];
      if (node.never) continue;
      if (node.HasValues()) {
        for (const uint32_t value : node.values)
          node.value_types |= TypesOf(model_.text[value].kind, model_.text[value].text);
      } else if (node.Joins()) {
        ForEachJoined(node,
                      [&](uint32_t other) { node.value_types |= model_.nodes[other].value_types; });
      } else {
        node.value_types = node.types == 0 ? kAnyType : node.types;
      }
    }
  }

  // A node has a value if it can be made of values that are there: until nothing more is found.
  void FindPossible() {
    for (bool found = true; found;) {
      found = false;
      for (const uint32_t i : order_) {
        SchemaNode& node = model_.nodes[i];
        const Types before = node.possible_types;
        const bool was = node.possible;
        Find(node);
        found = found || node.possible_types != before || node.possible != was;
      }
    }
  }

  void Find(SchemaNode& node) const {
    if (node.never) return;
    if (node.HasValues()) {
      node.possible = !node.values.empty();
    } else if (node.Joins()) {
      ForEachJoined(node, [&](uint32_t other) {
        node.possible = node.possible || model_.nodes[other].possible;
      });
    } else {
      const Types types = node.types == 0 ? kAnyType : node.types;
      node.possible_types = types & ~(kArrayType | kObjectType);
      if ((types & kArrayType) && HasArray(node)) node.possible_types |= kArrayType;
      if ((types & kObjectType) && HasObject(node)) node.possible_types |= kObjectType;
      node.possible = node.possible_types != 0;
    }
  }

  bool IsPossible(uint32_t node) const { return model_.nodes[node].possible; }

  bool HasArray(const SchemaNode& node) const {
    const size_t least = static_cast<size_t>(node.min_items);
    for (size_t i = 0; i < std::min(least, node.prefix.size()); ++i) {
      if (!IsPossible(node.prefix[i])) return false;
    }
    return least <= node.prefix.size() || !node.items || IsPossible(*node.items);
  }

  bool HasObject(const SchemaNode& node) const {
    size_t possible = 0;
    for (const SchemaProperty& property : node.properties) {
      const bool has = property.node != kNoNode
                           ? IsPossible(property.node)
                           : !node.more_properties || IsPossible(*node.more_properties);
      if (property.required && !has) return false;
      possible += has ? 1 : 0;
    }
    if (possible >= node.min_properties) return true;
    if (!HasMoreProperties(model_, node)) return false;
    if (node.names && !IsPossible(*node.names)) return false;
    if (!node.matched.empty()) return IsPossible(node.matched[0].second);
    return !node.more_properties || IsPossible(*node.more_properties);
  }

  // A property that can have no value must not be there. That is enforced by not naming it.
  absl::Status CheckExcluded(const SchemaNode& node) const {
    if (!(node.possible_types & kObjectType) || !HasMoreProperties(model_, node)) {
      return absl::OkStatus();
    }
    for (const SchemaProperty& property : node.properties) {
      if (property.node == kNoNode || IsPossible(property.node)) continue;
      return RefuseSchema(
          model_.text, model_.nodes[property.node].at,
          "a property that can have no value is enforced where additionalProperties is false only");
    }
    return absl::OkStatus();
  }

  // The branches of oneOf that have values must exclude each other: they are enforced as anyOf.
  absl::Status CheckApart(const SchemaNode& node) const {
    for (size_t i = 0; i < node.one_of.size(); ++i) {
      for (size_t j = i + 1; j < node.one_of.size(); ++j) {
        const SchemaNode& a = Plain(node.one_of[i]);
        const SchemaNode& b = Plain(node.one_of[j]);
        if (a.possible && b.possible && !AreApart(a, b)) {
          return RefuseSchema(
              model_.text, model_.nodes[node.one_of[j]].at,
              "this branch of oneOf may hold together with another: tell them apart by their "
              "types, "
              "by required properties that others do not have, or by one with a const of its own; "
              "or take anyOf");
        }
      }
    }
    return absl::OkStatus();
  }

  // What stands behind references.
  const SchemaNode& Plain(uint32_t at) const {
    const SchemaNode* node = &model_.nodes[at];
    while (!node->HasValues() && node->same.size() == 1) node = &model_.nodes[node->same[0]];
    return *node;
  }

  static Types Wide(Types types) { return types & kIntegerType ? types | kNumberType : types; }

  bool AreApart(const SchemaNode& a, const SchemaNode& b) const {
    if ((Wide(a.value_types) & Wide(b.value_types)) == 0) return true;
    if (a.HasValues() && b.HasValues()) return ShareNoValue(a, b);
    if (a.HasValues() || b.HasValues() || a.Joins() || b.Joins()) return false;
    if ((Wide(a.value_types) & Wide(b.value_types)) != kObjectType) return false;
    if (LacksWhatNeeds(a, b) && LacksWhatNeeds(b, a)) return true;
    for (const SchemaProperty& property : a.properties) {
      if (!property.required || property.node == kNoNode) continue;
      const auto found = std::lower_bound(b.by_name.begin(), b.by_name.end(),
                                          std::pair<std::string_view, uint32_t>(property.name, 0));
      if (found == b.by_name.end() || found->first != property.name) continue;
      const SchemaProperty& other = b.properties[found->second];
      if (!other.required || other.node == kNoNode) continue;
      const SchemaNode& ours = Plain(property.node);
      const SchemaNode& theirs = Plain(other.node);
      if (ours.HasValues() && theirs.HasValues() && ShareNoValue(ours, theirs)) return true;
    }
    return false;
  }

  // Whether no answer for `a` has all that `b` requires: it names all that there may be.
  bool LacksWhatNeeds(const SchemaNode& a, const SchemaNode& b) const {
    if (HasMoreProperties(model_, a)) return false;
    return std::any_of(b.properties.begin(), b.properties.end(), [&](const SchemaProperty& needed) {
      return needed.required &&
             std::none_of(a.properties.begin(), a.properties.end(),
                          [&](const SchemaProperty& own) { return own.name == needed.name; });
    });
  }

  // Of texts, integers, null, true and false only, which are compared by a word.
  bool ShareNoValue(const SchemaNode& a, const SchemaNode& b) const {
    std::set<std::string> words;
    for (const uint32_t value : a.values) {
      const std::optional<std::string> word = WordOf(model_.text[value]);
      if (!word) return false;
      words.insert(*word);
    }
    return std::all_of(b.values.begin(), b.values.end(), [&](uint32_t value) {
      const std::optional<std::string> word = WordOf(model_.text[value]);
      return word && !words.contains(*word);
    });
  }

  static std::optional<std::string> WordOf(const JsonValue& value) {
    switch (value.kind) {
      case JsonKind::kNull:
        return "null";
      case JsonKind::kFalse:
        return "false";
      case JsonKind::kTrue:
        return "true";
      case JsonKind::kNumber: {
        const std::optional<int64_t> whole = Number(value.text).Int64();
        if (!whole) return std::nullopt;
        return absl::StrCat(*whole);
      }
      case JsonKind::kString:
        return absl::StrCat("text ", std::string(value.text));
      default:
        return std::nullopt;
    }
  }

  SchemaModel& model_;
  const std::vector<uint32_t> order_;
};

}  // namespace

absl::Status RefuseCycles(const SchemaModel& model) {
  const std::vector<uint32_t> order = JoinedFirst(model);
  if (order.size() == model.nodes.size()) return absl::OkStatus();
  std::vector<bool> ends(model.nodes.size(), false);
  for (const uint32_t node : order) ends[node] = true;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (ends[i]) continue;
    return RefuseSchema(model.text, model.nodes[i].alone_at,
                        "this schema holds itself without an end");
  }
  return absl::OkStatus();
}

absl::Status Resolve(SchemaModel& model) {
  RETURN_IF_ERROR(RefuseCycles(model));
  return Resolver(model).Run();
}

}  // namespace eta::schema
