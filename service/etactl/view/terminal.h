// Terminal output for people: progress, safe text, readable numbers.
#pragma once

#include <cstdint>
#include <string>

namespace eta {

bool IsTerminal(int fd);

// Replaces control characters of `text` (UTF-8) other than newline and tab by U+FFFD. So generated
// text cannot send commands to the terminal.
std::string WithoutControls(const std::string& text);

// What a terminal is sent so that `text` takes the place of `shown`, which it was sent last (empty:
// nothing was); both are whole lines. The terminal cuts lines that are too long for it, so that
// each takes one row. Of a text that is higher than the screen, the lines that left the screen
// stay.
std::string InPlaceOf(const std::string& shown, const std::string& text);

// "17.3 MB"; decimal units.
std::string ReadableBytes(int64_t bytes);

// "0.84 s", "31.2 s", "4 min 05 s".
std::string ReadableSeconds(double seconds);

// "label [####......] done/total note", for a ProgressLine. REQUIRES: total > 0.
std::string ProgressText(const std::string& label, int64_t done, int64_t total,
                         const std::string& note = "");

}  // namespace eta
