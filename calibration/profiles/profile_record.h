// One stored version of a threshold profile. It is immutable and says what it was made from, what
// it was asked to reach, and what it reached (eta-semantics.md, "Profile" and "Per-head z").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/tenant.h"
#include "engine/request/attention_settings.h"
#include "kernels/dtype.h"
#include "kernels/kv_geometry.h"

namespace eta {

// The schemas that this build writes, and the only ones that it reads. The second has the
// divergence besides. A relative threshold means something only beside the estimate of masses that
// it was chosen with (eta-semantics.md, "Relative thresholds"): who changes the estimate raises the
// second.
inline constexpr int32_t kProfileSchemaVersion = 6;
inline constexpr int32_t kRelativeSchemaVersion = 8;  // of profiles with a relative threshold
constexpr int32_t ProfileSchemaOf(bool relative) {
  return relative ? kRelativeSchemaVersion : kProfileSchemaVersion;
}

// FAILED_PRECONDITION (PROFILE_SCHEMA_MISMATCH); the message is `sentence`, which ends with the
// schema that was found, and what this build reads. `field` may be empty.
absl::Status OtherProfileSchema(const std::string& sentence, bool relative,
                                const std::string& field);

struct ProfileGeometry {
  int32_t layers = 0;       // L, 1 to 1024
  int32_t query_heads = 0;  // HQ, 1 to 1024; L * HQ at most 65536
  int32_t block_size = 0;   // b, 1 to 1024 tokens
  int32_t sub_block = 0;    // divides block_size; 0 = flat
  friend bool operator==(const ProfileGeometry&, const ProfileGeometry&) = default;
};

// What the server that calibrated a profile computed with.
struct ProfileFormats {
  IndexKind index = IndexKind::kMoment;  // outlier with a relative threshold
  DType kv_dtype = DType::kFloat16;      // as --kv_dtype takes them
  WeightFormat weights = WeightFormat::kNative;
  friend bool operator==(const ProfileFormats&, const ProfileFormats&) = default;
};

enum class ProfileTargetKind : uint8_t {
  kMatchDynamic = 0,           // value 0
  kHeadDensity = 1,            // value in (0, 1]
  kUnionDensity = 2,           // value in (0, 1]
  kMaxPerplexityIncrease = 3,  // percent of full attention's perplexity, [0, 1000]
  // Union density as dynamic thresholds read; percent of their perplexity, [0, 1000], as the bound.
  kDynamicUnionDensity = 4,
  kRetainedMass = 5,  // share of full attention's softmax, (0, 1]; relative thresholds only
};
std::string_view Name(ProfileTargetKind kind);  // "match_dynamic": in JSON

struct ProfileTarget {
  ProfileTargetKind kind = ProfileTargetKind::kMatchDynamic;
  double value = 0.0;
  friend bool operator==(const ProfileTarget&, const ProfileTarget&) = default;
};

// Densities on the sequences that the thresholds were chosen on, each in [0, 1] (eta-semantics.md,
// "What is counted").
struct ReachedDensities {
  double soft_density = 0.0;  // on the calibration sequences; 0 with relative thresholds
  double head_density = 0.0;
  double union_density = 0.0;
  friend bool operator==(const ReachedDensities&, const ReachedDensities&) = default;
};

// 95 % confidence interval of a percentage; low <= high, each at least -100 and finite.
struct PercentInterval {
  double low = 0.0;
  double high = 0.0;
  friend bool operator==(const PercentInterval&, const PercentInterval&) = default;
};

// Needles hidden in text and asked for at its end (calibration/calibrate/retrieval_windows.h).
struct NeedleHits {
  int64_t asked = 0;   // at least 0, and not below the others
  int64_t full = 0;    // found by full attention
  int64_t frozen = 0;  // found by the frozen thresholds
  int64_t kept = 0;    // found by both; at most full and frozen
  friend bool operator==(const NeedleHits&, const NeedleHits&) = default;
};

// KL(full || frozen) of the next token's distribution.
struct Divergence {
  double nats = 0.0;  // mean per token, at least 0
  int64_t rows = 0;   // measured: an even sample of the held-out rows, at least 1
  friend bool operator==(const Divergence&, const Divergence&) = default;
};

// Measurements on held-out text in decode-like block-sparse evaluation.
struct ProfileEvidence {
  double perplexity_full = 0.0;              // above 0, like the other two
  std::optional<double> perplexity_dynamic;  // absent, like the three below, without a predictor
  double perplexity_frozen = 0.0;
  double head_density = 0.0;   // [0, 1]
  double union_density = 0.0;  // [0, 1]
  double recall = 0.0;         // [0, 1]
  // The same densities under the predictor's thresholds; absent if they were not measured.
  std::optional<double> dynamic_head_density;
  std::optional<double> dynamic_union_density;
  std::optional<double> dynamic_recall;
  int64_t calibration_sequences = 0;  // at least 1
  int64_t calibration_tokens = 0;     // at least 1
  int64_t held_out_sequences = 0;     // at least 0
  int64_t held_out_tokens = 0;

