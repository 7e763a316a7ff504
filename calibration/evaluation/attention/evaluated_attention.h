// One way of attending that evaluations compare, and how command lines name it.
//
//   full              every key, gated as the model is
//   dynamic           thresholds of the model's predictor; without one relative thresholds
//   relative[:C]      relative thresholds with this constant [the model's]
//   profile:FILE      a profile as a file
//   topk:SHARE        rivals: best blocks by the index,
//   quest:SHARE       ... by the box of their keys,
//   oracle:C          ... by their true mass,
//   constants:UNION   ... by one constant per head,
//   window:W          ... the last keys,
//   streaming:W       ... sinks and the last keys,
//   bigbird:W:STRIDE  ... sinks, the last keys and every so many blocks,
//   h2o:W:SHARE       ... sinks, the last keys and what earlier rows attended to most
//
// W is a number of keys, or below 1 a share of them. Each may be followed by settings of its own:
// `relative:-5.0+reads=own+confirm=true`. block_size and index also change the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/evaluation/rivals/rival.h"
#include "engine/request/attention_settings.h"
#include "engine/request/request.h"
#include "kernels/backend.h"
#include "kernels/batch.h"

namespace eta {

struct EvaluatedAttention : ResolvedAttention {
  std::string name = {};                           // as the caller spelled it
  std::shared_ptr<const Rival> rival = nullptr;    // chooses the blocks; null: the product
  std::optional<double> constants = std::nullopt;  // union that thresholds are yet to be fitted to
  KvGeometry geometry = {};                        // of the cache that it runs on
};

// Settings of one way of attending; absent: the profile's or the model's. The last two are of the
// cache that it runs on.
struct EvaluationSettings {
  AttentionSettings attention;
  std::optional<int32_t> block_size;  // [4, 128], a multiple of 4
  std::optional<IndexKind> index;

  // These settings; where one is absent, the other's.
  EvaluationSettings Or(const EvaluationSettings& other) const;
};

enum class AttentionKind : uint8_t {
  kFull,
  kDynamic,
  kRelative,
  kProfile,
  kTopK,
  kQuest,
  kOracle,
  kConstants,
  kWindow,
  kStreaming,
  kBigBird,
  kH2o,
  kH2oBlocks
};

struct AttentionName {
  AttentionKind kind = AttentionKind::kFull;
  std::string file = {};                       // kProfile
  std::optional<float> number = std::nullopt;  // C, SHARE, UNION or W
  std::optional<float> second = std::nullopt;  // STRIDE or SHARE behind W, DENSE behind SHARE
  EvaluationSettings settings = {};
};

// InvalidArgument, naming `attention`, for anything else, numbers out of range included.
absl::StatusOr<AttentionName> ParseAttentionName(const std::string& text);

// Evaluations measure the mass that is kept, and never go on with full attention.
inline bool IsEvaluated(const AttentionField& field) {
  return std::string_view(field.name) != "min_mass";
}

// The flag of a setting of attention. --prefill is the evaluations' own.
inline std::string FlagOf(const AttentionField& field) {
  return std::string_view(field.name) == "prefill" ? "prefill_attention" : field.name;
}

// "0..16" or "own|shared".
std::string RangeOf(const AttentionField& field);

// Sets one field from a text. InvalidArgument, naming it `name`.
absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<float>& out);
absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<int32_t>& out);
absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<bool>& out);

// Sets one setting, named as the flags are, block_size and index included. InvalidArgument, naming
// the setting.
absl::Status SetAttention(const std::string& name, const std::string& value,
                          EvaluationSettings& settings);

}  // namespace eta
