#include "calibration/evaluation/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace eta {
namespace {

constexpr int64_t kWidth = 40;
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

ProgressBar::ProgressBar()
    : terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Show(int64_t done, int64_t total, const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || total <= 0 || now - last_ < kPause) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const auto filled = static_cast<size_t>(std::clamp<int64_t>(kWidth * done / total, 0, kWidth));
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r\033[K[%s] %3.0f %%, %.0f s left%s%s", bar.c_str(), 100.0 * share,
               share > 0.0 ? seconds * (1.0 - share) / share : 0.0, what.empty() ? "" : "; ",
               what.c_str());
  std::fflush(stderr);
}

}  // namespace eta
