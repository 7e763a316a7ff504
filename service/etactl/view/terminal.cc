#include "service/etactl/view/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "engine/base/progress_line.h"

namespace eta {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

}  // namespace

bool IsTerminal(int fd) {
  return isatty(fd) == 1;
}

std::string WithoutControls(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    // U+0080 to U+009F are C2 80 to C2 9F in UTF-8.
    const bool c1 = byte == 0xC2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                    static_cast<unsigned char>(text[i + 1]) <= 0x9F;
    if (c0 || c1) {
      out += kReplacement;
      i += c1 ? 1 : 0;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string InPlaceOf(const std::string& shown, const std::string& text) {
  constexpr char kWithoutWrap[] = "\033[?7l";
  constexpr char kWithWrap[] = "\033[?7h";
  const auto lines = std::count(shown.begin(), shown.end(), '\n');
  const std::string back = lines == 0 ? "" : absl::StrFormat("\033[%dA\033[J", lines);
  return back + kWithoutWrap + text + kWithWrap;
}

std::string ReadableBytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1e9) return absl::StrFormat("%.2f GB", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.1f MB", value / 1e6);
  if (value >= 1e3) return absl::StrFormat("%.1f kB", value / 1e3);
  return absl::StrFormat("%d B", bytes);
}

std::string ReadableSeconds(double seconds) {
  if (seconds < 10.0) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 120.0) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
}

std::string ProgressText(const std::string& label, int64_t done, int64_t total,
                         const std::string& note) {
  return absl::StrFormat("%s %s %d/%d%s%s", label, BarText(done, total, 30), done, total,
                         note.empty() ? "" : " ", note);
}

}  // namespace eta
