// The sets of a regular expression as JavaScript means them, for the library, which means others:
// its . is every character, and its \s has three spaces and no line ends but those of ASCII.
#pragma once

#include <string>
#include <string_view>

namespace eta {

// The same expression with ., \s and \S written out, alone and in classes.
std::string WithJavaScriptSets(std::string_view regex);

}  // namespace eta
