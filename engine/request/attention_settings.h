// What a caller may ask of attention: one value, declared here alone. Requests, profiles,
// calibration jobs, evaluations, flags and messages carry it unopened; what reads or writes its
// fields goes through ForEachSetting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/batch.h"

namespace eta {

// Absent: the profile's; else the model's or the field's own default (ResolveAttention).
struct AttentionSettings {
  static constexpr float kMaxOffset = 100.0f;
  static constexpr float kMaxZ = 16.0f;

  std::optional<float> offset;
  std::optional<float> z;
  std::optional<bool> uniform_floor;
  std::optional<int32_t> pinned_blocks;
  std::optional<int32_t> sink_blocks;
  std::optional<bool> shared_reads;
  std::optional<bool> confirm;
  std::optional<bool> sparse_prefill;
  std::optional<bool> temper_special;
  std::optional<float> min_mass;

  // These settings; where one is absent, the other's.
  AttentionSettings Or(const AttentionSettings& other) const;

  bool operator==(const AttentionSettings&) const = default;
};

// One of them in words.
struct AttentionField {
  const char* name = "";  // in messages, JSON, flags and errors
  const char* help = "";
  // Of a number.
  float low = 0.0f;
  float high = 0.0f;
  bool above_low = false;  // `low` itself is out
  // Of a choice.
  const char* no = "false";
  const char* yes = "true";
  const char* needs_gate = "";  // what to say of `yes` where the model has no gate

  std::optional<float> usual = std::nullopt;  // the value that is not worth a word in an answer

  bool full_reads = false;     // full attention reads it
  bool relative_reads = true;  // relative thresholds do
  bool rivals_read = true;     // so do ways of choosing blocks that evaluations compare
  bool admits = false;         // it decides, beside thresholds and offset, what a row admits
  bool in_profile = true;      // a profile says it
  bool optional = false;       // though not always

  bool IsChoice() const { return low == high; }
  bool IsYesOrNo() const { return std::string_view(yes) == "true"; }
  const char* Word(bool value) const { return value ? yes : no; }
};

// Calls visit(const AttentionField&, std::optional<T> AttentionSettings::*) for each, T of float,
// int32_t and bool.
template <typename Visit>
constexpr void ForEachSetting(Visit&& visit) {
  using S = AttentionSettings;
  visit(AttentionField{.name = "offset",
                       .help = "Lowers every threshold by this; above 0 admits more [0]",
                       .low = -S::kMaxOffset,
                       .high = S::kMaxOffset,
                       .full_reads = true},
        &S::offset);
  visit(AttentionField{.name = "z",
                       .help = "Width of the bound in deviations [1.5 with a floor, 2 without]",
                       .high = S::kMaxZ,
                       .relative_reads = false,
                       .admits = true},
        &S::z);
  visit(AttentionField{.name = "floor",
                       .help = "What pruned keys weigh [uniform if the model is gated]",
                       .no = "none",
                       .yes = "uniform",
                       .needs_gate = "a uniform floor needs a model with a gate",
                       .relative_reads = false,
                       .admits = true},
        &S::uniform_floor);
  visit(AttentionField{.name = "pinned_blocks",
                       .help = "Newest full blocks that are always read [2]",
                       .high = kMaxAlwaysRead,
                       .usual = 2.0f,
                       .admits = true,
                       .in_profile = false},
        &S::pinned_blocks);
  visit(AttentionField{.name = "sink_blocks",
                       .help = "First full blocks that are always read [the model's]",
                       .high = kMaxAlwaysRead,
                       .usual = 0.0f,
                       .admits = true},
        &S::sink_blocks);
  visit(
      AttentionField{.name = "reads",
                     .help = "What a head attends to: the blocks that it admitted, or all that are "
                             "read for its group [the model's]",
                     .no = "own",
                     .yes = "shared",
                     .usual = 0.0f,
                     .admits = true},
      &S::shared_reads);
  visit(AttentionField{.name = "confirm",
                       .help = "Read values of a block only if its scores reach the threshold "
                               "[false]",
                       .usual = 0.0f,
                       .rivals_read = false},
        &S::confirm);
  visit(AttentionField{.name = "prefill",
                       .help = "What tokens of the prompt attend to: all keys, or the blocks that "
                               "they admit [full]",
                       .no = "full",
                       .yes = "sparse",
                       .usual = 0.0f,
                       .rivals_read = false},
        &S::sparse_prefill);
  visit(
      AttentionField{.name = "special_keys",
                     .help = "Keys of control tokens: attended to like others, or weighing exp(0) "
                             "[the model's]",
                     .no = "attend",
                     .yes = "temper",
                     .needs_gate = "to temper keys needs a model with a gate",
                     .usual = 0.0f,
                     .full_reads = true,
                     .relative_reads = false},
      &S::temper_special);
  visit(
      AttentionField{.name = "min_mass",
                     .help = "Go on with full attention where less of its softmax is kept [never]",
                     .high = 1.0f,
                     .above_low = true,
                     .usual = 0.0f,
                     .optional = true},
      &S::min_mass);
}

// Calls visit(T AttentionOptions::*, std::optional<T> AttentionSettings::*) for each that is an
// option of the kernels under the same name.
template <typename Visit>
constexpr void ForEachOption(Visit&& visit) {
  using O = AttentionOptions;
  using S = AttentionSettings;
  visit(&O::offset, &S::offset);
  visit(&O::z, &S::z);
  visit(&O::uniform_floor, &S::uniform_floor);
  visit(&O::pinned_blocks, &S::pinned_blocks);
  visit(&O::sink_blocks, &S::sink_blocks);
  visit(&O::shared_reads, &S::shared_reads);
  visit(&O::confirm, &S::confirm);
  visit(&O::sparse_prefill, &S::sparse_prefill);
}

// "z 1.5, reads shared" of what there is; where `unusual`, of what is worth a word alone.
std::string Describe(const AttentionSettings& settings, bool unusual = false);

// The settings that relative thresholds read: the others are left out.
AttentionSettings ReadByRelative(const AttentionSettings& settings);

// Whether a setting is there that full attention does not read.
bool AsksOfSparseAttention(const AttentionSettings& settings);

// What is wrong with a number of the field, NaN included: "must be 0 to 16". Empty: nothing.
std::string Violation(const AttentionField& field, float value);

// InvalidField for a number out of its bounds. `prefix` stands before the names.
absl::Status CheckBounds(const std::string& prefix, const AttentionSettings& settings);

// For a model without a gate: UnsupportedByModel for a choice that needs one.
absl::Status RefuseGated(const std::string& prefix, const AttentionSettings& settings);

}  // namespace eta
