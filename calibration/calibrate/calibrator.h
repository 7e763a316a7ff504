// Calibration of one profile: from a tenant's sequences to thresholds that are verified on text
// that took no part in choosing them. It runs as passes of an engine that serves requests
// meanwhile.
//
// Phases:
//   collect  scores and targets of the calibration sequences, under dynamic thresholds
//   solve    one constant per head (the paper's Algorithm 1)
//   search   one shift of all constants, for all targets but match_dynamic; z per head, if a recall
//            is asked for
//   verify   full, dynamic and frozen attention on the held-out documents, and the needles that
//            full and frozen attention find in them; bounds are judged there. What fails is
//            verified again with lower thresholds, step by step, until it passes
//
// A model without a predictor gets one relative threshold (eta-semantics.md, "Relative
// thresholds"). It is searched for directly: there is nothing to collect and to solve.
//
// Everything is measured as decoding would meet it: the first half of a sequence is a prompt, and
// the rows of the second half are decode rows. So densities are those of contexts of half to a
// whole sequence. In a longer context pinned blocks are a smaller share, so it reads a smaller
// share of itself. Results depend on engine, job and samples alone, not on other traffic (on cuda:
// up to the order of sums).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibrate/decode_measurement.h"
#include "calibration/profiles/profile_record.h"
#include "engine/front/engine.h"

namespace eta {

inline constexpr int64_t kMaxCalibrationTokens = int64_t{1} << 22;  // of all samples together
// The least blocks of a sequence. Shorter sequences would be mostly pinned blocks.
inline constexpr int32_t kMinSequenceBlocks = 4;
inline constexpr int32_t kDefaultSequenceTokens = 2048;
inline constexpr double kMaxHeldOut = 0.9;

struct CalibrationJob {
  std::string id;      // id of its passes; valid as a request id (IsRequestId)
  std::string tenant;  // tenant of its passes
  std::map<std::string, std::string> labels;
  // Token ids, at most kMaxCalibrationTokens. They are cut into sequences (sample_split.h). Two
  // different documents must give sequences, three for max_perplexity_increase of a model with a
  // predictor.
  std::vector<std::vector<int32_t>> samples;
  // The document of each sample, by any number: samples of one number are one document. Empty:
  // every sample is one.
  std::vector<int32_t> documents;
  int64_t equal_documents = 0;  // left out by the caller; the evidence counts them with its own
  double held_out = 0.25;       // share of the tokens, (0, kMaxHeldOut]; whole documents
  ProfileTarget target;
  AttentionSettings settings;      // what the profile says; z is of models with a predictor alone
  std::optional<double> z_recall;  // likewise; (0, 1]: z per head, for this share of
                                   // above-threshold keys
  // Promises (promises.h). The share of the needles which full attention finds that must be kept,
  // (0, 1]; and that a profile may be made which loses more than one may by default, or is
  // unverified.
  std::optional<double> min_retrieval;
  bool allow_loss = false;
  // Samples are cut into sequences of this length: [kMinSequenceBlocks * block size, the engine's
  // max_context], at most kMaxCalibrationRows. Absent: kDefaultSequenceTokens, or max_context if
  // that is less.
  std::optional<int32_t> sequence_tokens;
};

enum class CalibrationPhase : uint8_t { kCollect, kSolve, kSearch, kVerify };

struct CalibrationProgress {
  CalibrationPhase phase = CalibrationPhase::kCollect;
  int32_t sequences_done = 0;      // of this phase; in a search, of the current measurement
  int32_t sequences_total = 0;     // likewise
  double tokens_per_second = 0.0;  // since the job began
  double seconds_left = 0.0;       // of the whole job, estimated
};

// Called on the thread that calls Calibrate, at most a few times a second and at every change of
// phase.
using CalibrationObserver = std::function<void(const CalibrationProgress&)>;

// The profile and the measurements on the held-out documents that `content` rests on. Full
// attention is the model's own, without an offset. Dynamic attention has the profile's offset and
// floor, and one z for all heads: the job's or the default.
struct CalibrationResult {
  ProfileContent content;
  DecodeMeasurement full;
  std::optional<DecodeMeasurement> dynamic;  // absent: the model has no predictor
  DecodeMeasurement frozen;
};

// Blocks until all passes of the calibration have ended. Stores nothing. Targets:
//   match_dynamic            every head's mean gate under dynamic thresholds (frozen_threshold.h)
//   head_density             match_dynamic's constants, shifted together until the counted head
//                            density is within kDensityTolerance on the calibration sequences;
//                            without a predictor the relative threshold that meets it
//   union_density            likewise, until the union density is met
//   dynamic_union_density    likewise, until the union density is that of dynamic thresholds,
//                            within kDensityTolerance on the calibration sequences; if the held-out
//                            documents do not keep bound and promises there, the nearest denser one
//                            that does, so that they have chosen the step; where none keeps every
//                            needle, the nearest one that keeps the bound (ToBeStaged, promises.h)
//   max_perplexity_increase  likewise, the sparsest shift that keeps documents of their own within
//                            the bound, by the upper end of the 95 % interval; refused if the
//                            held-out documents exceed it as measured
//   retained_mass            the sparsest relative threshold that keeps this share of full
//                            attention's softmax on the calibration sequences, by the lower end of
//                            the 95 % interval; refused if the held-out documents keep less
//
// Without a predictor both are chosen on the calibration sequences, which nothing else needs. A
// perplexity increase then is both what the text shows and exp(KL) - 1, where KL is the divergence
// from full attention in nats per token (solvers/divergence.h): the larger one is searched by and
// judged. The text's alone would flatter what prunes, since it falls below 0 where leaving out
// blocks happens to help; exp(KL) - 1 is the increase on text that full attention itself would
// write. A bound of 0 percent can so not be kept. The divergence is measured at an even sample of
// the rows (divergence_rows.h).
//
// With a predictor the constants of match_dynamic are better than one soft density for every head:
// they lose less perplexity at equal density. z per head is chosen under the shifted constants,
// since the keys above a threshold differ with them: at every shift of the coarse search, then once
// before the fine one.
//
// Errors: INVALID_ARGUMENT naming the field; too little text for a verdict (kMinVerdictTokens) is
// one, but for a target that bounds nothing with allow_loss (Unverified, promises.h).
// FAILED_PRECONDITION: UNSUPPORTED_BY_MODEL (match_dynamic, dynamic_union_density, z or z_recall
// without a predictor, retained_mass with one, a floor or tempered keys without a gate, an index
// that has no relative thresholds), TARGET_UNREACHABLE with the nearest value, those of
// JudgePromises, both with the nearest request that passes (NameNearest), and those of
// SolveFrozenThresholds. CANCELLED within a step after `stop` is requested. Any error that the
// engine ends a pass with.
absl::StatusOr<CalibrationResult> Calibrate(Engine& engine, const CalibrationJob& job,
                                            const CalibrationObserver& observer,
                                            const std::stop_token& stop);

inline constexpr double kDensityTolerance = 0.004;

}  // namespace eta
