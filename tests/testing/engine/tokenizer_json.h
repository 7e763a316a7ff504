// Small tokenizer.json files, made of their parts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace eta {

struct TokenizerJson {
  using Json = nlohmann::json;

  // The tokens get the ids from 0 on.
  TokenizerJson(const std::vector<std::string>& tokens,
                const std::vector<std::pair<std::string, std::string>>& merges) {
    Json vocab = Json::object();
    for (const std::string& token : tokens) {
      const size_t id = vocab.size();
      vocab[token] = id;
    }
    root = {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", Json::array()},
            {"normalizer", nullptr},
            {"pre_tokenizer", nullptr},
            {"post_processor", nullptr},
            {"decoder", {{"type", "Fuse"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
    for (const auto& [left, right] : merges) {
      root["model"]["merges"].push_back(Json::array({left, right}));
    }
  }

  // `flags` change what is false otherwise.
  void Add(const std::string& content, int id, const Json& flags = Json::object()) {
    Json token = {{"id", id},        {"content", content}, {"single_word", false},
                  {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                  {"special", false}};
    token.update(flags);
    root["added_tokens"].push_back(token);
  }

  std::string Dump() const { return root.dump(); }

  Json root;
};

}  // namespace eta
