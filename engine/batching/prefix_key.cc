#include "engine/batching/prefix_key.h"

#include <openssl/sha.h>

#include <bit>

#include "absl/strings/str_cat.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

bool Digest(const void* data, size_t bytes, PrefixKey& key) {
  return SHA256(static_cast<const uint8_t*>(data), bytes, key.digest.data()) != nullptr;
}

// All that decides which blocks a prompt's rows admit, beside their thresholds and the offset.
std::string Admission(const ResolvedAttention& attention) {
  const AttentionOptions& options = attention.options;
  const AttentionSettings used = UsedSettings(attention);
  std::string text = absl::StrCat(";prefill=sparse;rescue=", options.rescue_chunk);
  ForEachSetting([&](const AttentionField& field, auto setting) {
    if (!field.admits || !(used.*setting)) return;
    const auto value = static_cast<float>(*(used.*setting));
    absl::StrAppend(&text, ";", field.name, "=", std::bit_cast<uint32_t>(value));
  });
  if (options.relative) {
    absl::StrAppend(&text, ";c=", std::bit_cast<uint32_t>(options.relative_c));
  }
  if (attention.head_z) {
    const std::vector<float>& head_z = attention.profile->head_z;
    text.append(";head_z=");
    text.append(reinterpret_cast<const char*>(head_z.data()), head_z.size() * sizeof(float));
  }
  return text;
}

std::string Root(const std::string& tenant, float rope_theta, const ResolvedAttention& attention,
                 Gate gate) {
  std::string root =
      absl::StrCat(tenant.size(), ":", tenant, ";theta=", std::bit_cast<uint32_t>(rope_theta));
  const bool sparse = attention.options.sparse_prefill && !attention.options.admit_all;
  if (sparse) root.append(Admission(attention));
  // Without a gate full prefill reads neither offset nor thresholds.
  if (gate == Gate::kNone && !sparse) return root;
  absl::StrAppend(&root, ";offset=", std::bit_cast<uint32_t>(attention.options.offset));
  if (attention.temper_special) root.append(";special_keys=temper");
  if (attention.profile != nullptr) {
    const ThresholdProfile& profile = *attention.profile;
    root.append(";thresholds=");
    root.append(reinterpret_cast<const char*>(profile.thresholds.data()),
                profile.thresholds.size() * sizeof(float));
  }
  return root;
}

}  // namespace

std::vector<PrefixKey> PrefixKeys(const std::string& tenant, float rope_theta,
                                  const ResolvedAttention& attention, Gate gate,
                                  std::span<const int32_t> prompt, int32_t block_size) {
  const size_t block_tokens = static_cast<size_t>(block_size);
  std::vector<PrefixKey> keys;
  keys.reserve(prompt.size() / block_tokens);
  const std::string root = Root(tenant, rope_theta, attention, gate);
  PrefixKey parent;
  if (!Digest(root.data(), root.size(), parent)) return {};
  std::vector<uint8_t> link(parent.digest.size() + block_tokens * sizeof(int32_t));
  for (size_t begin = 0; begin + block_tokens <= prompt.size(); begin += block_tokens) {
    std::memcpy(link.data(), parent.digest.data(), parent.digest.size());
    std::memcpy(link.data() + parent.digest.size(), &prompt[begin], block_tokens * sizeof(int32_t));
    if (!Digest(link.data(), link.size(), parent)) return {};
    keys.push_back(parent);
  }
  return keys;
}

int32_t MostSharedBlocks(const Request& request, int64_t prompt_tokens, int32_t block_size) {
  if (request.output.prompt_logprobs) return 0;
  return static_cast<int32_t>((prompt_tokens - 1) / block_size);
}

}  // namespace eta
