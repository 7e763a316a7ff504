// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/schema_reader.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/format/schema/patterns/string_formats.h"
#include "engine/format/schema/schema_keywords.h"

namespace eta::schema {
namespace {

class SchemaReader {
 public:
  explicit SchemaReader(JsonText text)
      : model_(std::move(text)), text_(model_.text), node_of_(model_.text.size(), kNoNode) {}

  absl::Status Read() {
    for (const uint32_t at : text_.ChildrenOf(NodeAt(0))) {
      if (text_[at].key == "$schema") RETURN_IF_ERROR(ReadDialect(at));
    }
    for (size_t i = 0; i < model_.nodes.size(); ++i) {
      SchemaNode node(model_.nodes[i].at);
      node.of_keys = model_.nodes[i].of_keys;
      RETURN_IF_ERROR(ReadNode(node));
      model_.nodes[i] = std::move(node);
    }
    for (const auto& [node, at] : refs_) RETURN_IF_ERROR(Point(model_.nodes[node], at));
    return absl::OkStatus();
  }
  SchemaModel Release() { return std::move(model_); }

 private:
  using Reader = absl::Status (SchemaReader::*)(SchemaNode&, uint32_t);

  absl::Status Refuse(uint32_t at, const std::string& sentence) const {
    return RefuseSchema(text_, at, sentence);
  }
  absl::Status MustBe(uint32_t at, const std::string& what) const {
    return Refuse(at, absl::StrCat(std::string(text_[at].key), " must be ", what));
  }
  JsonKind KindOf(uint32_t at) const { return text_[at].kind; }

  uint32_t NodeAt(uint32_t at) {
    if (node_of_[at] == kNoNode) {
      node_of_[at] = static_cast<uint32_t>(model_.nodes.size());
      model_.nodes.emplace_back(at);
    }
    return node_of_[at];
  }

  absl::Status ReadNode(SchemaNode& node) {
    if (KindOf(node.at) == JsonKind::kTrue) {
      if (node.of_keys) node.types = kStringType;
      return absl::OkStatus();
    }
    if (KindOf(node.at) == JsonKind::kFalse) {
      node.never = true;
      return absl::OkStatus();
    }
    if (KindOf(node.at) != JsonKind::kObject) {
      return Refuse(node.at, "a schema must be an object, true or false");
    }
    for (const uint32_t at : text_.ChildrenOf(node.at)) RETURN_IF_ERROR(ReadKeyword(node, at));
    if (node.of_keys && node.types == 0 && node.alone_at == 0 && !node.HasValues())
      node.types = kStringType;
    for (uint32_t i = 0; i < node.properties.size(); ++i) {
      node.by_name.emplace_back(node.properties[i].name, i);
    }
    std::sort(node.by_name.begin(), node.by_name.end());
    return Require(node);
  }

  absl::Status ReadKeyword(SchemaNode& node, uint32_t at) {
    static const auto* const kReaders = new std::map<std::string_view, Reader>{
        {"$defs", &SchemaReader::ReadDefinitions},
        {"$id", &SchemaReader::ReadId},
        {"$ref", &SchemaReader::ReadRef},
        {"$schema", &SchemaReader::ReadId},
        {"additionalProperties", &SchemaReader::ReadMoreProperties},
        {"allOf", &SchemaReader::ReadAllOf},
        {"anyOf", &SchemaReader::ReadAnyOf},
        {"const", &SchemaReader::ReadConst},
        {"definitions", &SchemaReader::ReadDefinitions},
        {"enum", &SchemaReader::ReadEnum},
        {"exclusiveMaximum", &SchemaReader::ReadBound},
        {"exclusiveMinimum", &SchemaReader::ReadBound},
        {"format", &SchemaReader::ReadFormat},
        {"items", &SchemaReader::ReadItems},
        {"maxItems", &SchemaReader::ReadMost},
        {"maxLength", &SchemaReader::ReadMost},
        {"maxProperties", &SchemaReader::ReadMost},
        {"maximum", &SchemaReader::ReadBound},
        {"minItems", &SchemaReader::ReadLeast},
        {"minLength", &SchemaReader::ReadLeast},
        {"minProperties", &SchemaReader::ReadLeast},
        {"minimum", &SchemaReader::ReadBound},
        {"multipleOf", &SchemaReader::ReadMultipleOf},
        {"oneOf", &SchemaReader::ReadOneOf},
        {"pattern", &SchemaReader::ReadPattern},
        {"patternProperties", &SchemaReader::ReadMatched},
        {"prefixItems", &SchemaReader::ReadPrefix},
        {"properties", &SchemaReader::ReadProperties},
        {"propertyNames", &SchemaReader::ReadNames},
        {"required", &SchemaReader::ReadRequired},
        {"type", &SchemaReader::ReadType},
        {"unevaluatedItems", &SchemaReader::ReadUnevaluated},
        {"unevaluatedProperties", &SchemaReader::ReadUnevaluated},
        {"uniqueItems", &SchemaReader::ReadUnique}};
    const std::string_view keyword = text_[at].key;
    if (IsAnnotation(keyword)) return absl::OkStatus();
    if (IsNotEnforced(keyword)) {
      return Refuse(at, absl::StrCat(std::string(keyword), " is not enforced"));
    }
    const auto reader = kReaders->find(keyword);
    if (reader == kReaders->end()) return Refuse(at, "a keyword that is not known");
    return (this->*reader->second)(node, at);
  }

