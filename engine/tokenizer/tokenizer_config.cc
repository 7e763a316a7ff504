// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr char kFile[] = "tokenizer_config.json";
constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr size_t kMaxDepth = 16;

absl::StatusOr<std::string> TokenOf(const Json& root, const std::string& field) {
  const auto found = root.find(field);
  if (found == root.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object()) {
    const auto content = found->find("content");
    if (content != found->end() && content->is_string()) return content->get<std::string>();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kFile, ": ", field, " must be a text, an object with its text in \"content\", or null"));
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view json) {
  ASSIGN_OR_RETURN(const auto tree, ParseStrictJson(kFile, json, kMaxBytes, kMaxDepth));
  ASSIGN_OR_RETURN(auto bos, TokenOf(tree.root(), "bos_token"));
  ASSIGN_OR_RETURN(auto eos, TokenOf(tree.root(), "eos_token"));
  return TokenizerConfig{.bos_token = std::move(bos), .eos_token = std::move(eos)};
}

}  // namespace eta
