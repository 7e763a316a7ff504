#include "calibration/evaluation/commands/calibrate_report.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/calibrate/promises.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::ordered_json;

std::string MeasuredLine(const char* name, const DecodeMeasurement& measured,
                         const DecodeMeasurement& full) {
  const std::string recall =
      measured.recall ? absl::StrFormat("%.4f", *measured.recall) : std::string("-");
  return absl::StrFormat("%-9s  %10.4f  %+8.2f %%  %6.4f  %6.4f  %6s\n", name, measured.perplexity,
                         (measured.perplexity / full.perplexity - 1.0) * 100.0,
                         measured.head_density, measured.union_density, recall);
}

Json AsJson(const std::optional<PercentInterval>& interval) {
  if (!interval) return nullptr;
  return {{"low", interval->low}, {"high", interval->high}};
}

Json AsJson(const std::optional<Divergence>& divergence) {
  if (!divergence) return nullptr;
  return {{"nats", divergence->nats}, {"rows", divergence->rows}};
}

Json AsJson(const std::optional<NeedleHits>& hits) {
  if (!hits) return nullptr;
  return {
      {"asked", hits->asked}, {"full", hits->full}, {"frozen", hits->frozen}, {"kept", hits->kept}};
}

Json AsJson(const std::optional<ShareInterval>& interval) {
  if (!interval) return nullptr;
  return {{"low", interval->low}, {"high", interval->high}};
}

template <typename Number>
Json AsJson(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

// "relative, c -4.28; offset 0, reads shared": the thresholds that were chosen, and what goes
// with them.
std::string OperatingPoint(const ProfileContent& content) {
  const std::string thresholds =
      content.relative_c ? absl::StrFormat("relative, c %g", *content.relative_c) : "one per head";
  return absl::StrCat("thresholds ", thresholds, "; ",
                      Describe(ThresholdProfileOf(content, "", 0)->settings), "\n");
}

std::string Retrieval(const ProfileEvidence& evidence) {
  std::string text;
  if (evidence.retained_mass) {
    absl::StrAppendFormat(&text, "mass kept: %.4f, 1st percentile %.4f\n", *evidence.retained_mass,
                          *evidence.retained_mass_p1);
  }
  for (const auto& [kind, hits] :
       {std::pair{"single", evidence.single_needles}, std::pair{"multi", evidence.multi_needles}}) {
    if (!hits) continue;
    absl::StrAppendFormat(&text, "%s needles: %d of %d; full attention %d, %d of them kept\n", kind,
                          hits->frozen, hits->asked, hits->full, hits->kept);
  }
  const NeedleHits all = AllNeedles(evidence);
  if (const std::optional<ShareInterval> kept = KeptShare(all)) {
    absl::StrAppendFormat(&text, "needles kept: %d of %d (95 %%: %.2f to %.2f)\n", all.kept,
                          all.full, kept->low, kept->high);
  } else if (all.asked > 0) {
    absl::StrAppendFormat(
        &text, "full attention found none of %d needles: retrieval was not judged\n", all.asked);
  } else {
    text += "no needles were hidden, in text too short or too uniform: retrieval was not judged\n";
  }
  return text;
}

// Nothing if the held-out documents gave a verdict.
std::string Unjudged(const CalibrationResult& result) {
  if (!Unverified(result.content.evidence)) return "";
  return absl::StrFormat("unverified: %d tokens were measured, a verdict needs %d\n",
                         result.frozen.losses.size(), kMinVerdictTokens);
}

Json AsJson(const DecodeMeasurement& measured) {
  return {{"perplexity", measured.perplexity},
          {"head_density", measured.head_density},
          {"union_density", measured.union_density},
          {"recall", measured.recall ? Json(*measured.recall) : Json(nullptr)},
          {"rows", measured.rows}};
}

}  // namespace

std::string TargetName(const ProfileTarget& target) {
  const std::string name(Name(target.kind));
  if (target.kind == ProfileTargetKind::kMatchDynamic) return name;
  return absl::StrCat(name, " ", target.value);
}

