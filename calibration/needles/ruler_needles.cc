// Needles in a haystack (RULER, section 3.1).

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/needles/needle_text.h"
#include "calibration/needles/ruler_form.h"
#include "calibration/needles/ruler_haystack.h"
#include "calibration/needles/ruler_words.h"

namespace eta {
namespace {

constexpr int32_t kNeedleOutput = 128;

std::string DrawNeedleKey(const RulerNeedles& needles, Draws& draws) {
  return needles.uuid_keys ? DrawUuid(draws) : DrawKey(draws);
}

std::string DrawNeedleValue(const RulerNeedles& needles, Draws& draws) {
  return needles.uuid_values ? DrawUuid(draws) : NeedleNumber(draws.Below(kNeedleNumbers));
}

std::string StateNeedle(const char* noun, const std::string& key, const std::string& value) {
  return absl::StrCat("One of the special magic ", noun, "s for ", key, " is: ", value, ".");
}

// "a", "a, and b", "a, b, and c"
std::string ListKeys(std::vector<std::string> keys) {
  if (keys.size() > 1) keys.back() = absl::StrCat("and ", keys.back());
  return absl::StrJoin(keys, ", ");
}

// Needles of keys that are not asked for.
RulerUnit OtherNeedles(const RulerNeedles& needles, const char* noun,
                       const std::vector<std::string>& asked, Draws draws) {
  return [=, lines = std::vector<std::string>()](size_t index) mutable {
    while (lines.size() <= index) {
      const std::string key = DrawAnother(asked, [&] { return DrawNeedleKey(needles, draws); });
      lines.push_back(StateNeedle(noun, key, DrawNeedleValue(needles, draws)));
    }
    return lines[index];
  };
}

RulerUnit SentencesFrom(const std::vector<std::string>& sentences, Draws& draws) {
  const size_t begin = draws.Below(std::max<size_t>(sentences.size(), 1));
  return
      [&sentences, begin](size_t index) { return sentences[(begin + index) % sentences.size()]; };
}

std::string AskForNeedles(const char* noun, bool one, const std::string& haystack,
                          const std::string& keys) {
  const std::string nouns = absl::StrCat(noun, one ? "" : "s");
  const std::string asked =
      absl::StrCat(" special magic ", nouns, " for ", keys, " mentioned in the provided text");
  return absl::StrCat(one ? "A" : "Some", " special magic ", nouns, one ? " is" : " are",
                      " hidden within the following text. Make sure to memorize it. I will quiz "
                      "you about the ",
                      nouns, " afterwards.\n", haystack, "\nWhat", one ? " is the" : " are all the",
                      asked, "? The", asked, one ? " is" : " are");
}

}  // namespace

RulerForm NeedlesForm(const RulerNeedles& needles, RulerSource source) {
  RulerForm form = {.least_units = needles.keys * needles.values, .max_tokens = kNeedleOutput};
  Draws& draws = source.question;
  const char* noun = needles.uuid_values ? "uuid" : "number";
  std::vector<std::string> asked;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  std::vector<std::string> statements;
  while (keys.size() < needles.keys) {
    keys.push_back(DrawAnother(keys, [&] { return DrawNeedleKey(needles, draws); }));
    for (size_t i = 0; i < needles.values; ++i) {
      values.push_back(DrawAnother(values, [&] { return DrawNeedleValue(needles, draws); }));
      statements.push_back(StateNeedle(noun, keys.back(), values.back()));
    }
    if (keys.size() == needles.queries) {
      asked = keys;
      form.answers = values;
    }
  }
  Shuffle(statements, draws);
  const std::vector<uint64_t> depths = DrawDepths(statements.size(), draws);

  RulerUnit unit = [](size_t) { return std::string(kRulerNoise); };
  std::string separator = "\n";
  if (needles.haystack == RulerHaystack::kNeedles) {
    unit = OtherNeedles(needles, noun, asked, source.units);
  }
  if (needles.haystack == RulerHaystack::kEssays) {
    form.most_units = source.text.sentences.size();
    unit = SentencesFrom(source.text.sentences, source.units);
    separator = " ";
  }
  form.prompt = [=, one = form.answers.size() == 1, names = ListKeys(asked)](size_t units) {
    return AskForNeedles(noun, one, HideStatements(unit, units, statements, depths, separator),
                         names);
  };
  return form;
}

}  // namespace eta
