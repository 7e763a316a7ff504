#include "service/etactl/view/profile_text.h"

#include <google/protobuf/util/time_util.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "service/etactl/view/terminal.h"
#include "service/etactl/view/text_table.h"
#include "service/wire/attention_message.h"

namespace eta::ctl {
namespace {

constexpr char kNotMeasured[] = "-";

std::string ShareOf(double value) {
  return absl::StrFormat("%.3f", value);
}

// "2026-11-20 20:41:07 UTC".
std::string Readable(const google::protobuf::Timestamp& time) {
  std::string text = google::protobuf::util::TimeUtil::ToString(time).substr(0, 19);
  if (text.size() > 10) text[10] = ' ';
  return text + " UTC";
}

// "3 (staged)".
std::string VersionOf(const v1::ProfileSummary& summary) {
  return absl::StrCat(summary.version(), summary.staged() ? " (staged)" : "");
}

// The fingerprint as far as people need it, and as far as the server's log and Stats show it.
std::string ModelOf(const v1::ProfileSummary& summary) {
  constexpr size_t kDigits = 12;
  return summary.model_fingerprint().empty() ? kNotMeasured
                                             : summary.model_fingerprint().substr(0, kDigits);
}

// "+0.42 %": the difference of a perplexity to full attention's.
std::string Increase(double perplexity, double full) {
  return full > 0.0 ? absl::StrFormat("%+.2f %%", 100.0 * (perplexity / full - 1.0)) : kNotMeasured;
}

// "frozen to full: -1.20 to +0.40 % (95 %)\n"; nothing without an interval.
std::string DescribeIncrease(const char* base, bool known, const v1::PercentInterval& interval) {
  if (!known) return "";
  return absl::StrFormat("frozen to %s: %+.2f to %+.2f %% (95 %%)\n", base, interval.low(),
                         interval.high());
}

// "KL to full: 0.00412 nats per token, of 1024 rows\n"; nothing where it was not measured.
std::string DescribeDivergence(const v1::ProfileEvidence& evidence) {
  if (!evidence.has_divergence()) return "";
  return absl::StrFormat("KL to full: %.3g nats per token, of %d rows\n",
                         evidence.divergence().nats(), evidence.divergence().rows());
}

std::string DescribeDocuments(const v1::ProfileEvidence& evidence) {
  std::string text =
      absl::StrFormat("documents: %d calibrated on", evidence.calibration_documents());
  if (evidence.choice_documents() > 0) {
    absl::StrAppendFormat(&text, ", %d chosen on", evidence.choice_documents());
  }
  absl::StrAppendFormat(&text, ", %d held out", evidence.held_out_documents());
  if (evidence.equal_documents() > 0) {
    absl::StrAppendFormat(&text, "; %d left out, equal to another", evidence.equal_documents());
  }
  return text + "\n";
}

// "12 of 12", "5 of 6 (full attention 6)".
std::string FoundOf(const v1::NeedleHits& hits) {
  std::string text = absl::StrFormat("%d of %d", hits.frozen(), hits.asked());
  if (hits.full() != hits.asked() || hits.frozen() != hits.full()) {
    absl::StrAppendFormat(&text, " (full attention %d)", hits.full());
  }
  return text;
}

// Of both kinds.
v1::NeedleHits AllNeedles(const v1::ProfileEvidence& evidence) {
  v1::NeedleHits all = evidence.single_needles();
  const v1::NeedleHits& multi = evidence.multi_needles();
  all.set_asked(all.asked() + multi.asked());
  all.set_full(all.full() + multi.full());
  all.set_frozen(all.frozen() + multi.frozen());
  all.set_kept(all.kept() + multi.kept());
  return all;
}

// "kept 100 % (95 %: 76 to 100)", or why there is no such share.
std::string DescribeKept(const v1::ProfileEvidence& evidence) {
  const v1::NeedleHits all = AllNeedles(evidence);
  if (all.asked() == 0) return "no needles were hidden: retrieval was not judged";
  if (all.full() == 0) {
    return absl::StrFormat("full attention found none of %d needles: retrieval was not judged",
                           all.asked());
  }
  const double share = static_cast<double>(all.kept()) / static_cast<double>(all.full());
  std::string text = absl::StrFormat("kept %.0f %%", 100.0 * share);
  if (evidence.has_kept_needles()) {
    absl::StrAppendFormat(&text, " (95 %%: %.0f to %.0f)", 100.0 * evidence.kept_needles().low(),
                          100.0 * evidence.kept_needles().high());
  }
  return text;
}

std::string DescribeRetrieval(const v1::ProfileEvidence& evidence) {
  std::string text;
  if (evidence.has_retained_mass()) {
    absl::StrAppendFormat(&text, "mass kept: %.4f, 1st percentile %.4f\n", evidence.retained_mass(),
                          evidence.retained_mass_p1());
  }
  if (evidence.has_single_needles()) {
    absl::StrAppendFormat(&text, "needles: single %s, multi %s; ",
                          FoundOf(evidence.single_needles()), FoundOf(evidence.multi_needles()));
  }
  return text + DescribeKept(evidence) + "\n";
}

std::string MeanZ(const v1::Profile& profile) {
  double sum = 0.0;
  for (const float z : profile.z_per_head()) sum += z;
  return absl::StrFormat(", z per head (mean %.2f)", sum / profile.z_per_head_size());
}

// The thresholds and what goes with their kind.
std::string DescribeThresholds(const v1::Profile& profile) {
  const v1::ProfileGeometry& geometry = profile.geometry();
  std::string text =
      profile.has_relative_threshold()
          ? absl::StrFormat("thresholds: relative, c %g", profile.relative_threshold())
          : absl::StrFormat("thresholds: %d layers x %d heads", geometry.layers(),
                            geometry.query_heads());
  if (!profile.z_per_head().empty()) absl::StrAppend(&text, MeanZ(profile));
  absl::StrAppendFormat(&text, ", blocks of %d tokens\n", geometry.block_size());
  absl::StrAppendFormat(&text, "calibrated on: index %s, cache %s, weights %s\n",
                        WithoutControls(profile.index()), WithoutControls(profile.kv_dtype()),
                        WithoutControls(profile.weights()));
  absl::StatusOr<AttentionSettings> settings = ReadSettings("", profile);
  if (!settings.ok()) return text;
  if (profile.has_relative_threshold()) settings = ReadByRelative(*settings);
  if (!profile.z_per_head().empty()) settings->z.reset();
  return absl::StrCat(text, "requests run with: ", Describe(*settings), "\n");
}

}  // namespace

std::string DescribeTarget(const v1::CalibrationTarget& target) {
  switch (target.target_case()) {
    case v1::CalibrationTarget::kMatchDynamic:
      return "the dynamic thresholds' soft density";
    case v1::CalibrationTarget::kHeadDensity:
      return absl::StrFormat("head density %g", target.head_density());
    case v1::CalibrationTarget::kUnionDensity:
      return absl::StrFormat("union density %g", target.union_density());
    case v1::CalibrationTarget::kMaxPerplexityIncrease:
      return absl::StrFormat("perplexity at most %g %% above full attention's",
                             target.max_perplexity_increase());
    case v1::CalibrationTarget::kDynamicUnionDensity:
      return absl::StrFormat(
          "the dynamic thresholds' union density, perplexity at most %g %% above theirs",
          target.dynamic_union_density().max_perplexity_increase());
    case v1::CalibrationTarget::kRetainedMass:
      return absl::StrFormat("at least %g of full attention's mass", target.retained_mass());
    default:
      return "unknown";
  }
}

std::string EvidenceTable(const v1::ProfileEvidence& evidence) {
  const double full = evidence.perplexity_full();
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"", "perplexity", "to full", "head density", "union density", "recall"});
  rows.push_back(
      {"full", absl::StrFormat("%.3f", full), "", ShareOf(1.0), ShareOf(1.0), ShareOf(1.0)});
  if (evidence.has_perplexity_dynamic()) {
    const double dynamic = evidence.perplexity_dynamic();
    rows.push_back(
        {"dynamic", absl::StrFormat("%.3f", dynamic), Increase(dynamic, full),
         evidence.has_dynamic_head_density() ? ShareOf(evidence.dynamic_head_density())
                                             : kNotMeasured,
         evidence.has_dynamic_union_density() ? ShareOf(evidence.dynamic_union_density())
                                              : kNotMeasured,
         evidence.has_dynamic_recall() ? ShareOf(evidence.dynamic_recall()) : kNotMeasured});
  }
  rows.push_back({"frozen", absl::StrFormat("%.3f", evidence.perplexity_frozen()),
                  Increase(evidence.perplexity_frozen(), full), ShareOf(evidence.head_density()),
                  ShareOf(evidence.union_density()), ShareOf(evidence.recall())});
  const std::vector<Align> columns = {Align::kLeft,  Align::kRight, Align::kRight,
                                      Align::kRight, Align::kRight, Align::kRight};
  return TextTable(columns, rows) +
         DescribeIncrease("full", evidence.has_increase_over_full(),
                          evidence.increase_over_full()) +
         DescribeDivergence(evidence) +
         DescribeIncrease("dynamic", evidence.has_increase_over_dynamic(),
                          evidence.increase_over_dynamic());
}

