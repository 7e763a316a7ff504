// Flags that take a number from a range and say their default in the help.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/runtime/runtime_flags.h"

namespace eta {

template <typename T>
void AddCount(CLI::App& command, const std::string& name, T& value, T low, T high,
              const std::string& help) {
  command.add_option(name, value, help)->check(CLI::Range(low, high))->capture_default_str();
}

inline void AddReal(CLI::App& command, const std::string& name, double& value, double low,
                    double high, const std::string& help) {
  command.add_option(name, value, help)
      ->check([low, high](const std::string& text) { return CheckReal(text, low, high); })
      ->capture_default_str();
}

}  // namespace eta
