// Any bytes as config.json and as a shard index: refused, or values within their bounds.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "engine/checkpoint.h"
#include "engine/model_config.h"
#include "engine/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = eta::ParseShardIndex(text);
  if (index.ok()) {
    for (const auto& [tensor, file] : *index) {
      if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos) std::abort();
    }
  }
  const auto config = eta::ParseModelConfig(text);
  if (!config.ok()) return 0;
  if (config->head_dim < 2 || config->head_dim > 256 || config->head_dim % 2 != 0) std::abort();
  if (config->num_kv_heads < 1 || config->num_query_heads % config->num_kv_heads != 0) std::abort();
  if (config->vocab_size < 1 || config->num_layers < 1 || config->num_layers > 512) std::abort();
  if (config->bos_id >= config->vocab_size) std::abort();
  for (const int32_t id : config->eos_ids) {
    if (id < 0 || id >= config->vocab_size) std::abort();
  }
  if (config->num_layers <= 8 && eta::ValidateTensors(*config, {}).ok()) std::abort();
  // A tokenizer of ids alone takes any config whose special ids lie in its vocabulary.
  if (config->vocab_size <= 4096 && !eta::Tokenizer::Load(std::nullopt, *config).ok()) std::abort();
  return 0;
}
