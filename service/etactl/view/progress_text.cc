#include "service/etactl/view/progress_text.h"

#include <google/protobuf/util/time_util.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
std::string PhaseName(v1::CalibrationPhase phase) {
  switch (phase) {
    case v1::CALIBRATION_PHASE_COLLECT:
      return "1/4 collecting scores";
    case v1::CALIBRATION_PHASE_SOLVE:
      return "2/4 solving";
    case v1::CALIBRATION_PHASE_SEARCH:
      return "3/4 searching";
    case v1::CALIBRATION_PHASE_VERIFY:
      return "4/4 verifying";
    default:
      return "calibrating";
  }
}

std::string DescribeSpeed(const v1::CalibrationProgress& progress) {
  std::vector<std::string> phrases;
  if (progress.tokens_per_second() > 0.0) {
    phrases.push_back(absl::StrFormat("%.0f tokens/s", progress.tokens_per_second()));
  }
  const int64_t left_ms =
      google::protobuf::util::TimeUtil::DurationToMilliseconds(progress.time_left());
  if (left_ms > 0) {
    phrases.push_back(
        absl::StrFormat("about %s left", ReadableSeconds(static_cast<double>(left_ms) * 1e-3)));
  }
  return absl::StrJoin(phrases, ", ");
}

std::string DescribeProgress(const v1::CalibrationProgress& progress) {
  std::string text = PhaseName(progress.phase());
  if (progress.sequences_total() > 0) {
    absl::StrAppend(&text, ", ", progress.sequences_done(), "/", progress.sequences_total(),
                    " sequences");
  }
  const std::string speed = DescribeSpeed(progress);
  return speed.empty() ? text : absl::StrCat(text, ", ", speed);
}

}  // namespace eta::ctl
