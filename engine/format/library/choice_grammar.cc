#include "engine/format/library/choice_grammar.h"

#include "absl/strings/str_format.h"

namespace eta {
namespace {

// What would end a literal or begin an escape in it, and what a line cannot hold.
bool NeedsEscape(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f || c == '"' || c == '\\';
}

}  // namespace

std::string ChoiceGrammar(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    grammar += i == 0 ? "\"" : " | \"";
    for (const char c : choices[i]) {
      if (NeedsEscape(c)) {
        grammar += absl::StrFormat("\\u%04x", static_cast<unsigned char>(c));
      } else {
        grammar += c;
      }
    }
    grammar += '"';
  }
  return grammar + "\n";
}

}  // namespace eta
