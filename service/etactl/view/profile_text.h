// Threshold profiles as etactl shows them to people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eta/v1/profiles.pb.h"

namespace eta::ctl {

// What a profile was asked to reach: "union density 0.35".
std::string DescribeTarget(const v1::CalibrationTarget& target);

// What was measured on held-out text, before (full attention, dynamic thresholds) and after
// (frozen ones), as a table of lines.
std::string EvidenceTable(const v1::ProfileEvidence& evidence);

// Everything but the thresholds themselves, in lines.
std::string DescribeProfile(const v1::Profile& profile);

// One line per profile: its newest version.
std::string ProfileTable(const std::vector<v1::ProfileSummary>& profiles);

// One line per version of a profile.
std::string VersionTable(const std::vector<v1::ProfileSummary>& versions);

}  // namespace eta::ctl
