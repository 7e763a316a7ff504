#include "service/etactl/view/live_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace eta {
namespace {

constexpr char kEnter[] = "\033[?1049h\033[?25l";  // the other screen, without a cursor
constexpr char kLeave[] = "\033[?25h\033[?1049l";
constexpr char kHome[] = "\033[H";
constexpr char kClearLine[] = "\033[K";
constexpr char kClearBelow[] = "\033[J";

std::string Cut(const std::string& line, int columns) {
  int width = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (begins && ++width > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

std::string FitToScreen(const std::string& text, int rows, int columns) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const auto room = static_cast<size_t>(std::max(rows, 1));
  if (lines.size() > room) {
    const size_t left_out = lines.size() - room + 1;
    lines.resize(room);
    lines.back() = absl::StrCat("(", left_out, " more lines)");
  }
  for (std::string& line : lines) line = Cut(line, std::max(columns, 1));
  return absl::StrJoin(lines, "\n");
}

LiveView::LiveView(int fd) : fd_(fd) {
  Write(kEnter);
}

LiveView::~LiveView() {
  Write(kLeave);
}

bool LiveView::Show(const std::string& text) {
  winsize size{};
  const bool known = ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
  const std::string fitting = FitToScreen(text, known ? size.ws_row : 24, known ? size.ws_col : 80);
  const std::string line_end = absl::StrCat(kClearLine, "\r\n");
  return Write(absl::StrCat(kHome, absl::StrJoin(absl::StrSplit(fitting, '\n'), line_end),
                            kClearLine, kClearBelow));
}

bool LiveView::Write(const std::string& bytes) const {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(fd_, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace eta