  void Asks(SchemaNode& node, uint32_t at) const {
    if (node.other_at == 0) node.other_at = at;
  }
  // A second one stands beside another already.
  void AsksAlone(SchemaNode& node, uint32_t at) const {
    if (node.alone_at != 0) Asks(node, at);
    node.alone_at = at;
  }

  absl::Status ReadDefinitions(SchemaNode& /*node*/, uint32_t at) {
    if (KindOf(at) != JsonKind::kObject) return MustBe(at, "an object of schemas");
    for (const uint32_t member : text_.ChildrenOf(at)) NodeAt(member);
    return absl::OkStatus();
  }

  absl::Status ReadId(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kString) return MustBe(at, "a text");
    // Below the root it would change what others mean.
    if (node.at == 0) return absl::OkStatus();
    return Refuse(at, absl::StrCat(std::string(text_[at].key), " is known at the root only"));
  }

  // Known before all others: it says what they mean.
  absl::Status ReadDialect(uint32_t at) {
    if (KindOf(at) != JsonKind::kString) return MustBe(at, "a text");
    std::string_view name = text_[at].text;
    if (name.ends_with('#')) name.remove_suffix(1);
    if (name.starts_with("https://")) name.remove_prefix(8);
    if (name.starts_with("http://")) name.remove_prefix(7);
    has_prefix_ = name == "json-schema.org/draft/2020-12/schema";
    has_unevaluated_ = has_prefix_ || name == "json-schema.org/draft/2019-09/schema";
    const bool known = has_unevaluated_ || name == "json-schema.org/draft-07/schema" ||
                       name == "json-schema.org/draft-06/schema";
    return known ? absl::OkStatus() : MustBe(at, "draft 2020-12, 2019-09, 07 or 06");
  }

