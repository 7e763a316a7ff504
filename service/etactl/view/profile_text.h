// Threshold profiles as text for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eta/v1/profiles.pb.h"

namespace eta::ctl {

// The target of a profile: "union density 0.35".
std::string DescribeTarget(const v1::CalibrationTarget& target);

// The measurements on held-out text, before (full attention, dynamic thresholds) and after (frozen
// thresholds), as a table.
std::string EvidenceTable(const v1::ProfileEvidence& evidence);

// What a profile costs, in one line without its end: "reads 31 % of the cache, perplexity +0.60 %
// (95 %: 0.20 to 1.00), mass kept 0.957 (p1 0.880), needles 12 of 12, kept 100 % (95 %: 76 to 100);
// dynamic reads 38 %, +0.34 %". It says what was not judged: a perplexity of too few tokens, and
// needles that were not hidden or not found by full attention. Where dynamic thresholds dominate it
// says so, and that requests do better without the profile.
std::string Verdict(const v1::Profile& profile);

// What a calibration ends with where the model lacks an index metric; a line without its end.
inline constexpr char kLacksIndexMetric[] =
    "the model has no index metric, with which it would read less: `eta-eval index-metric` "
    "measures "
    "one, and how much less; calibrate again then";

// All lines of a profile except its thresholds.
std::string DescribeProfile(const v1::Profile& profile);

// One line per profile: its newest version.
std::string ProfileTable(const std::vector<v1::ProfileSummary>& profiles);

// One line per version of a profile.
std::string VersionTable(const std::vector<v1::ProfileSummary>& versions);

}  // namespace eta::ctl
