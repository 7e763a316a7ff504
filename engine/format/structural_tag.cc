// lint: untrusted-input, fuzz-covered
#include "engine/format/structural_tag.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/json/json_check.h"
#include "engine/base/status_macros.h"
#include "engine/format/format_limits.h"
#include "engine/format/schema/schema_check.h"
#include "engine/request/answers/format_validation.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

// Properties of an object are asked for in the order of its schema.
using Json = nlohmann::ordered_json;

constexpr char kField[] = "format.structural_tag";

// As JsonTree (engine/base/json/json_fields.h), of one that keeps the order of keys.
class Tree {
 public:
  explicit Tree(Json root) : root_(std::move(root)) {}
  ~Tree() {
    while (HasChildren(root_)) {
      Json* holder = &root_;
      while (HasChildren(holder->back())) holder = &holder->back();
      holder->erase(std::prev(holder->end()));
    }
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  Json& root() { return root_; }

 private:
  static bool HasChildren(const Json& json) { return json.is_structured() && !json.empty(); }

  Json root_;
};

// What vLLM took before structural tags were a tree, as one.
absl::Status ToTree(Json& root) {
  if (!root.contains("structures")) return absl::OkStatus();
  const Json& structures = root["structures"];
  if (!structures.is_array() || !root.contains("triggers")) {
    return InvalidField(kField, "structures must be an array, beside triggers");
  }
  Json tags = Json::array();
  for (const Json& one : structures) {
    if (!one.is_object() || !one.contains("begin") || !one.contains("schema") ||
        !one.contains("end")) {
      return InvalidField(kField, "each of structures must have begin, schema and end");
    }
    tags.push_back({{"type", "tag"},
                    {"begin", one["begin"]},
                    {"content", {{"type", "json_schema"}, {"json_schema", one["schema"]}}},
                    {"end", one["end"]}});
  }
  Json format = {{"type", "triggered_tags"}, {"triggers", root["triggers"]}, {"tags", tags}};
  root = {{"type", "structural_tag"}, {"format", std::move(format)}};
  return absl::OkStatus();
}

class Reader {
 public:
  explicit Reader(const FormatVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Every part of the tree but what is inside of schemas; without recursion.
  absl::Status Read(Json& root) {
    std::vector<Json*> left = {&root};
    while (!left.empty()) {
      Json& part = *left.back();
      left.pop_back();
      if (part.is_object()) RETURN_IF_ERROR(ReadObject(part));
      for (auto child = part.begin(); child != part.end(); ++child) {
        const bool schema = part.is_object() && child.key() == "json_schema";
        if (child->is_structured() && !schema) left.push_back(&*child);
      }
    }
    std::sort(tag_.tokens.begin(), tag_.tokens.end());
    tag_.tokens.erase(std::unique(tag_.tokens.begin(), tag_.tokens.end()), tag_.tokens.end());
    return absl::OkStatus();
  }

  StructuralTag Release() { return std::move(tag_); }

 private:
  absl::Status ReadObject(Json& part) {
    const auto schema = part.find("json_schema");
    if (schema != part.end()) {
      const auto enforceable = EnforceableSchema(schema->dump());
      if (!enforceable.ok()) return InField(kField, enforceable.status());
      *schema = Json::parse(*enforceable, nullptr, /*allow_exceptions=*/false);
      part["max_whitespace_cnt"] = kMaxWhiteSpace;
    }
    const auto type = part.find("type");
    const std::string kind =
        type != part.end() && type->is_string() ? type->get<std::string>() : std::string();
    tag_.by_tokens = tag_.by_tokens || kind == "any_tokens" || kind == "exclude_token" ||
                     kind == "token_dispatch";
    if (const auto token = part.find("token"); token != part.end()) ReadToken(*token, true);
    ReadTokens(part, "trigger_tokens", true);
    ReadTokens(part, "exclude_tokens", false);
    const auto rules = part.find("rules");
    if (kind != "token_dispatch" || rules == part.end() || !rules->is_array()) {
      return absl::OkStatus();
    }
    for (Json& rule : *rules) {
      if (rule.is_array() && !rule.empty()) ReadToken(rule.front(), true);
    }
    return absl::OkStatus();
  }

  void ReadTokens(Json& part, const char* key, bool emitted) {
    const auto tokens = part.find(key);
    if (tokens == part.end() || !tokens->is_array()) return;
    for (Json& token : *tokens) ReadToken(token, emitted);
  }

  // `emitted`: an answer may have it.
  void ReadToken(Json& token, bool emitted) {
    tag_.by_tokens = true;
    if (token.is_string()) {
      const auto special = vocabulary_.SpecialNamed(token.get<std::string>());
      if (special) token = *special;
    }
    if (!emitted || !token.is_number_integer()) return;
    const auto id = token.get<int64_t>();
    if (id < 0 || id >= vocabulary_.size) return;  // the library refuses it
    if (vocabulary_.IsSpecial(static_cast<int32_t>(id))) {
      tag_.tokens.push_back(static_cast<int32_t>(id));
    }
  }

  const FormatVocabulary& vocabulary_;
  StructuralTag tag_;
};

}  // namespace

absl::StatusOr<StructuralTag> ReadStructuralTag(std::string_view text,
                                                const FormatVocabulary& vocabulary) {
  const absl::Status sound =
      CheckJson(kField, text, {.max_bytes = kMostToolFormatBytes, .max_depth = kMaxTagDepth});
  if (!sound.ok()) return InvalidField(kField, std::string(sound.message()));
  Tree tree(Json::parse(text, nullptr, /*allow_exceptions=*/false));
  RETURN_IF_ERROR(ToTree(tree.root()));
  Reader reader(vocabulary);
  RETURN_IF_ERROR(reader.Read(tree.root()));
  StructuralTag tag = reader.Release();
  tag.json = tree.root().dump();
  return tag;
}

}  // namespace eta
