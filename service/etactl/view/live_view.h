// A text that changes, drawn again and again in the same place of a terminal.
#pragma once

#include <string>

namespace eta {

// The text's first lines and each line's first characters, as far as they fit; where lines are left
// out the last one says how many. UTF-8; a character counts as one column.
std::string FitToScreen(const std::string& text, int rows, int columns);

// Takes the terminal's other screen while it lives and gives the first one back as it was. Every
// Show is one write that replaces what stands there line by line, so that nothing flickers.
class LiveView {
 public:
  explicit LiveView(int fd);
  ~LiveView();
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  // False if the terminal cannot be written to. `text` holds no control characters but line ends.
  bool Show(const std::string& text);

 private:
  bool Write(const std::string& bytes) const;

  const int fd_;
};

}  // namespace eta
