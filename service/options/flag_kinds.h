// Kinds of flags. Each function adds one option, which reads `value` and shows its default.
#pragma once

#include <chrono>
#include <limits>
#include <map>
#include <string>

#include "CLI/CLI.hpp"

namespace eta {

// A duration from 0 to a year, such as 500ms, 60s or 15m.
void AddDuration(CLI::App& app, const std::string& name, std::chrono::milliseconds& value,
                 const std::string& help);

// A number of bytes, such as 64MB or 1GiB: powers of 1024.
template <typename T>
CLI::Option* AddBytes(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return app.add_option(name, value, help)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES")
      ->capture_default_str();
}

// A number of at least 1.
template <typename T>
CLI::Option* AddCount(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return app.add_option(name, value, help)
      ->check(CLI::Range(T{1}, std::numeric_limits<T>::max()))
      ->type_name("COUNT")
      ->capture_default_str();
}

// A number of at least 0.
void AddCountOrNone(CLI::App& app, const std::string& name, int& value, const std::string& help);

// `least` to `most`.
void AddShare(CLI::App& app, const std::string& name, double& value, double most,
              const std::string& help, double least = 0.01);

// One of the given names.
template <typename T>
void AddChoice(CLI::App& app, const std::string& name, T& value,
               const std::map<std::string, T>& choices, const std::string& default_name,
               const std::string& help) {
  app.add_option_function<std::string>(
         name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(choices))
      ->default_str(default_name);
}

}  // namespace eta