std::string DescribeProfile(const v1::Profile& profile) {
  const v1::ProfileEvidence& evidence = profile.evidence();
  std::string text = absl::StrFormat("profile %s@%d, made %s\n", WithoutControls(profile.name()),
                                     profile.version(), Readable(profile.create_time()));
  if (profile.staged()) text += "staged: not the newest version until it is promoted\n";
  if (!profile.labels().empty()) {
    std::map<std::string, std::string> labels(profile.labels().begin(), profile.labels().end());
    absl::StrAppend(&text, "labels: ",
                    WithoutControls(absl::StrJoin(labels, ", ", absl::PairFormatter("="))), "\n");
  }
  text += DescribeThresholds(profile);
  absl::StrAppendFormat(&text, "target: %s; on the samples: ", DescribeTarget(profile.target()));
  if (!profile.has_relative_threshold()) {
    absl::StrAppendFormat(&text, "soft density %.3f, ", profile.reached().soft_density());
  }
  absl::StrAppendFormat(&text, "head density %.3f, union density %.3f\n",
                        profile.reached().head_density(), profile.reached().union_density());
  if (evidence.held_out_documents() > 0) text += DescribeDocuments(evidence);
  absl::StrAppendFormat(&text, "calibrated on %d sequences (%d tokens)",
                        evidence.calibration_sequences(), evidence.calibration_tokens());
  if (evidence.held_out_sequences() == 0) return text + ", not verified\n";
  absl::StrAppendFormat(&text, ", %s on %d held out (%d tokens%s):\n\n",
                        evidence.unverified() ? "unverified" : "verified",
                        evidence.held_out_sequences(), evidence.held_out_tokens(),
                        evidence.unverified() ? ", too few for a verdict" : "");
  return text + EvidenceTable(evidence) + DescribeRetrieval(evidence);
}