  // How far the frozen perplexity lies above the other two, of the same tokens. Absent: too few of
  // them to tell; over dynamic also without a predictor.
  std::optional<PercentInterval> increase_over_full;
  std::optional<PercentInterval> increase_over_dynamic;
  // Of the text that the thresholds were chosen on; 0: it was the calibration text.
  int64_t choice_sequences = 0;
  int64_t choice_tokens = 0;
  int64_t calibration_documents = 0;  // 0, like the other documents: not known
  int64_t choice_documents = 0;
  int64_t held_out_documents = 0;
  int64_t equal_documents = 0;  // left out, since they were equal to another

  // Share of full attention's softmax on the keys that heads attended to, [0, 1]: the mean over
  // rows, layers and query heads, and the 1st percentile over rows and layers. Both or none.
  std::optional<double> retained_mass;
  std::optional<double> retained_mass_p1;
  // One needle in a window, and several of which one is asked for. Absent: not measured.
  std::optional<NeedleHits> single_needles;
  std::optional<NeedleHits> multi_needles;
  std::optional<Divergence> divergence;  // of a relative profile alone; absent: not measured
  friend bool operator==(const ProfileEvidence&, const ProfileEvidence&) = default;
};

// The longest context, in tokens, of the rows behind the densities, which are the second halves of
// the held-out sequences; of sequences that differ in length their mean. 0: nothing was held out.
int64_t MeasuredContext(const ProfileEvidence& evidence);

// The part of a profile that calibration makes. The store adds its tenant, name and version.
struct ProfileContent {
  std::map<std::string, std::string> labels;  // at most 16; keys like names, values up to 255 bytes
  std::string model_fingerprint;              // SHA-256, 64 lower-case hexadecimal digits
  std::string tokenizer_fingerprint;          // likewise
  ProfileGeometry geometry;
  ProfileFormats formats;
  // A profile has one of two kinds of thresholds: constants of a model with a predictor, or one
  // relative threshold (eta-semantics.md, "Relative thresholds") of a model without. A relative
  // profile has no constants, no z (0), no floor, and attends to special keys.
  std::optional<float> relative_c;  // c, [-100, 100]; kept to the bit
  std::vector<float> thresholds;    // tau, [L, HQ], finite; kept to the bit
  std::vector<float> z_per_head;    // [L, HQ], each in [0, 16]; empty: `z` for every head
  // What a request runs with that says nothing else: all of it but min_mass, which may be absent,
  // and what no profile says (AttentionField::in_profile).
  AttentionSettings settings;
  ProfileTarget target;
  ReachedDensities reached;
  ProfileEvidence evidence;
  friend bool operator==(const ProfileContent&, const ProfileContent&) = default;
};

struct ProfileRecord {
  Tenant tenant;
  std::string name;
  int64_t version = 0;         // at least 1; increases, never repeats for a name
  int64_t create_time_us = 0;  // since 1970-01-01 UTC; informs, decides nothing
  std::string request_id;      // of the call that made it; empty: an import that had none
  std::string payload_digest;  // hexadecimal SHA-256 of that call's payload; empty without an id
  ProfileContent content;
  std::string checksum;  // hexadecimal SHA-256 over everything above (profile_blob.h)
  bool staged = false;   // the store's, and not part of the record: Promote ends it
  friend bool operator==(const ProfileRecord&, const ProfileRecord&) = default;
};
using ProfilePtr = std::shared_ptr<const ProfileRecord>;

inline constexpr size_t kMaxProfileThresholds = 65536;
inline constexpr float kMaxRelativeC = 100.0f;             // of either sign
inline constexpr double kMaxPerplexityIncrease = 1000.0;   // percent
inline constexpr double kDefaultPerplexityIncrease = 0.5;  // percent, where a target names none

// The only validator of names: 1 to 63 characters of a-z 0-9 - _ . and no leading dot.
// INVALID_ARGUMENT, naming `field`.
absl::Status CheckProfileName(const std::string& field, std::string_view name);

// Checks an alias: a name that begins with a letter, so that no alias reads as a version.
absl::Status CheckProfileAlias(const std::string& field, std::string_view alias);

// Allows at most 16 labels.
absl::Status CheckProfileLabelCount(size_t count);
// Checks the count as well; keys are like names, values have up to 255 bytes of UTF-8 without
// control characters.
absl::Status CheckProfileLabels(const std::map<std::string, std::string>& labels);

// Both must be empty, or the id valid for a request (IsRequestId) and the digest 64 hexadecimal
// digits.
absl::Status CheckRequestIdentity(std::string_view request_id, std::string_view payload_digest);

// What a put or a promotion expects to be there: no version is negative.
absl::Status CheckExpectedVersion(std::optional<int64_t> version);

// Checks every limit named above. INVALID_ARGUMENT, naming the field.
absl::Status CheckProfileContent(const ProfileContent& content);

}  // namespace eta
