#include "calibration/evaluation/prove/proof_page.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/prove/proof_tables.h"
#include "calibration/evaluation/tables/table.h"
#include "engine/base/files/output_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using PageJson = nlohmann::ordered_json;

constexpr int kShownDigits = 8;  // of a fingerprint

std::string InUnit(const ProofRule& rule, double value) {
  if (rule.unit == "x") return absl::StrFormat("%.3fx", value);
  return absl::StrFormat("%+.*f %s", rule.unit == "%" ? 2 : 1, value, rule.unit);
}

std::string Measured(const ProofRule& rule) {
  if (!rule.value) return "nothing";
  std::string text = InUnit(rule, *rule.value);
  if (rule.interval) {
    absl::StrAppend(&text, " (", InUnit(rule, rule.interval->first), " to ",
                    InUnit(rule, rule.interval->second), ")");
  }
  return text;
}

std::string Tolerance(const ProofRule& rule) {
  const std::string bound = InUnit(rule, rule.bound);
  if (rule.name == "task") return "no interval wholly under " + bound;
  return (rule.at_most ? "at most " : "at least ") + bound;
}

// What the first screen says beside the rules.
std::vector<std::string> Remarks(const Proof& proof) {
  std::vector<std::string> remarks;
  std::vector<std::string> left_out;
  for (const TaskOutcome& task : proof.verdict.tasks) {
    if (task.counts) continue;
    left_out.push_back(absl::StrFormat("%s (%.0f %%)", task.task, 100.0 * task.full));
  }
  if (!left_out.empty()) {
    remarks.push_back(absl::StrFormat("%s, since full attention itself scores under %.0f %%: %s.",
                                      proof.verdict.macro ? "Left out" : "No task of RULER is left",
                                      100.0 * kLeastFullScore, absl::StrJoin(left_out, ", ")));
  }
  const std::optional<MacroOutcome>& macro = proof.verdict.macro;
  if (!proof.quick && macro && macro->more.half_width.value_or(1.0) > kShownLoss) {
    remarks.push_back(absl::StrFormat(
        "The answers differ more than was expected: the interval of the mean is wider than the "
        "%.0f points that the number of questions was chosen for.",
        100.0 * kShownLoss));
  }
  double tokens = 0.0;
  double read = 0.0;
  for (const TextScore& text : proof.scores.texts) {
    tokens += text.tokens;
    read += text.tokens * text.union_density;
  }
  if (tokens > 0.0) {
    remarks.push_back(
        absl::StrFormat("It reads %.0f %% of the keys of the texts below.", 100.0 * read / tokens));
  }
  if (proof.scores.speeds.empty()) {
    remarks.push_back(absl::StrCat("Speed was not measured: ", proof.scores.no_speed, "."));
  }
  if (proof.scores.traffic.empty()) {
    remarks.push_back("Your own prompts were not measured: there was no `--traffic`.");
  }
  return remarks;
}

std::string VerdictLine(const Proof& proof) {
  if (proof.quick) return "No verdict: `--quick` measures too little for one.";
  if (proof.verdict.holds()) return "Pass: all that was measured lies within the tolerance.";
  std::vector<std::string> broken;
  for (const ProofRule& rule : proof.verdict.rules) {
    if (!rule.holds) broken.push_back(rule.what);
  }
  return absl::StrCat("Fail: ", absl::StrJoin(broken, "; "), ".");
}

PageJson RuleJson(const Proof& proof, const ProofRule& rule) {
  PageJson json = {{"name", rule.name}, {"what", rule.what}, {"unit", rule.unit}};
  json["value"] = rule.value ? PageJson(*rule.value) : PageJson();
  json["interval"] =
      rule.interval ? PageJson({rule.interval->first, rule.interval->second}) : PageJson();
  json[rule.at_most ? "at_most" : "at_least"] = rule.bound;
  json["holds"] = proof.quick ? PageJson() : PageJson(rule.holds);
  return json;
}

std::string Short(const std::string& digest) {
  return digest.substr(0, kShownDigits);
}

std::string Part(const ProofKey& key, const std::string& name) {
  const auto part = std::ranges::find(key, name, &ProofKey::value_type::first);
  return part == key.end() ? std::string() : part->second;
}

}  // namespace

std::optional<std::string> VerdictOf(const Proof& proof) {
  if (proof.quick) return std::nullopt;
  return proof.verdict.holds() ? "pass" : "fail";
}

