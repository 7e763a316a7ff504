// A GGUF file's metadata: the names of what is read and written here, and a strict reading, in
// which a value has the wanted type and range or is an error that names its key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/gguf/gguf_header.h"

namespace eta {

namespace gguf_key {

inline constexpr char kArchitecture[] = "general.architecture";
inline constexpr char kAlignment[] = "general.alignment";

// Of a model in several files (gguf_parts.h).
inline constexpr char kSplitNumber[] = "split.no";
inline constexpr char kSplitCount[] = "split.count";
inline constexpr char kSplitTensors[] = "split.tensors.count";

// Behind the architecture and a dot.
inline constexpr char kBlocks[] = "block_count";
inline constexpr char kContext[] = "context_length";
inline constexpr char kModelDim[] = "embedding_length";
inline constexpr char kFfnDim[] = "feed_forward_length";
inline constexpr char kExperts[] = "expert_count";
inline constexpr char kExpertsPerToken[] = "expert_used_count";
inline constexpr char kSharedExperts[] = "expert_shared_count";
inline constexpr char kExpertFfnDim[] = "expert_feed_forward_length";
inline constexpr char kVocabulary[] = "vocab_size";
inline constexpr char kQueryHeads[] = "attention.head_count";
inline constexpr char kKvHeads[] = "attention.head_count_kv";
inline constexpr char kKeyDim[] = "attention.key_length";
inline constexpr char kValueDim[] = "attention.value_length";
inline constexpr char kNormEps[] = "attention.layer_norm_rms_epsilon";
inline constexpr char kWindow[] = "attention.sliding_window";
inline constexpr char kWindowPattern[] = "attention.sliding_window_pattern";
inline constexpr char kRopeTheta[] = "rope.freq_base";
inline constexpr char kLocalRopeTheta[] = "rope.freq_base_swa";
inline constexpr char kRopeDim[] = "rope.dimension_count";
inline constexpr char kScalingType[] = "rope.scaling.type";
inline constexpr char kScalingFactor[] = "rope.scaling.factor";
inline constexpr char kScalingContext[] = "rope.scaling.original_context_length";
inline constexpr char kYarnBetaFast[] = "rope.scaling.yarn_beta_fast";
inline constexpr char kYarnBetaSlow[] = "rope.scaling.yarn_beta_slow";

inline constexpr char kTokenizer[] = "tokenizer.ggml.model";
inline constexpr char kByteLevel[] = "gpt2";  // two values of kTokenizer
inline constexpr char kPieces[] = "llama";
inline constexpr char kPreTokenizer[] = "tokenizer.ggml.pre";
inline constexpr char kTokens[] = "tokenizer.ggml.tokens";
inline constexpr char kTokenTypes[] = "tokenizer.ggml.token_type";
inline constexpr char kScores[] = "tokenizer.ggml.scores";
inline constexpr char kMerges[] = "tokenizer.ggml.merges";
inline constexpr char kBosId[] = "tokenizer.ggml.bos_token_id";
inline constexpr char kEosId[] = "tokenizer.ggml.eos_token_id";
inline constexpr char kEotId[] = "tokenizer.ggml.eot_token_id";
inline constexpr char kEomId[] = "tokenizer.ggml.eom_token_id";
inline constexpr char kUnknownId[] = "tokenizer.ggml.unknown_token_id";
inline constexpr char kPaddingId[] = "tokenizer.ggml.padding_token_id";
inline constexpr char kAddBos[] = "tokenizer.ggml.add_bos_token";
inline constexpr char kAddSpacePrefix[] = "tokenizer.ggml.add_space_prefix";
inline constexpr char kChatTemplate[] = "tokenizer.chat_template";

}  // namespace gguf_key

// The first error stays; reading goes on with zeros and empty values, so check status() at the end.
// Not thread-safe.
class GgufMetadata {
 public:
  // REQUIRES: the header and what it was parsed from outlive this.
  explicit GgufMetadata(const GgufHeader& header) : values_(header.metadata) {}

  bool Has(std::string_view key) const { return values_.contains(key); }
  bool IsList(std::string_view key) const;
  // Keys that begin with `prefix`, sorted.
  std::vector<std::string> KeysUnder(std::string_view prefix) const;

  // INVALID_ARGUMENT where it is absent; nullopt in the second form.
  int64_t Integer(std::string_view key, int64_t low, int64_t high);
  std::optional<int64_t> OptionalInteger(std::string_view key, int64_t low, int64_t high);
  // Of a float32, the shortest decimal that reads back as it: 1e-05, not 9.9999997e-06.
  double Real(std::string_view key);
  std::optional<double> OptionalReal(std::string_view key);
  std::optional<bool> OptionalBool(std::string_view key);
  // Well-formed UTF-8.
  std::string Text(std::string_view key);
  std::optional<std::string> OptionalText(std::string_view key);

  // Lists; empty where absent. Texts are views into the header's bytes and well-formed UTF-8.
  std::vector<std::string_view> Texts(std::string_view key);
  std::vector<int64_t> Integers(std::string_view key);
  std::vector<float> Reals(std::string_view key);
  std::vector<bool> Bools(std::string_view key);

  void Fail(std::string_view key, const std::string& sentence);             // INVALID_ARGUMENT
  void FailUnsupported(std::string_view key, const std::string& sentence);  // UNIMPLEMENTED
  const absl::Status& status() const { return status_; }

 private:
  const GgufValue* Find(std::string_view key) const;
  // Null, with an error, unless it is a list or absent; null if absent.
  const GgufValue* FindList(std::string_view key, std::string_view of);

  const std::map<std::string, GgufValue, std::less<>>& values_;
  absl::Status status_;
};

}  // namespace eta
