#include "engine/base/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace eta {
namespace {

constexpr std::chrono::milliseconds kTerminalPause{100};
constexpr std::chrono::milliseconds kFilePause{10'000};

}  // namespace

std::string BarText(int64_t done, int64_t total, int64_t cells) {
  const auto filled = static_cast<size_t>(std::clamp<int64_t>(cells * done / total, 0, cells));
  return "[" + std::string(filled, '#') + std::string(static_cast<size_t>(cells) - filled, '.') +
         "]";
}

ProgressLine::ProgressLine(Elsewhere elsewhere)
    : terminal_(isatty(STDERR_FILENO) == 1), shows_(terminal_ || elsewhere == Elsewhere::kLines) {}

void ProgressLine::Show(const std::string& text, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  if (!shows_ || (!at_once && now - last_ < (terminal_ ? kTerminalPause : kFilePause))) return;
  last_ = now;
  Clear();
  std::fprintf(stderr, terminal_ ? "%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

void ProgressLine::Say(const std::string& text) {
  Clear();
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
}

void ProgressLine::Clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace eta
