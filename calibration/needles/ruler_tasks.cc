#include "calibration/needles/ruler_tasks.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "calibration/needles/ruler_form.h"

namespace eta {
namespace {

struct RulerTask {
  std::string_view name;
  RulerForm (*form)(RulerSource source);
};

constexpr RulerTask kRulerTaskList[kRulerTasks] = {
    {"niah_single_1",
     [](RulerSource source) { return NeedlesForm({.haystack = RulerHaystack::kNoise}, source); }},
    {"niah_single_2", [](RulerSource source) { return NeedlesForm({}, source); }},
    {"niah_single_3",
     [](RulerSource source) { return NeedlesForm({.uuid_values = true}, source); }},
    {"niah_multikey_1", [](RulerSource source) { return NeedlesForm({.keys = 4}, source); }},
    {"niah_multikey_2",
     [](RulerSource source) { return NeedlesForm({.haystack = RulerHaystack::kNeedles}, source); }},
    {"niah_multikey_3",
     [](RulerSource source) {
       return NeedlesForm(
           {.haystack = RulerHaystack::kNeedles, .uuid_keys = true, .uuid_values = true}, source);
     }},
    {"niah_multivalue", [](RulerSource source) { return NeedlesForm({.values = 4}, source); }},
    {"niah_multiquery",
     [](RulerSource source) { return NeedlesForm({.keys = 4, .queries = 4}, source); }},
    {"vt", VariablesForm},
    {"cwe", CommonWordsForm},
    {"fwe", FrequentWordsForm},
    {"qa_1", [](RulerSource source) { return DocumentsForm(1, source); }},
    {"qa_2", [](RulerSource source) { return DocumentsForm(2, source); }},
};

}  // namespace

std::string_view RulerTaskName(int task) {
  return kRulerTaskList[task].name;
}

double ScoreRulerOutput(const RulerQuestion& question, std::string_view output) {
  const std::string given = absl::AsciiStrToLower(std::string(output));
  double found = 0.0;
  for (const std::string& answer : question.answers) {
    if (absl::StrContains(given, absl::AsciiStrToLower(answer))) found += 1.0;
  }
  if (question.any) return found > 0.0 ? 1.0 : 0.0;
  return found / static_cast<double>(question.answers.size());
}

RulerTasks::RulerTasks(const std::vector<std::string>& text, const Tokenizer& tokenizer,
                       uint64_t seed)
    : text_(MakeRulerText(text)), tokenizer_(tokenizer), seed_(seed) {}

absl::StatusOr<RulerQuestion> RulerTasks::Make(int task, int32_t length, int32_t number) const {
  const uint64_t drawn = static_cast<uint64_t>(number) * kRulerTasks + static_cast<uint64_t>(task);
  const RulerForm form =
      kRulerTaskList[task].form({.text = text_,
                                 .length = length,
                                 .question = Draws(seed_, DrawPurpose::kRulerQuestion, drawn),
                                 .units = Draws(seed_, DrawPurpose::kRulerUnits, drawn)});
  return FitRulerForm(std::string(RulerTaskName(task)), form, tokenizer_, length);
}

}  // namespace eta