std::string ProofText(const Proof& proof) {
  std::string text = absl::StrCat(VerdictLine(proof), "\n");
  for (const ProofRule& rule : proof.verdict.rules) {
    absl::StrAppendFormat(&text, "%-5s  %s: %s, %s\n",
                          proof.quick ? "" : (rule.holds ? "holds" : "FAILS"), rule.what,
                          Measured(rule), Tolerance(rule));
  }
  for (const std::string& remark : Remarks(proof)) absl::StrAppend(&text, remark, "\n");
  return text;
}

std::string ProofJson(const Proof& proof) {
  const std::optional<std::string> verdict = VerdictOf(proof);
  PageJson json = {{"format", "eta-proof"},
                   {"verdict", verdict ? PageJson(*verdict) : PageJson()},
                   {"model", proof.model},
                   {"attention", proof.attention},
                   {"settings", proof.settings},
                   {"command", proof.command},
                   {"fingerprint", proof.fingerprint}};
  json["measured_on"] = PageJson::object();
  for (const auto& [name, value] : proof.key) json["measured_on"][name] = value;
  json["tolerance"] = {{"macro_points", proof.tolerance.macro_points},
                       {"task_points", proof.tolerance.task_points},
                       {"perplexity_increase", proof.tolerance.perplexity_increase},
                       {"speed", proof.tolerance.speed}};
  json["rules"] = PageJson::array();
  for (const ProofRule& rule : proof.verdict.rules) json["rules"].push_back(RuleJson(proof, rule));
  json["remarks"] = Remarks(proof);
  json["tables"] = PageJson::array();
  for (const Table& table : ProofTables(proof.scores, proof.verdict, proof.plan)) {
    json["tables"].push_back(PageJson::parse(TableJson(table), nullptr, false));
  }
  return json.dump(2, ' ', false, PageJson::error_handler_t::replace) + "\n";
}

std::string ProofMarkdown(const Proof& proof, const std::string& json_sha256) {
  std::string page =
      absl::StrCat("# Proof of `", proof.attention, "`\n\n**", VerdictLine(proof),
                   "**\n\nMeasured with: ", proof.model, " @ ", Short(Part(proof.key, "model")),
                   ", attention @ ", Short(Part(proof.key, "attention")), " (", proof.settings,
                   ").\n\n| rule | measured, 95 % interval | tolerance | |\n"
                   "|---|---:|---:|---|\n");
  for (const ProofRule& rule : proof.verdict.rules) {
    const char* holds = proof.quick ? "" : (rule.holds ? "holds" : "**fails**");
    absl::StrAppend(&page, "| ", rule.what, " | ", Measured(rule), " | ", Tolerance(rule), " | ",
                    holds, " |\n");
  }
  page += "\n";
  for (const std::string& remark : Remarks(proof)) absl::StrAppend(&page, "- ", remark, "\n");
  for (const Table& table : ProofTables(proof.scores, proof.verdict, proof.plan)) {
    absl::StrAppend(&page, "\n", TableMarkdown(table, table.name + ".svg"));
  }
  absl::StrAppend(&page, "\n## How it was measured\n\n```\n", proof.command, "\n```\n\n",
                  "\"Sparse\" is `", proof.attention,
                  "`. A verdict is of the measured values; a task alone is judged by its interval. "
                  "`units.jsonl` has every question, with both answers where their scores "
                  "differ.\n\n");
  for (const auto& [name, value] : proof.key) {
    absl::StrAppend(&page, "- ", name, ": `", value, "`\n");
  }
  absl::StrAppend(&page, "- fingerprint of all of these: `", proof.fingerprint,
                  "`\n- SHA-256 of `proof.json`: `", json_sha256, "`\n");
  return page;
}

std::string ProofLabel(const Proof& proof, const std::string& json_sha256) {
  const ProofTolerance& tolerance = proof.tolerance;
  return absl::StrFormat(
      "%s sha256:%s macro_points=%g task_points=%g perplexity_increase=%g "
      "speed=%g",
      VerdictOf(proof).value_or("none"), json_sha256, tolerance.macro_points, tolerance.task_points,
      tolerance.perplexity_increase, tolerance.speed);
}

absl::StatusOr<std::string> WriteProof(const Proof& proof, const std::string& folder) {
  const std::string json = ProofJson(proof);
  ASSIGN_OR_RETURN(std::string digest, Sha256Hex(json));
  RETURN_IF_ERROR(WriteWholeFile(folder + "/proof.json", json));
  for (const Table& table : ProofTables(proof.scores, proof.verdict, proof.plan)) {
    const std::string picture = TableSvg(table);
    if (picture.empty()) continue;
    RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(folder, "/", table.name, ".svg"), picture));
  }
  RETURN_IF_ERROR(WriteWholeFile(folder + "/proof.md", ProofMarkdown(proof, digest)));
  return digest;
}

}  // namespace eta
