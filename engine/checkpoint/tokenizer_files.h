// What a model's tokenizer is made from: contents of files, each absent where the checkpoint has no
// such file.
#pragma once

#include <optional>
#include <string>

namespace eta {

struct TokenizerFiles {
  std::optional<std::string> sentencepiece_model;    // tokenizer.model
  std::optional<std::string> tokenizer_json;         // tokenizer.json
  std::optional<std::string> tokenizer_config_json;  // tokenizer_config.json
  // Of the model's chats. A token that it spells is part of a chat's structure.
  std::optional<std::string> chat_template;
};

}  // namespace eta
