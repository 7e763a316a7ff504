#include "calibration/solvers/target_error.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {

absl::Status TargetUnreachable(const std::string& field, double target, double nearest,
                               std::map<std::string, std::string> more) {
  more["target"] = absl::StrCat(target);
  more["nearest"] = absl::StrCat(nearest);
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat(field, ": wanted ", target, ", the nearest reachable on this data is ", nearest),
      {.reason = "TARGET_UNREACHABLE", .field = field, .metadata = std::move(more)});
}

}  // namespace eta
