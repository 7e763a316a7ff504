#include "calibration/calibrate/calibrator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "calibration/calibrate/calibration_clock.h"
#include "calibration/calibrate/calibration_job.h"
#include "calibration/calibrate/calibration_passes.h"
#include "calibration/calibrate/calibration_verdict.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/calibrate/promises.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "calibration/solvers/frozen_threshold.h"
#include "calibration/solvers/head_z.h"
#include "calibration/solvers/union_target.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

// The search first gets near the target on a few sequences, then closes in on more of them. The
// union density of eta-27m differs by 2 to 5 points between sequences of 2,048 tokens.
constexpr int32_t kCoarseSequences = 2;
constexpr int32_t kFineSequences = 16;
constexpr double kCoarseTolerance = 0.01;
constexpr ShiftSearch kCoarseSearch = {.resolution = 1.0 / 64};
constexpr ShiftSearch kFineSearch = {.first_step = 1.0 / 8, .resolution = 1.0 / 512};
// Search for a perplexity. Finer steps would fit the noise of some thousand tokens.
constexpr ShiftSearch kCoarsePerplexitySearch = {.resolution = 1.0 / 4};
constexpr ShiftSearch kFinePerplexitySearch = {.first_step = 1.0 / 4, .resolution = 1.0 / 8};
// Search for one relative threshold, from kDefaultRelativeC on. Farther away nothing changes: all
// blocks are admitted, or those alone that always are. The last search may go back all the way.
constexpr double kMaxRelativeShift = 64.0;
// The density at which a target that names none begins without dynamic thresholds.
constexpr double kFirstDensity = 0.25;
constexpr int kExpectedMeasurements = 4;  // per search; for the estimate of the time left
// Denser profiles are tried with thresholds lowered by these steps.
constexpr std::array<double, 11> kLowered = {0.0,     1.0 / 16, 1.0 / 8, 3.0 / 16, 1.0 / 4, 3.0 / 8,
                                             1.0 / 2, 3.0 / 4,  1.0,     2.0,      4.0};

std::vector<std::span<const int32_t>> All(const std::vector<std::vector<int32_t>>& sequences) {
  return {sequences.begin(), sequences.end()};
}

// At least kFineSequences, and as many as a verdict on a perplexity needs, as far as there are any.
std::vector<std::span<const int32_t>> Fine(const std::vector<std::vector<int32_t>>& sequences) {
  int32_t count = kFineSequences;
  std::vector<std::span<const int32_t>> fine = SpreadOver(sequences, count);
  while (MeasuredTokens(TokenSpans(fine)) < kMinVerdictTokens && fine.size() < sequences.size()) {
    count *= 2;
    fine = SpreadOver(sequences, count);
  }
  return fine;
}

// The density to ask for, so that a search ends at `reached` or above it. A search may end a
// tolerance below what it is asked for. `reached` may be the most that there is, so the density
// must lie within the tolerance of it: it is the tolerance above, rounded down by at most 0.000015.
double NamedDensity(double reached) {
  constexpr double kDigits = 1e5;
  return std::min(std::floor((reached + kDensityTolerance) * kDigits - 0.5) / kDigits, 1.0);
}

class Calibration {
 public:
  Calibration(Engine& engine, const CalibrationJob& job, PreparedJob prepared,
              const CalibrationObserver& observer, const std::stop_token& stop)
      : job_(job),
        config_(engine.info().config),
        prepared_(std::move(prepared)),
        content_(prepared_.content),
        stop_(stop),
        clock_(observer),
        passes_(engine, job.id, job.tenant, clock_, stop_),
        calibration_(All(prepared_.split.calibration)),
        coarse_(SpreadOver(ChoiceText(), kCoarseSequences)),
        fine_(Fine(ChoiceText())),
        held_out_(All(prepared_.split.held_out)) {
    if (Relative()) constants_ = {double{kDefaultRelativeC}};
  }

