#include "calibration/evaluation/cases/score.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/cases/case_metadata.h"
#include "calibration/evaluation/cases/case_tensors.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/kv_cache.h"
#include "engine/model/rope/rope_base.h"

namespace eta {
namespace {

constexpr int64_t kMaxScoredTokens = int64_t{1} << 20;
constexpr int64_t kMaxLogits = int64_t{1} << 31;

enum Mode : size_t { kFull, kDynamic, kFloor, kFrozen, kRelative };

absl::Status CheckFits(const ScoreCase& score_case, const ModelConfig& config,
                       const KvGeometry& geometry) {
  if (score_case.attention.relative && geometry.index != IndexKind::kOutlier) {
    return InvalidField("index", "must be outlier for relative thresholds");
  }
  if (config.gate == Gate::kSilu && score_case.beta != config.beta) {
    return InvalidField("beta", absl::StrCat("must be the checkpoint's, ", config.beta));
  }
  if (score_case.dynamic && !config.has_predictor) {
    return InvalidField("mode", "must be full or frozen: the checkpoint predicts no thresholds");
  }
  if (score_case.attention.uniform_floor && config.gate == Gate::kNone) {
    return InvalidField("floor", "must be none: the checkpoint has no gate");
  }
  if (score_case.attention.relative && config.gate != Gate::kNone) {
    return InvalidField("mode", "must not be relative: the checkpoint has a gate");
  }
  if (score_case.temper_special && config.gate == Gate::kNone) {
    return InvalidField("special_keys", "must be attend: the checkpoint has no gate");
  }
  if (int64_t{score_case.rows()} * config.vocab_size > kMaxLogits) {
    return InvalidField("tokens", absl::StrCat("leads to more than ", kMaxLogits, " logits"));
  }
  return absl::OkStatus();
}

// One run of a case through the runner.
class ScoreRun {
 public:
  ScoreRun(const ScoreCase& score_case, SequenceRunner& runner,
           std::span<const int32_t> special_ids)
      : case_(score_case),
        runner_(runner),
        special_ids_(special_ids),
        layers_(static_cast<size_t>(runner.config().num_layers)),
        query_heads_(static_cast<size_t>(runner.config().num_query_heads)),
        kv_heads_(static_cast<size_t>(runner.config().num_kv_heads)),
        vocab_size_(static_cast<size_t>(runner.config().vocab_size)),
        rows_(static_cast<size_t>(score_case.rows())) {}

  absl::StatusOr<ScoreResult> Run() {
    result_.rows = static_cast<int64_t>(rows_);
    result_.logits.resize(rows_ * vocab_size_);
    result_.thresholds.resize(layers_ * query_heads_ * rows_);
    result_.tokens_attended.resize(layers_ * query_heads_ * rows_);
    result_.tokens_read.resize(layers_ * kv_heads_ * rows_);
    RETURN_IF_ERROR(runner_.Begin(
        {.attention = case_.attention,
         .frozen_thresholds = case_.thresholds,
         .tempered_ids = case_.temper_special ? special_ids_ : std::span<const int32_t>(),
         .rope_theta = RopeTheta(runner_.config(), static_cast<int64_t>(case_.tokens.size()))}));
    RETURN_IF_ERROR(Prompt());
    for (size_t row = 1; row < rows_; ++row) {
      const auto position = static_cast<size_t>(case_.prompt_tokens) + row - 1;
      RETURN_IF_ERROR(Step(position, 1, RowKind::kDecode, row));
    }
    return std::move(result_);
  }

 private:
  absl::Status Prompt() {
    const auto prompt = static_cast<size_t>(case_.prompt_tokens);
    for (size_t begin = 0; begin < prompt;) {
      const size_t count = std::min(static_cast<size_t>(runner_.max_rows()), prompt - begin);
      RETURN_IF_ERROR(Step(begin, count, RowKind::kPrefill, 0));
      begin += count;
    }
    return absl::OkStatus();
  }

  // Feeds `count` tokens. The last of them fills row `row` of the result.
  absl::Status Step(size_t begin, size_t count, RowKind kind, size_t row) {
    // Full attention counts every key. Prefill rows leave the counts untouched, so they are set
    // here.
    attended_.assign(layers_ * count * query_heads_, static_cast<int32_t>(begin + count));
    read_.assign(layers_ * count * kv_heads_, static_cast<int32_t>(begin + count));
    thresholds_.resize(layers_ * count * query_heads_);
    const auto last = static_cast<int32_t>(count) - 1;
    RETURN_IF_ERROR(
        runner_.Run({.tokens = std::span(case_.tokens).subspan(begin, count),
                     .kind = kind,
                     .logit_rows = std::span(&last, 1),
                     .logits = std::span(result_.logits).subspan(row * vocab_size_, vocab_size_),
                     .outputs = {.tokens_attended = attended_.data(),
                                 .tokens_read = read_.data(),
                                 .thresholds = thresholds_.data()}}));
    Transpose(attended_, query_heads_, count, row, result_.tokens_attended);
    Transpose(read_, kv_heads_, count, row, result_.tokens_read);
    Transpose(thresholds_, query_heads_, count, row, result_.thresholds);
    return absl::OkStatus();
  }

