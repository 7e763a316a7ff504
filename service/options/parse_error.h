// What the writer of a wrong command line is told.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace eta {

// One sentence about the first word that the command line should not have, an option before a
// value: whatever else is wrong may only follow from it. Without such a word what the library says.
// REQUIRES: the parse of `app` has just ended with `error`.
std::string DescribeParseError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace eta
