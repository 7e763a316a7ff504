// Parses a metrics page by the specification of the text format. Ends the program at a line that
// violates it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/testing/fuzz/input_reader.h"

namespace eta::fuzz {

using Labels = std::vector<std::pair<std::string, std::string>>;

struct Line {
  std::string name;
  Labels labels;
  double value = 0.0;
};

inline bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

inline Line ParseLine(std::string_view text) {
  Line line;
  const size_t end = text.find_first_of("{ ");
  Require(end != std::string_view::npos);
  line.name = std::string(text.substr(0, end));
  Require(IsName(line.name));
  text.remove_prefix(end);
  if (text.front() == '{') {
    do {
      text.remove_prefix(1);
      const size_t equals = text.find("=\"");
      Require(equals != std::string_view::npos && IsName(text.substr(0, equals)));
      std::string name(text.substr(0, equals));
      text.remove_prefix(equals + 2);
      std::string value;
      while (!text.empty() && text.front() != '"') {
        if (text.front() == '\\') {
          text.remove_prefix(1);
          Require(!text.empty() &&
                  (text.front() == '\\' || text.front() == '"' || text.front() == 'n'));
          value += text.front() == 'n' ? '\n' : text.front();
        } else {
          value += text.front();
        }
        text.remove_prefix(1);
      }
      Require(text.size() >= 2);
      text.remove_prefix(1);
      line.labels.emplace_back(std::move(name), std::move(value));
    } while (text.front() == ',');
    Require(text.front() == '}');
    text.remove_prefix(1);
  }
  Require(!text.empty() && text.front() == ' ');
  text.remove_prefix(1);
  Require(absl::SimpleAtod(absl::string_view(text.data(), text.size()), &line.value));
  return line;
}

inline std::vector<Line> ParsePage(std::string_view page) {
  std::vector<Line> lines;
  while (!page.empty()) {
    const size_t end = page.find('\n');
    Require(end != std::string_view::npos);
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(end + 1);
    if (!line.starts_with("# HELP ") && !line.starts_with("# TYPE ")) {
      lines.push_back(ParseLine(line));
    }
  }
  return lines;
}

}  // namespace eta::fuzz