  absl::StatusOr<CalibrationResult> Run() {
    clock_.Expect(ExpectedRows());
    std::optional<CollectedCells> collected;
    if (!Relative()) {
      RETURN_IF_ERROR(CollectAndSolve(collected));
    }
    clock_.Enter(CalibrationPhase::kSearch);
    if (ETA_FAILPOINT(kCalibrateSearch)) return OutOfMemory();
    absl::Status passed = Search();
    if (IsOfRecall(passed)) return NameWithoutRecall(passed);
    if (!passed.ok() && !IsOfDensity(passed)) return passed;
    clock_.Expect(VerifyRows());
    clock_.Enter(CalibrationPhase::kVerify);
    if (ETA_FAILPOINT(kCalibrateVerify)) return OutOfMemory();
    CalibrationResult result;
    RETURN_IF_ERROR(Verify(result));
    RETURN_IF_ERROR(Retrieve());
    if (passed.ok()) passed = JudgeHeldOut(job_.target, result);
    if (passed.ok()) passed = JudgePromises(job_, content_.evidence);
    if (!passed.ok()) RETURN_IF_ERROR(GoDenser(passed, result));
    RETURN_IF_ERROR(MeasureReached());
    SetThresholds(shift_, content_);
    if (collected) {
      content_.reached.soft_density = MeanSoftDensity(collected->histogram(), content_.thresholds,
                                                      prepared_.beta, *content_.settings.offset);
    }
    if (absl::Status s = CheckProfileContent(content_); !s.ok()) {
      return absl::InternalError("calibration made a bad profile: " + std::string(s.message()));
    }
    result.content = std::move(content_);
    return result;
  }

 private:
  struct Trial {
    double shift;
    DecodeMeasurement measured;
  };

  ProfileTargetKind kind() const { return job_.target.kind; }
  bool Relative() const { return content_.relative_c.has_value(); }
  bool Bounded() const { return kind() == ProfileTargetKind::kMaxPerplexityIncrease; }
  bool ByMass() const { return kind() == ProfileTargetKind::kRetainedMass; }
  bool AsDynamic() const { return kind() == ProfileTargetKind::kDynamicUnionDensity; }
  // The text that shift and z are chosen on: documents of its own, if the target needs them.
  const std::vector<std::vector<int32_t>>& ChoiceText() const {
    return prepared_.split.choice.empty() ? prepared_.split.calibration : prepared_.split.choice;
  }
  bool Searched() const { return kind() != ProfileTargetKind::kMatchDynamic; }

  int64_t VerifyRows() const {
    int64_t rows = (config_.has_predictor ? 3 : 2) * TotalTokens(held_out_);
    for (const NeedleWindow& window : prepared_.needles) {
      rows += 2 * static_cast<int64_t>(window.tokens.size());  // full and frozen
    }
    return rows + (Searched() ? 0 : TotalTokens(fine_));
  }
  int64_t ExpectedRows() const {
    int64_t rows = (Relative() ? 0 : TotalTokens(calibration_)) + VerifyRows();
    const int64_t coarse_rows = (job_.z_recall ? 2 : 1) * TotalTokens(coarse_);
    if (Searched()) rows += kExpectedMeasurements * (coarse_rows + TotalTokens(fine_));
    if (job_.z_recall) rows += TotalTokens(fine_);
    // What it compares with.
    if (Bounded() || AsDynamic()) rows += TotalTokens(coarse_) + TotalTokens(fine_);
    return rows;
  }

  // Under the same rule for special keys: of a model without a gate there is none.
  std::optional<bool> TemperSpecial() const {
    if (config_.gate == Gate::kNone) return std::nullopt;
    return content_.settings.temper_special;
  }
  AttentionChoice Full() const {
    return {.mode = AttentionMode::kFull, .settings = {.temper_special = TemperSpecial()}};
  }
  AttentionChoice Dynamic() const {
    AttentionChoice dynamic = {.mode = AttentionMode::kDynamic, .settings = content_.settings};
    dynamic.settings.temper_special = TemperSpecial();
    dynamic.settings.min_mass.reset();
    return dynamic;
  }
  // The attention of a request that names the profile and sets nothing else.
  AttentionChoice Frozen(double shift) const {
    ProfileContent trial = content_;
    SetThresholds(shift, trial);
    trial.settings.min_mass.reset();  // nothing is to go on with full attention here
    return {.mode = AttentionMode::kProfile,
            .profile = ThresholdProfileOf(trial, job_.id, /*version=*/0)};
  }