std::string Verdict(const v1::Profile& profile) {
  const v1::ProfileEvidence& evidence = profile.evidence();
  std::string text =
      absl::StrFormat("reads %.0f %% of the cache", 100.0 * evidence.union_density());
  absl::StrAppend(&text, ", perplexity ",
                  Increase(evidence.perplexity_frozen(), evidence.perplexity_full()));
  if (evidence.has_increase_over_full()) {
    const v1::PercentInterval& interval = evidence.increase_over_full();
    absl::StrAppendFormat(&text, " (95 %%: %.2f to %.2f)", interval.low(), interval.high());
  }
  if (evidence.unverified()) text += " (unverified: too few tokens for a verdict)";
  if (evidence.has_divergence()) {
    absl::StrAppendFormat(&text, ", KL %.3g nats", evidence.divergence().nats());
  }
  if (evidence.has_retained_mass()) {
    absl::StrAppendFormat(&text, ", mass kept %.3f (p1 %.3f)", evidence.retained_mass(),
                          evidence.retained_mass_p1());
  }
  const v1::NeedleHits needles = AllNeedles(evidence);
  if (needles.full() > 0) absl::StrAppend(&text, ", needles ", FoundOf(needles));
  absl::StrAppend(&text, ", ", DescribeKept(evidence));
  if (!evidence.has_dynamic_union_density()) return text;
  absl::StrAppendFormat(&text, "; dynamic reads %.0f %%, %s",
                        100.0 * evidence.dynamic_union_density(),
                        Increase(evidence.perplexity_dynamic(), evidence.perplexity_full()));
  // Only of this target the server stages what loses (calibrate.proto); else it was asked to.
  const int64_t lost = needles.full() - needles.kept();
  const bool loses = profile.staged() && lost > 0 && profile.target().has_dynamic_union_density();
  if (!evidence.dynamic_dominates() && !loses) return text;
  absl::StrAppend(&text, evidence.dynamic_dominates()
                             ? ": no more in either"
                             : absl::StrFormat(": the profile loses %d needles", lost));
  absl::StrAppend(&text, ", so use dynamic attention without this profile");
  return profile.staged() ? text + ", which is staged" : text;
}

std::string ProfileTable(const std::vector<v1::ProfileSummary>& profiles) {
  std::vector<std::vector<std::string>> rows = {{"profile", "newest", "made", "size", "model"}};
  for (const v1::ProfileSummary& profile : profiles) {
    rows.push_back({profile.name(), VersionOf(profile), Readable(profile.create_time()),
                    ReadableBytes(profile.bytes()), ModelOf(profile)});
  }
  return TextTable({Align::kLeft, Align::kRight, Align::kLeft, Align::kRight, Align::kLeft}, rows);
}

std::string VersionTable(const std::vector<v1::ProfileSummary>& versions) {
  std::vector<std::vector<std::string>> rows = {{"version", "made", "size", "model", "aliases"}};
  for (const v1::ProfileSummary& version : versions) {
    rows.push_back({VersionOf(version), Readable(version.create_time()),
                    ReadableBytes(version.bytes()), ModelOf(version),
                    absl::StrJoin(version.aliases(), ", ")});
  }
  return TextTable({Align::kRight, Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft}, rows);
}

}  // namespace eta::ctl
