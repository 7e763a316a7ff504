#include "calibration/evaluation/needles/needle_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string NeedlesTable(const ComparisonFlags& flags, const AttentionComparison& comparison,
                         int32_t keys, std::span<const NeedleWindow> windows,
                         std::span<const NeedleScore> scores) {
  const std::vector<EvaluatedAttention>& attentions = comparison.attentions();
  size_t width = 9;
  for (const EvaluatedAttention& attention : attentions) {
    width = std::max(width, attention.name.size());
  }
  const int name_width = static_cast<int>(width);
  std::string table = absl::StrCat(
      windows.size(), " windows of ", flags.context, " tokens with ", keys,
      keys == 1 ? " needle, " : " needles, ",
      flags.prefill > 0 ? absl::StrCat("the first ", flags.prefill, " of each as a prompt")
                        : std::string("all before the question as a prompt"),
      "; ", comparison.runtime().backend().description(), "; index ",
      std::string(Name(comparison.geometry().index)), "\n");
  absl::StrAppendFormat(&table, "%-*s  %8s  %6s  %6s  %s\n", name_width, "attention", "hits",
                        "loss", "union", "by depth, the first at the beginning");
  for (size_t i = 0; i < scores.size(); ++i) {
    std::string signs;
    for (const bool hit : scores[i].hits) signs += hit ? '+' : '-';
    absl::StrAppendFormat(&table, "%-*s  %8s  %6.3f  %6.4f  %s\n", name_width, attentions[i].name,
                          absl::StrCat(scores[i].found(), " of ", windows.size()),
                          scores[i].answer_loss, scores[i].union_density, signs);
  }
  return table;
}

std::string NeedlesJson(const ComparisonFlags& flags, const AttentionComparison& comparison,
                        int32_t keys, std::span<const NeedleWindow> windows,
                        std::span<const NeedleScore> scores) {
  Json json = {{"model", flags.runtime.model_dir},
               {"text", flags.text},
               {"backend", comparison.runtime().backend().description()},
               {"index", std::string(Name(comparison.geometry().index))},
               {"context", flags.context},
               {"prefill", flags.prefill},
               {"keys", keys},
               {"windows", windows.size()}};
  json["depths"] = Json::array();
  for (const NeedleWindow& window : windows) json["depths"].push_back(window.depth);
  json["results"] = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    json["results"].push_back({{"attention", comparison.attentions()[i].name},
                               {"hits", scores[i].found()},
                               {"hit", scores[i].hits},
                               {"answer_loss", scores[i].answer_loss},
                               {"union_density", scores[i].union_density}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eta
