// A choice between texts as an EBNF grammar.
#pragma once

#include <string>
#include <vector>

namespace eta {

// Texts are UTF-8, at least one.
std::string ChoiceGrammar(const std::vector<std::string>& choices);

}  // namespace eta
