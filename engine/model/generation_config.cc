// lint: untrusted-input, fuzz-covered
#include "engine/model/generation_config.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/json/json_check.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/model/config_fields.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr char kFile[] = "generation_config.json";

std::optional<int32_t> IdOf(const nlohmann::json& value, int32_t vocab_size) {
  const auto last = static_cast<uint64_t>(vocab_size) - 1;
  if (!value.is_number_unsigned() || value.get<uint64_t>() > last) return std::nullopt;
  return value.get<int32_t>();
}

}  // namespace

absl::Status ReadGenerationConfig(std::string_view text, ModelConfig& config) {
  RETURN_IF_ERROR(CheckJson(kFile, text, kConfigLimits));
  const JsonTree tree(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
  const auto found = tree.root().find("eos_token_id");
  if (found == tree.root().end() || found->is_null()) return absl::OkStatus();
  const size_t count = found->is_array() ? found->size() : 1;
  if (count > kMaxEosIds) {
    return absl::InvalidArgumentError(
        absl::StrCat(kFile, ": eos_token_id has over ", kMaxEosIds, " entries"));
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    const auto id = IdOf(found->is_array() ? (*found)[i] : *found, config.vocab_size);
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat(kFile, ": eos_token_id must be a whole number from 0 to ",
                       config.vocab_size - 1, ", or a list of them"));
    }
    ids.push_back(*id);
  }
  if (!ids.empty()) config.eos_ids = std::move(ids);
  return absl::OkStatus();
}

}  // namespace eta
