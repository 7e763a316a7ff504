// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/text_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_fields.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

struct Wrapped {
  std::string_view model_type;  // of the whole
  std::string_view text_type;   // of text_config
  std::string_view text_class;
};
constexpr Wrapped kGemma3 = {"gemma3", "gemma3_text", "Gemma3ForCausalLM"};

constexpr const char* kShared[] = {"bos_token_id", "dtype",       "eos_token_id",
                                   "pad_token_id", "torch_dtype", "quantization_config"};

// As files on the hub have them, and as transformers has them in memory and may write them.
constexpr std::pair<std::string_view, std::string_view> kTextPrefixes[] = {
    {"language_model.", ""}, {"model.language_model.", "model."}};
constexpr std::string_view kLeftOut[] = {"vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector."};

bool HasType(const Json& object, std::string_view type) {
  const auto found = object.find("model_type");
  return found != object.end() && found->is_string() &&
         *found->get_ptr<const std::string*>() == type;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> TextModelConfig(std::string_view config_json) {
  const JsonTree tree(Json::parse(config_json, nullptr, /*allow_exceptions=*/false));
  const Json& whole = tree.root();
  if (!whole.is_object() || !HasType(whole, kGemma3.model_type)) return std::nullopt;
  const auto found = whole.find("text_config");
  if (found == whole.end() || !found->is_object()) {
    return absl::InvalidArgumentError("config.json: text_config must be an object");
  }
  if (found->contains("model_type") && !HasType(*found, kGemma3.text_type)) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: text_config.model_type must be ",
                                                   std::string(kGemma3.text_type)));
  }
  Json text = *found;
  text["model_type"] = kGemma3.text_type;
  text["architectures"] = Json::array({kGemma3.text_class});
  for (const char* field : kShared) {
    const auto value = whole.find(field);
    if (value != whole.end() && !text.contains(field)) text[field] = *value;
  }
  const JsonTree made(std::move(text));
  return made.root().dump();
}

std::optional<std::string> TextModelName(std::string_view name) {
  for (const std::string_view prefix : kLeftOut) {
    if (name.starts_with(prefix)) return std::nullopt;
  }
  for (const auto& [prefix, instead] : kTextPrefixes) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    return absl::StrCat(std::string(instead), std::string(name));
  }
  return std::string(name);
}

absl::StatusOr<std::map<std::string, std::string>> TextModelNames(
    const std::map<std::string, TensorInfo>& tensors) {
  std::map<std::string, std::string> names;
  for (const auto& entry : tensors) {
    const auto own = TextModelName(entry.first);
    if (!own || names.emplace(*own, entry.first).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(*own), " is there under two names"));
  }
  return names;
}

}  // namespace eta