  absl::Status ReadRef(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kString) return MustBe(at, "a text");
    refs_.emplace_back(node_of_[node.at], at);
    AsksAlone(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadBranches(uint32_t at, std::vector<uint32_t>& branches) {
    if (KindOf(at) != JsonKind::kArray) return MustBe(at, "a list of schemas");
    for (const uint32_t item : text_.ChildrenOf(at)) branches.push_back(NodeAt(item));
    if (branches.empty()) return MustBe(at, "a list of schemas, at least one");
    if (branches.size() > kMaxBranches) {
      return MustBe(at, absl::StrCat("a list of at most ", kMaxBranches, " schemas"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAnyOf(SchemaNode& node, uint32_t at) {
    AsksAlone(node, at);
    return ReadBranches(at, node.any_of);
  }
  absl::Status ReadOneOf(SchemaNode& node, uint32_t at) {
    AsksAlone(node, at);
    return ReadBranches(at, node.one_of);
  }
  absl::Status ReadAllOf(SchemaNode& node, uint32_t at) {
    AsksAlone(node, at);
    std::vector<uint32_t> all;
    RETURN_IF_ERROR(ReadBranches(at, all));
    if (all.size() > 1) return Refuse(at, "allOf of several schemas is not enforced");
    node.same.push_back(all[0]);
    return absl::OkStatus();
  }

  absl::Status ReadConst(SchemaNode& node, uint32_t at) {
    node.const_at = at;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadEnum(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kArray) return MustBe(at, "a list");
    size_t count = 0;
    for ([[maybe_unused]] const uint32_t item : text_.ChildrenOf(at)) ++count;
    if (count == 0) return MustBe(at, "a list of values, at least one");
    if (count > kMaxValues) return MustBe(at, absl::StrCat("a list of at most ", kMaxValues));
    node.enum_at = at;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadType(SchemaNode& node, uint32_t at) {
    constexpr char kSaid[] = "null, boolean, integer, number, string, array or object, or a list";
    if (KindOf(at) == JsonKind::kString) {
      node.types = TypeNamed(text_[at].text);
    } else if (KindOf(at) == JsonKind::kArray) {
      for (const uint32_t item : text_.ChildrenOf(at)) {
        const Types type = KindOf(item) == JsonKind::kString ? TypeNamed(text_[item].text) : 0;
        if (type == 0) return MustBe(at, kSaid);
        node.types |= type;
      }
    }
    if (node.types == 0) return MustBe(at, kSaid);
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadProperties(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kObject) return MustBe(at, "an object of schemas");
    node.says_properties = true;
    for (const uint32_t member : text_.ChildrenOf(at)) {
      node.properties.push_back({.name = text_[member].key, .node = NodeAt(member)});
    }
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadRequired(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kArray) return MustBe(at, "a list of names");
    for (const uint32_t item : text_.ChildrenOf(at)) {
      if (KindOf(item) != JsonKind::kString) return MustBe(at, "a list of names");
    }
    required_.emplace_back(node.at, at);
    Asks(node, at);
    return absl::OkStatus();
  }

  // Marks the properties that are required; `properties` may come after `required`.
  absl::Status Require(SchemaNode& node) {
    if (required_.empty() || required_.back().first != node.at) return absl::OkStatus();
    const uint32_t at = required_.back().second;
    std::map<std::string_view, uint32_t> more;
    for (const uint32_t item : text_.ChildrenOf(at)) {
      const std::string_view name = text_[item].text;
      const auto known = std::lower_bound(node.by_name.begin(), node.by_name.end(),
                                          std::pair<std::string_view, uint32_t>(name, 0));
      if (known != node.by_name.end() && known->first == name) {
        node.properties[known->second].required = true;
      } else if (more.emplace(name, 0).second) {
        node.properties.push_back({.name = name, .required = true});
      }
    }
    if (more.empty()) return absl::OkStatus();
    const bool none =
        node.more_properties && KindOf(model_.nodes[*node.more_properties].at) == JsonKind::kFalse;
    if (none || node.no_unevaluated) {
      return Refuse(at, "required names a property that may not be there");
    }
    for (auto i = static_cast<uint32_t>(node.by_name.size()); i < node.properties.size(); ++i) {
      node.by_name.emplace_back(node.properties[i].name, i);
    }
    std::sort(node.by_name.begin(), node.by_name.end());
    return absl::OkStatus();
  }

  absl::Status ReadMoreProperties(SchemaNode& node, uint32_t at) {
    node.more_properties = NodeAt(at);
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadNames(SchemaNode& node, uint32_t at) {
    node.names = NodeAt(at);
    model_.nodes[*node.names].of_keys = true;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadMatched(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kObject) return MustBe(at, "an object of schemas");
    for (const uint32_t member : text_.ChildrenOf(at)) {
      auto pattern = Pattern::Parse(text_[member].key);
      if (!pattern.ok()) return Refuse(member, std::string(pattern.status().message()));
      RETURN_IF_ERROR(CountSteps(*pattern, member));
      node.matched.emplace_back(*std::move(pattern), NodeAt(member));
    }
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadUnevaluated(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kFalse || !has_unevaluated_) {
      return Refuse(at, absl::StrCat(std::string(text_[at].key),
                                     " other than false of drafts from 2019-09 is not enforced"));
    }
    (text_[at].key == "unevaluatedItems" ? node.no_unevaluated_items : node.no_unevaluated) = true;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadPrefix(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kArray) return MustBe(at, "a list of schemas");
    if (!has_prefix_)
      return Refuse(at, "prefixItems came with draft 2020-12, which $schema is not");
    for (const uint32_t item : text_.ChildrenOf(at)) node.prefix.push_back(NodeAt(item));
    if (node.prefix.empty()) return MustBe(at, "a list of schemas, at least one");
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadItems(SchemaNode& node, uint32_t at) {
    if (KindOf(at) == JsonKind::kArray) return MustBe(at, "one schema; use prefixItems for a list");
    node.items = NodeAt(at);
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadUnique(SchemaNode& /*node*/, uint32_t at) {
    return KindOf(at) == JsonKind::kFalse ? absl::OkStatus()
                                          : Refuse(at, "uniqueItems is not enforced");
  }

  absl::StatusOr<uint64_t> ReadCount(uint32_t at, uint64_t limit) const {
    const std::optional<int64_t> count =
        KindOf(at) == JsonKind::kNumber ? Number(text_[at].text).Int64() : std::nullopt;
    if (!count || *count < 0 || static_cast<uint64_t>(*count) > limit) {
      return MustBe(at, absl::StrCat("an integer of 0 to ", limit));
    }
    return static_cast<uint64_t>(*count);
  }

  absl::Status ReadLeast(SchemaNode& node, uint32_t at) {
    ASSIGN_OR_RETURN(const uint64_t least, ReadCount(at, kMaxLeast));
    const std::string_view keyword = text_[at].key;
    if (keyword == "minItems") {
      node.min_items = least;
    } else if (keyword == "minLength") {
      node.min_length = least;
    } else {
      node.min_properties = least;
    }
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadMost(SchemaNode& node, uint32_t at) {
    const std::string_view keyword = text_[at].key;
    ASSIGN_OR_RETURN(const uint64_t most,
                     ReadCount(at, keyword == "maxLength" ? kMaxLeast : kMaxMost));
    if (keyword == "maxItems") {
      node.max_items = most;
    } else if (keyword == "maxLength") {
      node.max_length = most;
    } else {
      node.max_properties = most;
    }
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status CountSteps(const Pattern& pattern, uint32_t at) {
    steps_ += pattern.steps();
    if (steps_ <= kMaxSteps) return absl::OkStatus();
    return Refuse(at, absl::StrCat("patterns of over ", kMaxSteps, " steps in all"));
  }

  absl::Status ReadPattern(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kString) return MustBe(at, "a text");
    auto pattern = Pattern::Parse(text_[at].text);
    if (!pattern.ok()) return Refuse(at, std::string(pattern.status().message()));
    node.pattern = *std::move(pattern);
    node.pattern_at = at;
    Asks(node, at);
    return CountSteps(*node.pattern, at);
  }

  absl::Status ReadFormat(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kString) return MustBe(at, "a text");
    const StringFormat format = FindFormat(text_[at].text);
    if (!format.standard) return absl::OkStatus();
    if (format.pattern == nullptr) return Refuse(at, "this format is not enforced");
    node.format = format.pattern;
    if (node.pattern_at == 0) node.pattern_at = at;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadBound(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kNumber) return MustBe(at, "a number");
    const std::string_view keyword = text_[at].key;
    node.bounds.push_back({.number = Number(text_[at].text),
                           .lower = keyword.ends_with("inimum"),
                           .exclusive = keyword.starts_with("exclusive"),
                           .at = at});
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status ReadMultipleOf(SchemaNode& node, uint32_t at) {
    if (KindOf(at) != JsonKind::kNumber || !(Number(text_[at].text).value > 0)) {
      return MustBe(at, "a number above 0");
    }
    const std::optional<int64_t> multiple = Number(text_[at].text).Int64();
    if (!multiple || *multiple > kMaxMultiple) {
      return MustBe(at, absl::StrCat("an integer of 1 to ", kMaxMultiple));
    }
    node.multiple_of = static_cast<uint32_t>(*multiple);
    node.multiple_at = at;
    Asks(node, at);
    return absl::OkStatus();
  }

  absl::Status Point(SchemaNode& node, uint32_t at) {
    const std::string_view reference = text_[at].text;
    if (!reference.starts_with('#')) return MustBe(at, "# and a JSON pointer into this schema");
    const std::optional<uint32_t> target = text_.At(reference.substr(1));
    const uint32_t pointed = target ? node_of_[*target] : kNoNode;
    if (pointed == kNoNode || model_.nodes[pointed].of_keys) {
      return Refuse(at, "$ref points at no schema in here");
    }
    node.same.push_back(pointed);
    return absl::OkStatus();
  }

  static constexpr size_t kMaxSteps = 16 << 10;
  static constexpr int64_t kMaxMultiple = 1024;

  SchemaModel model_;
  const JsonText& text_;
  std::vector<uint32_t> node_of_;                        // by value
  std::vector<std::pair<uint32_t, uint32_t>> refs_;      // node, keyword
  std::vector<std::pair<uint32_t, uint32_t>> required_;  // place of the schema, keyword
  size_t steps_ = 0;                                     // of all patterns
  bool has_prefix_ = true;                               // as draft 2020-12
  bool has_unevaluated_ = true;                          // as drafts 2020-12 and 2019-09
};

}  // namespace

absl::StatusOr<SchemaModel> ReadSchema(std::string_view schema) {
  auto text = JsonText::Parse(
      schema, {.max_bytes = kMaxSchemaBytes, .max_depth = kMaxSchemaDepth, .unique_keys = true});
  if (!text.ok()) return InvalidField(kSchemaField, std::string(text.status().message()));
  SchemaReader reader(*std::move(text));
  RETURN_IF_ERROR(reader.Read());
  return reader.Release();
}

}  // namespace eta::schema
