#include "service/options/parse_error.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr size_t kMostTypingErrors = 2;

// Levenshtein's distance; "-" and "_" are one letter, since other programs use the other.
size_t TypingErrors(std::string_view given, std::string_view meant) {
  std::vector<size_t> row(meant.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < given.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < meant.size(); ++j) {
      const bool dashes = (given[i] == '-' && meant[j] == '_');
      const size_t replaced = diagonal + (given[i] == meant[j] || dashes ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// The option of these commands that is spelled most like `name`; empty: none is.
std::string NearestOption(const std::vector<const CLI::App*>& commands, std::string_view name) {
  std::string nearest;
  size_t least = kMostTypingErrors + 1;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& known : option->get_lnames()) {
        const size_t errors = TypingErrors(name, known);
        if (errors >= least || errors >= known.size()) continue;
        least = errors;
        nearest = known;
      }
    }
  }
  return nearest;
}

}  // namespace

std::string DescribeParseError(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<const CLI::App*> commands = {&app};
  std::string path = app.get_name();
  while (!commands.back()->get_subcommands().empty()) {
    commands.push_back(commands.back()->get_subcommands().back());
    absl::StrAppend(&path, " ", commands.back()->get_name());
  }
  const std::string help = absl::StrCat(" (see ", path, " --help)");

  std::vector<std::string> unexpected = app.remaining(/*recurse=*/true);
  std::erase(unexpected, "--");
  if (unexpected.empty()) return error.what() + help;
  const auto option = std::find_if(unexpected.begin(), unexpected.end(), [](const auto& word) {
    return word.size() > 1 && word[0] == '-';
  });
  if (option != unexpected.end()) {
    const std::string given = option->substr(0, option->find('='));
    const size_t name = std::min(given.find_first_not_of('-'), given.size());
    const std::string nearest = NearestOption(commands, std::string_view(given).substr(name));
    const std::string meant =
        nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?");
    return absl::StrCat(given, ": no such option", meant, help);
  }
  const bool awaits_command =
      !commands.back()->get_subcommands([](const CLI::App*) { return true; }).empty();
  return absl::StrCat(unexpected[0], ": ",
                      awaits_command
                          ? "no such command"
                          : "one argument too many; a text of several words needs quotes",
                      help);
}

}  // namespace eta
