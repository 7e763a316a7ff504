#include "calibration/evaluation/commands/progress_bar.h"

#include "absl/strings/str_format.h"

namespace eta {

void ProgressBar::Show(int64_t done, int64_t total, const std::string& what) {
  if (total <= 0) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(total);
  line_.Show(absl::StrFormat("%s %3.0f %%, %.0f s left%s%s", BarText(done, total, 40),
                             100.0 * share, share > 0.0 ? seconds * (1.0 - share) / share : 0.0,
                             what.empty() ? "" : "; ", what));
}

}  // namespace eta