  void SetThresholds(double shift, ProfileContent& content) const {
    if (Relative()) {
      content.relative_c =
          std::clamp(static_cast<float>(constants_.front() + shift), -kMaxRelativeC, kMaxRelativeC);
    } else {
      content.thresholds = ShiftThresholds(constants_, shift);
    }
  }

  absl::Status CollectAndSolve(std::optional<CollectedCells>& cells) {
    clock_.Enter(CalibrationPhase::kCollect);
    if (ETA_FAILPOINT(kCalibrateCollect)) return OutOfMemory();
    ASSIGN_OR_RETURN(cells,
                     passes_.Collect(calibration_, prepared_.has_dynamic_gate ? Dynamic() : Full(),
                                     CalibrationPasses::Rows::kAll));
    clock_.Enter(CalibrationPhase::kSolve);
    if (ETA_FAILPOINT(kCalibrateSolve)) return OutOfMemory();
    return Solve(cells->histogram());
  }

  // Solves head by head: all at once would do, but takes seconds for a large model.
  absl::Status Solve(const ScoreHistogram& histogram) {
    FrozenOptions options = {.beta = prepared_.beta, .offset = *content_.settings.offset};
    if (!prepared_.has_dynamic_gate) {
      options.density = Bounded() || AsDynamic() ? kFirstDensity : job_.target.value;
    }
    for (int32_t layer = 0; layer < histogram.num_layers(); ++layer) {
      if (!config_.IsFull(layer)) {  // its place in the table is not read
        constants_.resize(constants_.size() + static_cast<size_t>(histogram.num_query_heads()));
        continue;
      }
      for (int32_t head = 0; head < histogram.num_query_heads(); ++head) {
        if (stop_.stop_requested()) return absl::CancelledError("calibration: cancelled");
        ASSIGN_OR_RETURN(const FrozenThreshold solved,
                         SolveFrozenThreshold(histogram.head(layer, head), histogram.bins(),
                                              options, layer, head));
        constants_.push_back(solved.threshold);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Search() {
    if (Searched()) {
      RETURN_IF_ERROR(Approach(coarse_, /*last=*/false));
    }
    RETURN_IF_ERROR(ChooseZ(fine_, shift_));
    return Searched() ? Approach(fine_, /*last=*/true) : absl::OkStatus();
  }

  // Moves the shift to where the target is met on `sequences`. If this is not the last time, nearly
  // met is enough, and z per head is chosen anew at every shift on the way.
  absl::Status Approach(const std::vector<std::span<const int32_t>>& sequences, bool last) {
    const double base = shift_;
    double wanted = job_.target.value;
    if (AsDynamic()) {
      ASSIGN_OR_RETURN(const DecodeMeasurement dynamic, passes_.Measure(sequences, Dynamic(), {}));
      wanted = dynamic.union_density;
    }
    double nearest = base;
    double nearest_miss = std::numeric_limits<double>::infinity();
    const auto measure = [&](double shift, auto value,
                             KeptLogits* full_logits = nullptr) -> absl::StatusOr<double> {
      if (!last) {
        RETURN_IF_ERROR(ChooseZ(sequences, base + shift));
      }
      ASSIGN_OR_RETURN(
          const DecodeMeasurement measured,
          passes_.Measure(sequences, Frozen(base + shift),
                          {.perplexity = Bounded(), .mass = ByMass(), .full_logits = full_logits}));
      if (ByMass() && !measured.mass) return NoMass();
      if (last) {
        trials_.push_back({base + shift, measured});
        trials_.back().measured.losses = {};  // megabytes, like these
        trials_.back().measured.mass.reset();
        trials_.back().measured.divergence.reset();
      }
      const double miss = Bounded()  ? value(measured)
                          : ByMass() ? -value(measured)
                                     : std::abs(value(measured) - wanted);
      if (miss < nearest_miss) {
        nearest_miss = miss;
        nearest = base + shift;
      }
      return value(measured);
    };
    const absl::StatusOr<ShiftResult> found = Bounded()
                                                  ? ApproachPerplexity(sequences, last, measure)
                                              : ByMass() ? ApproachMass(last, measure)
                                                         : ApproachDensity(wanted, last, measure);
    shift_ = found.ok() ? base + found->shift : nearest;
    if (!last && GetErrorDetail(found.status()).reason == "TARGET_UNREACHABLE") {
      return absl::OkStatus();
    }
    return found.status();
  }

  template <typename Measure>
  absl::StatusOr<ShiftResult> ApproachDensity(double wanted, bool last, const Measure& measure) {
    const bool heads = kind() == ProfileTargetKind::kHeadDensity;
    const auto density = [heads](const DecodeMeasurement& measured) {
      return heads ? measured.head_density : measured.union_density;
    };
    const char* field = heads         ? "target.head_density"
                        : AsDynamic() ? "target.dynamic_union_density"
                                      : "target.union_density";
    return SolveDensityShift(field, wanted, last ? kDensityTolerance : kCoarseTolerance,
                             Within(last ? kFineSearch : kCoarseSearch, last),
                             [&](double shift) { return measure(shift, density); });
  }

  template <typename Measure>
  absl::StatusOr<ShiftResult> ApproachPerplexity(TokenSpans sequences, bool last,
                                                 const Measure& measure) {
    KeptLogits logits;
    KeptLogits* const full_logits = Relative() ? &logits : nullptr;
    ASSIGN_OR_RETURN(
        const DecodeMeasurement full,
        passes_.Measure(sequences, Full(), {.perplexity = true, .full_logits = full_logits}));
    // The last search compares the upper end of the interval: what noise allows here, other text
    // would not keep.
    const auto perplexity = [&full, last](const DecodeMeasurement& measured) {
      return full.perplexity * (1.0 + JudgedIncrease(full, measured, last) / 100.0);
    };
    return SolvePerplexityShift(
        full.perplexity, job_.target.value,
        Within(last ? kFinePerplexitySearch : kCoarsePerplexitySearch, last),
        [&](double shift) { return measure(shift, perplexity, full_logits); });
  }

  template <typename Measure>
  absl::StatusOr<ShiftResult> ApproachMass(bool last, const Measure& measure) {
    // The last search compares the lower end of the interval, for the same reason.
    const auto mass = [last](const DecodeMeasurement& measured) {
      const MeanInterval interval = BlockMeanInterval(measured.mass->rows);
      const double less = last ? interval.half_width.value_or(0.0) : 0.0;
      return std::clamp(measured.mass->mean - less, 0.0, 1.0);
    };
    return SolveMassShift(job_.target.value,
                          Within(last ? kFinePerplexitySearch : kCoarsePerplexitySearch, last),
                          [&](double shift) { return measure(shift, mass); });
  }

  static absl::Status NoMass() {
    return absl::InternalError("the engine measured no mass of decode rows");
  }

  ShiftSearch Within(ShiftSearch search, bool last) const {
    if (Relative()) search.max_shift = last ? 2.0 * kMaxRelativeShift : kMaxRelativeShift;
    return search;
  }

  // Chooses z per head if the job asks for a recall.
  absl::Status ChooseZ(TokenSpans sequences, double shift) {
    if (!job_.z_recall) return absl::OkStatus();
    ASSIGN_OR_RETURN(
        const CollectedCells collected,
        passes_.Collect(sequences, Frozen(shift), CalibrationPasses::Rows::kSecondHalf));
    ASSIGN_OR_RETURN(const std::vector<HeadZ> solved,
                     SolveHeadZ(collected.head_z(), *job_.z_recall));
    content_.z_per_head.clear();
    for (const HeadZ& head : solved) content_.z_per_head.push_back(head.z);
    return absl::OkStatus();
  }

  absl::StatusOr<DecodeMeasurement> MeasureHeldOut(const AttentionChoice& attention, bool mass) {
    return passes_.Measure(held_out_, attention,
                           {.perplexity = true,
                            .recall = true,
                            .mass = mass,
                            .full_logits = Relative() ? &held_out_logits_ : nullptr});
  }

  absl::Status Verify(CalibrationResult& result) {
    ASSIGN_OR_RETURN(result.full, MeasureHeldOut(Full(), /*mass=*/false));
    if (config_.has_predictor) {
      ASSIGN_OR_RETURN(result.dynamic, MeasureHeldOut(Dynamic(), /*mass=*/false));
    }
    return VerifyFrozen(result);
  }

  // At this shift. No needles are counted yet.
  absl::Status VerifyFrozen(CalibrationResult& result) {
    ASSIGN_OR_RETURN(result.frozen, MeasureHeldOut(Frozen(shift_), /*mass=*/true));
    if (ByMass() && !result.frozen.mass) return NoMass();
    SetMeasurements(result, content_.evidence);
    content_.evidence.single_needles.reset();
    content_.evidence.multi_needles.reset();
    return absl::OkStatus();
  }

  static bool IsOfRecall(const absl::Status& failure) {
    const ErrorDetail detail = GetErrorDetail(failure);
    return detail.reason == "TARGET_UNREACHABLE" && detail.field == "z_recall";
  }
  // Whether an error may end with less sparse thresholds.
  static bool IsOfDensity(const absl::Status& failure) {
    return GetErrorDetail(failure).reason == "TARGET_UNREACHABLE" && !IsOfRecall(failure);
  }

  // Lowers the thresholds until the held-out documents pass. The target of dynamic thresholds takes
  // the first that do, else the first that keep its bound, whatever needles they lose, unless a
  // share of those was asked for. Any other target ends with `failure`, which names them.
  // Thresholds under which no z gives the recall that was asked for are passed over.
  absl::Status GoDenser(const absl::Status& failure, CalibrationResult& result) {
    clock_.Expect(static_cast<int64_t>(kLowered.size() / 2) * TotalTokens(held_out_));
    CalibrationJob asked = {.min_retrieval = job_.min_retrieval, .allow_loss = job_.allow_loss};
    asked.target.kind = ProfileTargetKind::kUnionDensity;
    if (AllNeedles(content_.evidence).full == 0) asked.min_retrieval.reset();
    const double from = shift_;
    double best = from;
    double least = std::numeric_limits<double>::infinity();
    std::optional<double> bounded;
    for (const double lowered : kLowered) {
      if (lowered > 0.0) {
        const absl::Status moved = MoveTo(from - lowered, result);
        if (IsOfRecall(moved)) continue;
        RETURN_IF_ERROR(moved);
      }
      const DecodeMeasurement& frozen = result.frozen;
      const double loss = frozen.divergence ? frozen.divergence->nats : frozen.perplexity;
      if (loss < least) {
        least = loss;
        best = shift_;
      }
      // Needles take longer to measure than the held-out documents, so they come last.
      ProfileEvidence costs = content_.evidence;
      costs.single_needles.reset();
      costs.multi_needles.reset();
      const CalibrationJob cost = {.target = asked.target, .allow_loss = asked.allow_loss};
      if (!JudgeHeldOut(job_.target, result).ok() || !JudgePromises(cost, costs).ok()) continue;
      if (!bounded) bounded = shift_;
      if (lowered > 0.0) RETURN_IF_ERROR(Retrieve());
      if (!JudgePromises(asked, content_.evidence).ok()) continue;
      if (AsDynamic() && asked.min_retrieval == job_.min_retrieval) return absl::OkStatus();
      return EndWithNearest(failure);
    }
    const bool takes_bounded = AsDynamic() && !job_.min_retrieval && bounded;
    const absl::Status moved = MoveTo(takes_bounded ? *bounded : best, result);
    if (IsOfRecall(moved)) return failure;
    RETURN_IF_ERROR(moved);
    RETURN_IF_ERROR(Retrieve());
    return takes_bounded ? absl::OkStatus() : EndWithNearest(failure);
  }

  // Verifies the profile of another shift. No needles are counted yet.
  absl::Status MoveTo(double shift, CalibrationResult& result) {
    shift_ = shift;
    trials_.clear();
    RETURN_IF_ERROR(ChooseZ(fine_, shift_));
    return VerifyFrozen(result);
  }

  // `failure` with the profile of this shift as one to ask for.
  absl::Status EndWithNearest(const absl::Status& failure) {
    const std::vector<std::vector<int32_t>> text = prepared_.split.NotHeldOut();
    ASSIGN_OR_RETURN(const DecodeMeasurement reached,
                     passes_.Measure(Fine(text), Frozen(shift_), {}));
    return NameNearest(failure, job_, NamedDensity(reached.union_density), content_.evidence);
  }

  // Counts the needles that full and frozen attention find.
  absl::Status Retrieve() {
    if (prepared_.needles.empty()) return absl::OkStatus();
    if (found_by_full_.empty()) {
      ASSIGN_OR_RETURN(found_by_full_, passes_.Retrieve(prepared_.needles, Full()));
    }
    ASSIGN_OR_RETURN(const std::vector<bool> frozen,
                     passes_.Retrieve(prepared_.needles, Frozen(shift_)));
    NeedleHits& single = content_.evidence.single_needles.emplace();
    NeedleHits& multi = content_.evidence.multi_needles.emplace();
    for (size_t i = 0; i < prepared_.needles.size(); ++i) {
      NeedleHits& hits = prepared_.needles[i].needles > 1 ? multi : single;
      ++hits.asked;
      hits.full += found_by_full_[i] ? 1 : 0;
      hits.frozen += frozen[i] ? 1 : 0;
      hits.kept += found_by_full_[i] && frozen[i] ? 1 : 0;
    }
    return absl::OkStatus();
  }

  // Measures the densities reached on the sequences of the choice, at the chosen shift.
  absl::Status MeasureReached() {
    absl::StatusOr<DecodeMeasurement> measured = absl::NotFoundError("no trial");
    for (const Trial& trial : trials_) {
      if (trial.shift == shift_) measured = trial.measured;
    }
    if (!measured.ok()) measured = passes_.Measure(fine_, Frozen(shift_), {});
    if (!measured.ok()) return measured.status();
    content_.reached = {.soft_density = 0.0,
                        .head_density = measured->head_density,
                        .union_density = measured->union_density};
    return absl::OkStatus();
  }

  const CalibrationJob& job_;
  const ModelConfig& config_;
  const PreparedJob prepared_;
  ProfileContent content_;
  const std::stop_token& stop_;
  CalibrationClock clock_;
  CalibrationPasses passes_;
  const std::vector<std::span<const int32_t>> calibration_;
  const std::vector<std::span<const int32_t>> coarse_;
  const std::vector<std::span<const int32_t>> fine_;
  const std::vector<std::span<const int32_t>> held_out_;

  std::vector<double> constants_;    // [L, HQ]; of a relative profile one
  double shift_ = 0.0;               // shift of all constants
  std::vector<Trial> trials_;        // on the fine sequences, with the profile's z
  std::vector<bool> found_by_full_;  // of the needles; empty: not measured
  KeptLogits held_out_logits_;       // of full attention; empty with a predictor
};

}  // namespace

absl::StatusOr<CalibrationResult> Calibrate(Engine& engine, const CalibrationJob& job,
                                            const CalibrationObserver& observer,
                                            const std::stop_token& stop) {
  ASSIGN_OR_RETURN(PreparedJob prepared, PrepareJob(engine.info(), engine.limits(), job));
  RETURN_IF_ERROR(MakeNeedles(engine, job, prepared));
  return Calibration(engine, job, std::move(prepared), observer, stop).Run();
}

}  // namespace eta
