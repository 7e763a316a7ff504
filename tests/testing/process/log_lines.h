// A server's log as its readers receive it.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eta::testing {

// Parses every line of `log`; each must be a JSON object.
inline std::vector<nlohmann::json> LogLines(const std::string& log) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

inline std::vector<nlohmann::json> LogLines(const std::string& log, const std::string& event) {
  std::vector<nlohmann::json> lines;
  for (nlohmann::json& line : LogLines(log)) {
    if (line.is_object() && line["event"] == event) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace eta::testing
