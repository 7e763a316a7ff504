#include "calibration/evaluation/attention/attention_comparison.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/attention/fit_constants.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {

void ComparisonFlags::Register(CLI::App& command, const std::string& text_help) {
  runtime.Register(command);
  command.add_option("--text", text, text_help)->required();
  attentions.Register(command);
  command.add_flag("--json", json, "Write the outcome to stdout as JSON");
}

absl::StatusOr<std::unique_ptr<AttentionComparison>> AttentionComparison::Load(
    const ComparisonFlags& flags) {
  if (flags.prefill >= flags.context) return InvalidField("prefill", "must be less than context");
  ASSIGN_OR_RETURN(std::unique_ptr<TextSource> text, TextSource::Open(flags.text));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Load(flags.runtime));
  const KvGeometry geometry =
      MakeKvGeometry(runtime->config(), flags.runtime.kv_dtype, flags.runtime.index_dtype);
  ASSIGN_OR_RETURN(std::vector<EvaluatedAttention> attentions,
                   flags.attentions.Resolve(*runtime, geometry));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Load(runtime->checkpoint().tokenizer_files(), runtime->config()));
  std::unique_ptr<AttentionComparison> comparison(new AttentionComparison());
  comparison->text_ = std::move(text);
  comparison->runtime_ = std::move(runtime);
  comparison->geometry_ = geometry;
  comparison->attentions_ = std::move(attentions);
  comparison->tokenizer_ = std::move(tokenizer);
  return comparison;
}

absl::StatusOr<std::unique_ptr<RunnerPool>> AttentionComparison::MakeRunners(
    int32_t context, std::span<const int32_t> window, int32_t prefill) {
  auto runners = std::make_unique<RunnerPool>(*runtime_, context);
  RETURN_IF_ERROR(FitConstants(runners->Source(), rivals(), window, prefill,
                               tokenizer_->special_ids(), attentions_));
  return runners;
}

}  // namespace eta
