// Variable tracking (RULER, section 3.2), with one example in front, as there.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/needles/ruler_form.h"
#include "calibration/needles/ruler_haystack.h"
#include "calibration/needles/ruler_words.h"

namespace eta {
namespace {

constexpr size_t kChainHops = 4;
constexpr int kNameLetters = 5;
constexpr int kExampleLetters = 3;  // so that no name of an example is one of the question
constexpr size_t kExampleLines = 6;
constexpr int32_t kChainOutput = 30;

struct VariableChain {
  std::vector<std::string> names;
  std::vector<std::string> statements;
  std::vector<uint64_t> depths;
  std::string value;
};

VariableChain DrawChain(int letters, const std::vector<std::string>& taken_values, Draws& draws) {
  VariableChain chain;
  chain.value =
      DrawAnother(taken_values, [&] { return absl::StrCat(10'000 + draws.Below(90'000)); });
  std::string value = chain.value;
  while (chain.names.size() <= kChainHops) {
    chain.names.push_back(
        DrawAnother(chain.names, [&] { return DrawLetters(letters, 'A', draws); }));
    const std::string variable = absl::StrCat("VAR ", chain.names.back());
    chain.statements.push_back(absl::StrCat(variable, " = ", value));
    value = variable;
  }
  chain.depths = DrawDepths(chain.statements.size(), draws);
  return chain;
}

std::string AskForVariables(const VariableChain& chain, size_t lines) {
  const std::string text = HideStatements([](size_t) { return std::string(kRulerNoise); }, lines,
                                          chain.statements, chain.depths, "\n");
  return absl::StrCat(
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
      text, "\nQuestion: Find all variables that are assigned the value ", chain.value,
      " in the text above. Answer: According to the chain(s) of variable assignment in the text "
      "above, ",
      chain.names.size(), " variables are assigned the value ", chain.value, ", they are:");
}

}  // namespace

RulerForm VariablesForm(RulerSource source) {
  const VariableChain chain = DrawChain(kNameLetters, {}, source.question);
  const VariableChain example = DrawChain(kExampleLetters, {chain.value}, source.question);
  const std::string beginning = absl::StrCat(AskForVariables(example, kExampleLines), " ",
                                             absl::StrJoin(example.names, " "), "\n\n");
  return {.prompt = [=](size_t units) { return beginning + AskForVariables(chain, units); },
          .least_units = chain.statements.size(),
          .answers = chain.names,
          .max_tokens = kChainOutput};
}

}  // namespace eta
