#include "calibration/evaluation/prove/proof_run.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/text/text_source.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

// Of what a proof measures and how: one more, and old logs are of another proof.
constexpr const char* kProofVersion = "1";
constexpr size_t kMostHaystackBytes = size_t{8} << 20;
// Evaluation sets that are no prose.
constexpr std::string_view kNoProse[] = {"code", "legal"};

// The beginning of a file's SHA-256.
absl::StatusOr<std::string> FileDigest(const std::string& field, const std::string& path) {
  const absl::StatusOr<InputFile> file = InputFile::Open(path, {.allow_writable_by_others = true});
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat(field, ": ", std::string(file.status().message())));
  }
  ASSIGN_OR_RETURN(const std::string digest, file->Sha256Hex());
  return digest.substr(0, 16);
}

std::string FloatBytes(std::span<const float> values) {
  std::string bytes(values.size_bytes(), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// All that decides what the way attends to. A profile counts by its numbers, not by its file.
std::string WayText(const EvaluatedAttention& way) {
  std::string text = way.rival ? way.name : std::string();
  ForEachSetting([&](const AttentionField& field, auto member) {
    const auto value = UsedSettings(way).*member;
    if (value) absl::StrAppendFormat(&text, " %s=%.9g", field.name, static_cast<double>(*value));
  });
  absl::StrAppendFormat(&text, " full=%d relative=%d c=%.9g ", way.options.admit_all,
                        way.options.relative, way.options.relative_c);
  if (way.profile) text += FloatBytes(way.profile->thresholds);
  if (way.head_z) text += FloatBytes(way.profile->head_z);
  return text;
}

absl::StatusOr<std::string> TextsPart(const TableBench& bench) {
  std::vector<std::string> parts;
  for (const BenchText& text : bench.Texts()) {
    ASSIGN_OR_RETURN(const std::string digest, FileDigest("text", text.path));
    parts.push_back(absl::StrCat(text.name, " ", digest));
  }
  return absl::StrJoin(parts, ", ");
}

absl::StatusOr<std::string> TrafficKey(const ProofInput& input) {
  if (input.traffic.empty()) return "none";
  ASSIGN_OR_RETURN(const std::string digest, FileDigest("traffic", input.traffic));
  return absl::StrCat(digest, ", ", input.plan.prompts, " prompts",
                      input.parse_special ? ", control tokens as such" : "");
}

std::string SamplesPart(const ProofPlan& plan) {
  return absl::StrCat(plan.first_questions, " questions first, ", plan.questions, " in all; ",
                      plan.windows, " windows; ", plan.continuation, " tokens behind a prompt; ",
                      plan.speed_turns, " turns of ", plan.speed_steps, " steps");
}

}  // namespace

absl::StatusOr<std::vector<EvaluatedAttention>> ProofWays(TableBench& bench,
                                                          const std::string& attention) {
  const KvGeometry geometry = bench.Geometry();
  std::vector<EvaluatedAttention> ways;
  for (const std::string& name : {std::string("full"), attention}) {
    ASSIGN_OR_RETURN(EvaluatedAttention way, bench.Attention(name, geometry));
    ways.push_back(std::move(way));
  }
  if (ways[1].geometry != geometry) {
    return InvalidField("attention", "must run on the model's cache: without block_size and index");
  }
  if (ways[1].constants) {
    return InvalidField("attention", "must not be constants: they are fitted to the text itself");
  }
  return ways;
}

std::string WayInWords(const EvaluatedAttention& way) {
  std::string text;
  if (way.rival) text = "a rival; ";
  if (way.profile) text = absl::StrCat("profile ", way.profile->name, "; ");
  if (way.options.relative && !way.rival) {
    absl::StrAppendFormat(&text, "relative, c %g; ", way.options.relative_c);
  }
  text += Describe(UsedSettings(way));
  return text.empty() ? "every key" : text;
}

absl::StatusOr<ProofKey> MakeProofKey(TableBench& bench, const EvaluatedAttention& way,
                                      const ProofInput& input) {
  ASSIGN_OR_RETURN(const std::string model,
                   ModelFingerprint(bench.config(), bench.runtime().checkpoint()));
  ASSIGN_OR_RETURN(const std::string attention, Sha256Hex(WayText(way)));
  ASSIGN_OR_RETURN(const std::string texts, TextsPart(bench));
  ASSIGN_OR_RETURN(const std::string traffic, TrafficKey(input));
  const KvGeometry geometry = bench.Geometry();
  return ProofKey{{"model", model},
                  {"attention", attention},
                  {"backend", bench.runtime().backend().description()},
                  {"cache", absl::StrCat(std::string(Name(geometry.dtype)), ", index ",
                                         std::string(Name(geometry.index)), " ",
                                         std::string(Name(geometry.index_dtype)))},
                  {"lengths", absl::StrJoin(input.plan.lengths, " ")},
                  {"samples", SamplesPart(input.plan)},
                  {"seed", absl::StrCat(bench.settings().seed)},
                  {"texts", texts},
                  {"traffic", traffic},
                  {"version", kProofVersion}};
}

absl::StatusOr<QuestionSource> RulerQuestions(TableBench& bench) {
  std::vector<std::string> documents;
  size_t bytes = 0;
  for (const BenchText& text : bench.Texts()) {
    if (bench.settings().texts.empty() &&
        std::ranges::find(kNoProse, text.name) != std::ranges::end(kNoProse)) {
      continue;
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source, TextSource::Open(text.path));
    while (bytes < kMostHaystackBytes) {
      ASSIGN_OR_RETURN(std::optional<std::string> document, source->Next());
      if (!document.has_value()) break;
      bytes += document->size();
      documents.push_back(*std::move(document));
    }
  }
  const auto tasks = std::make_shared<const RulerTasks>(std::move(documents), bench.tokenizer(),
                                                        bench.settings().seed);
  return QuestionSource([tasks](int task, int32_t length, int32_t number) {
    return tasks->Make(task, length, number);
  });
}

absl::StatusOr<ProofScores> MeasureProof(TableBench& bench,
                                         const std::vector<EvaluatedAttention>& ways,
                                         const ProofInput& input, const QuestionSource& questions,
                                         ProofLog& log, ProofClock& clock) {
  TrafficPrompts prompts;
  if (!input.traffic.empty()) {
    ASSIGN_OR_RETURN(
        prompts, ReadTraffic(input.traffic, bench.tokenizer(), input.parse_special, input.plan));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner,
                   bench.MakeRunner(bench.Geometry(), input.plan.longest()));
  const ProofBench on = {.bench = bench,
                         .runner = *runner,
                         .ways = ways,
                         .plan = input.plan,
                         .log = log,
                         .clock = clock};
  // All say what is left before the first one begins.
  std::vector<std::unique_ptr<ProofPart>> parts;
  parts.push_back(SpeedPart(on));
  parts.push_back(TextPart(on));
  parts.push_back(TrafficPart(on, std::move(prompts)));
  parts.push_back(RulerPart(on, questions));
  ProofScores scores;
  for (const std::unique_ptr<ProofPart>& part : parts) RETURN_IF_ERROR(part->Measure(scores));
  return scores;
}

}  // namespace eta