std::string CalibrationTable(const CalibrationRun& run, const CalibrationResult& result) {
  const ProfileEvidence& evidence = result.content.evidence;
  const ReachedDensities& reached = result.content.reached;
  std::string table = absl::StrFormat(
      "%s: %s, in %.1f s; %s\n%d sequences (%d tokens), %d held out (%d tokens)\n", run.output,
      TargetName(result.content.target), run.seconds, run.backend, evidence.calibration_sequences,
      evidence.calibration_tokens, evidence.held_out_sequences, evidence.held_out_tokens);
  absl::StrAppendFormat(&table,
                        "documents: %d calibrated on, %d chosen on, %d held out; %d left out, "
                        "equal to another\n",
                        evidence.calibration_documents, evidence.choice_documents,
                        evidence.held_out_documents, evidence.equal_documents);
  absl::StrAppend(&table, absl::StrFormat("%-9s  %10s  %10s  %6s  %6s  %6s\n", "held out",
                                          "perplexity", "to full", "head", "union", "recall"));
  absl::StrAppend(&table, MeasuredLine("full", result.full, result.full));
  if (result.dynamic)
    absl::StrAppend(&table, MeasuredLine("dynamic", *result.dynamic, result.full));
  absl::StrAppend(&table, MeasuredLine("frozen", result.frozen, result.full));
  for (const auto& [base, interval] : {std::pair{"full", evidence.increase_over_full},
                                       std::pair{"dynamic", evidence.increase_over_dynamic}}) {
    if (!interval) continue;
    absl::StrAppendFormat(&table, "frozen to %s: %+.2f to %+.2f %% (95 %%)\n", base, interval->low,
                          interval->high);
  }
  if (evidence.divergence) {
    absl::StrAppendFormat(&table, "KL to full: %.3g nats per token, of %d rows\n",
                          evidence.divergence->nats, evidence.divergence->rows);
  }
  table += Unjudged(result);
  absl::StrAppendFormat(&table, "reached on the others: head %.4f, union %.4f",
                        reached.head_density, reached.union_density);
  if (!result.content.relative_c) {
    absl::StrAppendFormat(&table, ", soft %.4f", reached.soft_density);
  }
  table += "\n";
  table += OperatingPoint(result.content) + Retrieval(evidence);
  if (run.lacks_index_metric) {
    table +=
        "no index metric, with which the model would read less: eta-eval index-metric measures "
        "one, "
        "and how much less; calibrate again then\n";
  }
  if (DynamicDominates(evidence)) {
    table += "dynamic thresholds read no more and cost no more: use them without this profile\n";
  } else if (const NeedleHits hits = AllNeedles(evidence); hits.kept < hits.full) {
    absl::StrAppendFormat(&table, "loses %d of the %d needles that full attention finds\n",
                          hits.full - hits.kept, hits.full);
  }
  return table;
}

std::string CalibrationJson(const CalibrationRun& run, const CalibrationResult& result) {
  const ProfileContent& content = result.content;
  const ProfileEvidence& evidence = content.evidence;
  const Json json = {
      {"model", run.model},
      {"text", run.text},
      {"backend", run.backend},
      {"output", run.output},
      {"seconds", run.seconds},
      {"target",
       {{"kind", std::string(Name(content.target.kind))}, {"value", content.target.value}}},
      {"calibration_sequences", evidence.calibration_sequences},
      {"calibration_tokens", evidence.calibration_tokens},
      {"held_out_sequences", evidence.held_out_sequences},
      {"held_out_tokens", evidence.held_out_tokens},
      {"choice_sequences", evidence.choice_sequences},
      {"choice_tokens", evidence.choice_tokens},
      {"documents",
       {{"calibration", evidence.calibration_documents},
        {"choice", evidence.choice_documents},
        {"held_out", evidence.held_out_documents},
        {"equal", evidence.equal_documents}}},
      {"relative_threshold", AsJson(content.relative_c)},
      {"retained_mass", AsJson(evidence.retained_mass)},
      {"retained_mass_p1", AsJson(evidence.retained_mass_p1)},
      {"single_needles", AsJson(evidence.single_needles)},
      {"multi_needles", AsJson(evidence.multi_needles)},
      {"kept_needles", AsJson(KeptShare(AllNeedles(evidence)))},
      {"unverified", Unverified(evidence)},
      {"dynamic_dominates", DynamicDominates(evidence)},
      {"increase_over_full", AsJson(evidence.increase_over_full)},
      {"increase_over_dynamic", AsJson(evidence.increase_over_dynamic)},
      {"divergence", AsJson(evidence.divergence)},
      {"reached",
       {{"soft_density", content.reached.soft_density},
        {"head_density", content.reached.head_density},
        {"union_density", content.reached.union_density}}},
      {"held_out",
       {{"full", AsJson(result.full)},
        {"dynamic", result.dynamic ? AsJson(*result.dynamic) : Json(nullptr)},
        {"frozen", AsJson(result.frozen)}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eta
