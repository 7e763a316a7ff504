// Calibration of one profile: from a tenant's sequences to thresholds that are verified on text
// that took no part in choosing them. Runs as passes of an engine that serves requests meanwhile.
//
// Phases: collect (scores and targets of the calibration sequences, under dynamic thresholds or,
// for a model without a predictor, full attention), solve (a constant per head), search (one shift
// of all constants, for head_density as counted, union_density and max_perplexity_increase; z per
// head where a recall is asked for), verify (full, dynamic and frozen on the held-out sequences).
//
// Whatever is measured is measured as decoding would meet it: the first half of a sequence is a
// prompt, the rows of the second half are decode rows. So densities are those of contexts of half
// to a whole sequence, and a longer context, of which pinned blocks are a smaller share, reads less
// of itself. Results depend on engine, job and samples alone, not on other traffic (on cuda: up to
// the order of sums).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/decode_measurement.h"
#include "calibration/profiles/profile_record.h"
#include "engine/engine.h"

namespace eta {

inline constexpr int64_t kMaxCalibrationTokens = int64_t{1} << 22;  // of all samples together
// A sequence has at least this many blocks: fewer would be mostly pinned ones.
inline constexpr int32_t kMinSequenceBlocks = 4;
inline constexpr int32_t kDefaultSequenceTokens = 2048;
inline constexpr double kMaxHeldOut = 0.9;

struct CalibrationJob {
  std::string id;      // of its passes; as of a request (IsRequestId)
  std::string tenant;  // likewise
  std::map<std::string, std::string> labels;
  // Token ids, kMaxCalibrationTokens at most. Cut into sequences (sample_split.h), of which at
  // least two must come out; one long sample will do.
  std::vector<std::vector<int32_t>> samples;
  double held_out = 0.25;  // share of the sequences, (0, kMaxHeldOut]; at least one
  ProfileTarget target;
  std::optional<double> z_recall;     // (0, 1]: z per head, for this share of the keys that matter
  std::optional<float> z;             // [0, 16], of every head; absent: the model's default
  float offset = 0.0f;                // [-100, 100]
  std::optional<bool> uniform_floor;  // absent: the model's default
  // Samples are cut into sequences of this length: [kMinSequenceBlocks * block size, the engine's
  // max_context], at most kMaxCalibrationRows. 0: kDefaultSequenceTokens, or max_context if less.
  int32_t sequence_tokens = 0;
};

enum class CalibrationPhase : uint8_t { kCollect, kSolve, kSearch, kVerify };

struct CalibrationProgress {
  CalibrationPhase phase = CalibrationPhase::kCollect;
  int32_t sequences_done = 0;      // of this phase; while searching, of the measurement under way
  int32_t sequences_total = 0;     // likewise
  double tokens_per_second = 0.0;  // since the job began
  double seconds_left = 0.0;       // of the whole job; a guess
};

// Called on the calling thread, at most a few times a second and at every change of phase.
using CalibrationObserver = std::function<void(const CalibrationProgress&)>;

// What `content` rests on, of the held-out sequences. Full attention is the model's own, with no
// offset; dynamic has the profile's offset, floor and z (of all heads, the job's or the default).
struct CalibrationResult {
  ProfileContent content;
  DecodeMeasurement full;
  std::optional<DecodeMeasurement> dynamic;  // absent: the model has no predictor
  DecodeMeasurement frozen;
};

// Blocks until the profile is made, all its passes having ended, and stores nothing. Targets:
//   match_dynamic            every head's mean gate under dynamic thresholds (frozen_threshold.h)
//   head_density             match_dynamic's constants (without a predictor: those of one soft
//                            density for every head), shifted together until the counted head
//                            density is within kDensityTolerance on the calibration sequences
//   union_density            likewise, of the union density
//   max_perplexity_increase  likewise, the sparsest shift that keeps the calibration sequences
//                            within the bound; where the held-out ones then exceed it, denser until
//                            they keep it too
// One soft density for every head is worse where there is a predictor: eta-27m on encyclopedia text
// reads 36 % for a head density of 20 %, at 6.2 % more perplexity than full attention;
// match_dynamic's constants shifted to a head density of 17 % read 25 %, at 0.5 % more. z per head
// is chosen under the shifted constants, since the keys above a threshold differ with them: at
// every shift while the search is coarse, then once more before it is fine. Errors:
// INVALID_ARGUMENT naming the field; FAILED_PRECONDITION: UNSUPPORTED_BY_MODEL (match_dynamic
// without a predictor, a floor without a gate), TARGET_UNREACHABLE with the nearest value, those of
// SolveFrozenThresholds; CANCELLED once `stop` is requested, within a step; whatever the engine
// ends a pass with.
absl::StatusOr<CalibrationResult> Calibrate(Engine& engine, const CalibrationJob& job,
                                            const CalibrationObserver& observer,
                                            const std::stop_token& stop);

inline constexpr double kDensityTolerance = 0.004;

}  // namespace eta
