#include "engine/request/pass_validation.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

absl::Status OutOfRange(const std::string& field, int64_t low, int64_t high) {
  return InvalidField(field, absl::StrCat("must be ", low, " to ", high));
}

absl::Status CheckBins(const Pass& pass) {
  if (!pass.bins) return absl::OkStatus();
  const ScoreBins& bins = *pass.bins;
  if (bins.count < 1 || bins.count > kMaxScoreBins)
    return OutOfRange("bins.count", 1, kMaxScoreBins);
  // NaN is in no range.
  if (!(bins.low >= -kMaxScoreRange && bins.low < bins.high && bins.high <= kMaxScoreRange)) {
    return InvalidField(
        "bins", absl::StrCat("low must lie below high, both within ", kMaxScoreRange, " of 0"));
  }
  const int64_t first = std::max<int64_t>(0, int64_t{pass.decode_from} - kMaxCalibrationRows);
  if (pass.collect_from < first || pass.collect_from > pass.decode_from) {
    return OutOfRange("collect_from", first, pass.decode_from);
  }
  return absl::OkStatus();
}

absl::Status CheckLogitRows(const Pass& pass, int32_t vocab_size) {
  if (pass.logit_rows.empty()) return absl::OkStatus();
  if (!pass.loss_from) return InvalidField("logit_rows", "needs loss_from beside it");
  const int64_t most = kMaxPassLogitBytes / (int64_t{vocab_size} * int64_t{sizeof(float)});
  if (std::ssize(pass.logit_rows) > most) {
    return InvalidField("logit_rows",
                        absl::StrCat("at most ", most, ": the logits of so many rows are ",
                                     kMaxPassLogitBytes >> 20, " MiB"));
  }
  const int64_t last = std::ssize(pass.tokens) - 2;
  int32_t least = *pass.loss_from;
  for (const int32_t row : pass.logit_rows) {
    if (row < least || row > last) {
      return InvalidField("logit_rows", absl::StrCat("must ascend from ", *pass.loss_from, " to ",
                                                     last, " at most"));
    }
    least = row + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePass(const Pass& pass, const EngineInfo& model, const Limits& limits) {
  const auto num_tokens = static_cast<int64_t>(pass.tokens.size());
  if (num_tokens < 1 || num_tokens > limits.max_context) {
    return InvalidField(
        "tokens", absl::StrCat("must be 1 to ", limits.max_context, " ids, not ", num_tokens));
  }
  RETURN_IF_ERROR(CheckTokenIds("tokens", pass.tokens, model.config.vocab_size));
  if (pass.decode_from < 0 || pass.decode_from > num_tokens) {
    return OutOfRange("decode_from", 0, num_tokens);
  }
  if (pass.loss_from && (*pass.loss_from < 0 || *pass.loss_from >= num_tokens)) {
    return OutOfRange("loss_from", 0, num_tokens - 1);
  }
  RETURN_IF_ERROR(CheckLogitRows(pass, model.config.vocab_size));
  RETURN_IF_ERROR(CheckBins(pass));
  return ValidateAttention(pass.attention, model);
}

}  // namespace eta