  // Copies the last row of step [L, count, heads] to column `row` of all [L, heads, rows].
  template <typename T>
  void Transpose(const std::vector<T>& step, size_t heads, size_t count, size_t row,
                 std::vector<T>& all) const {
    for (size_t layer = 0; layer < layers_; ++layer) {
      for (size_t head = 0; head < heads; ++head) {
        all[(layer * heads + head) * rows_ + row] =
            step[(layer * count + count - 1) * heads + head];
      }
    }
  }

  const ScoreCase& case_;
  SequenceRunner& runner_;
  const std::span<const int32_t> special_ids_;
  const size_t layers_;
  const size_t query_heads_;
  const size_t kv_heads_;
  const size_t vocab_size_;
  const size_t rows_;
  ScoreResult result_;
  std::vector<int32_t> attended_;  // [L, count, HQ]
  std::vector<int32_t> read_;      // [L, count, HKV]
  std::vector<float> thresholds_;  // [L, count, HQ]
};

}  // namespace

int32_t ScoreCase::rows() const {
  return std::max(1, static_cast<int32_t>(tokens.size()) - prompt_tokens);
}

absl::StatusOr<ScoreCase> ReadScoreCase(const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, OpenCase(path));
  const CaseMetadata& metadata = file.metadata();
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ReadInt32s(file, "tokens", {kAnySize}));
  if (tokens.empty() || tokens.size() > static_cast<size_t>(kMaxScoredTokens)) {
    return InvalidField("tokens", absl::StrCat("must hold 1 to ", kMaxScoredTokens, " ids"));
  }
  ASSIGN_OR_RETURN(const int32_t prompt_tokens,
                   IntegerField(metadata, "prompt_tokens", 1, static_cast<int32_t>(tokens.size())));
  ASSIGN_OR_RETURN(const size_t mode,
                   ChoiceField(metadata, "mode", {"full", "eta", "floor", "frozen", "relative"}));
  ASSIGN_OR_RETURN(const ResolvedAttention attention, AttentionFields(metadata));
  ASSIGN_OR_RETURN(const float beta, RealField(metadata, "beta", 0.0f, 1000.0f));
  const bool relative = mode == kRelative;
  if (attention.options.relative != relative && metadata.contains("thresholds")) {
    return InvalidField("thresholds", "must be relative in mode relative only");
  }
  ASSIGN_OR_RETURN(const float relative_c, relative
                                               ? RealField(metadata, "relative_c", -100.0f, 100.0f)
                                               : absl::StatusOr<float>(0.0f));
  KvGeometry blocks;
  RETURN_IF_ERROR(BlockFields(metadata, blocks));
  if (mode == kFloor && !attention.options.uniform_floor) {
    return InvalidField("floor", "must be uniform in mode floor");
  }

  ScoreCase out = {.tokens = std::move(tokens),
                   .prompt_tokens = prompt_tokens,
                   .block_size = blocks.block_size,
                   .sub_block = blocks.sub_block,
                   .beta = beta,
                   .dynamic = mode == kDynamic || mode == kFloor,
                   .attention = attention.options,
                   .temper_special = attention.temper_special};
  out.attention.admit_all = mode == kFull;
  out.attention.relative = relative;
  out.attention.relative_c = relative_c;
  if (mode == kFrozen) {
    ASSIGN_OR_RETURN(out.thresholds,
                     ReadFloats(file, "profile", DType::kFloat32, {kAnySize, kAnySize}));
  }
  return out;
}

KvGeometry CaseGeometry(const ScoreCase& score_case, const ModelConfig& config, DType dtype,
                        std::optional<DType> index_dtype) {
  KvGeometry geometry = MakeKvGeometry(config, dtype, index_dtype);
  geometry.block_size = score_case.block_size;
  geometry.sub_block = score_case.sub_block;
  return geometry;
}

absl::StatusOr<ScoreResult> RunScore(const ScoreCase& score_case, SequenceRunner& runner,
                                     std::span<const int32_t> special_ids) {
  RETURN_IF_ERROR(CheckFits(score_case, runner.config(), runner.geometry()));
  return ScoreRun(score_case, runner, special_ids).Run();
}

absl::Status WriteScoreResult(const ScoreResult& result, const ModelConfig& config,
                              const std::string& path) {
  const int64_t layers = config.num_layers;
  const std::vector<int64_t> per_head = {layers, config.num_query_heads, result.rows};
  const std::vector<int64_t> per_kv_head = {layers, config.num_kv_heads, result.rows};
  return WriteSafetensors(
      path, {},
      {{"logits", AsTensor(DType::kFloat32, {result.rows, config.vocab_size}, result.logits)},
       {"thresholds", AsTensor(DType::kFloat32, per_head, result.thresholds)},
       {"tokens_attended", AsTensor(DType::kInt32, per_head, result.tokens_attended)},
       {"tokens_read", AsTensor(DType::kInt32, per_kv_head, result.tokens_read)}});
}

}  // namespace eta
