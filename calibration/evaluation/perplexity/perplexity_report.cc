#include "calibration/evaluation/perplexity/perplexity_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/request/request_validation.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::ordered_json;

std::string IntervalMethod() {
  return absl::StrCat("95 %, Student's t over the mean losses of windows, at least ",
                      kMinIntervalBlocks, " of them; ratios pair the same tokens");
}

std::string WithInterval(const MeanInterval& loss) {
  if (!loss.half_width) return absl::StrFormat("%.4f", std::exp(loss.mean));
  return absl::StrFormat("%.4f [%.4f, %.4f]", std::exp(loss.mean),
                         std::exp(loss.mean - *loss.half_width),
                         std::exp(loss.mean + *loss.half_width));
}

std::string OrDash(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.5f", *value) : std::string("-");
}

Json IntervalJson(const MeanInterval& loss) {
  Json json = {{"value", std::exp(loss.mean)}, {"low", nullptr}, {"high", nullptr}};
  if (loss.half_width) {
    json["low"] = std::exp(loss.mean - *loss.half_width);
    json["high"] = std::exp(loss.mean + *loss.half_width);
  }
  return json;
}

Json AttentionJson(const EvaluatedAttention& attention, const AttentionScore& score) {
  Json json = {{"attention", attention.name}};
  if (attention.profile) json["profile"] = attention.profile->name;
  const AttentionOptions& options = attention.options;
  if (attention.head_z) json["z_per_head"] = attention.profile->head_z;
  const AttentionSettings used = UsedSettings(attention);
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!(used.*member)) return;
    const auto value = *(used.*member);
    if constexpr (std::is_same_v<decltype(value), const bool>) {
      if (!field.IsYesOrNo()) {
        json[field.name] = field.Word(value);
        return;
      }
    }
    json[field.name] = value;
  });
  if (options.relative) json["relative_threshold"] = options.relative_c;
  if (attention.geometry.block_size > 0) {
    json["block_size"] = attention.geometry.block_size;
    json["index"] = std::string(Name(attention.geometry.index));
  }
  json["tokens"] = score.losses.size();
  json["loss"] = score.loss.mean;
  json["perplexity"] = IntervalJson(score.loss);
  json["perplexity_ratio_to_first"] = IntervalJson(score.loss_over_first);
  json["top_1"] = score.top_1;
  json["head_density"] = score.head_density;
  json["union_density"] = score.union_density;
  json["v_read"] = score.v_read;
  if (score.prefill_density) json["prefill_density"] = *score.prefill_density;
  json["index_read"] = score.index_read;
  json["bytes_read"] = score.bytes_read();
  json["recall"] = score.recall ? Json(*score.recall) : Json(nullptr);
  if (!score.head_recall.empty()) {
    const auto& heads = score.head_recall;
    json["mean_head_recall"] =
        std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
    json["least_head_recall"] = *std::min_element(heads.begin(), heads.end());
  }
  if (score.shadow) {
    json["mass_kept"] = score.shadow->mass;
    json["mass_kept_1st_percentile"] = score.shadow->least_mass;
    json["output_error"] = score.shadow->error;
    json["shadow_rows"] = score.shadow->rows;
  }
  if (score.divergence) json["kl_from_first"] = *score.divergence;
  json["tokens_per_second"] = score.tokens_per_second;
  return json;
}

}  // namespace

std::string PerplexityTable(const ComparisonFlags& flags, const AttentionComparison& comparison,
                            int64_t windows, std::span<const AttentionScore> scores) {
  const std::vector<EvaluatedAttention>& attentions = comparison.attentions();
  const KvGeometry& geometry = comparison.geometry();
  size_t width = 9;
  for (const EvaluatedAttention& attention : attentions) {
    width = std::max(width, attention.name.size());
  }
  const int name_width = static_cast<int>(width);
  std::string table =
      absl::StrCat(windows, " windows of ", flags.context, " tokens, the first ", flags.prefill,
                   " of each as a prompt; ", comparison.runtime().backend().description(),
                   "; KV cache ", std::string(Name(geometry.dtype)), ", index ",
                   std::string(Name(geometry.index)), " ", std::string(Name(geometry.index_dtype)),
                   ", weights ", std::string(Name(flags.runtime.weights)), "\n");
  const bool shadow = std::ranges::any_of(
      scores, [](const AttentionScore& score) { return score.shadow.has_value(); });
  const bool sparse_prefill = std::ranges::any_of(
      scores, [](const AttentionScore& score) { return score.prefill_density.has_value(); });
  absl::StrAppend(&table,
                  absl::StrFormat("%-*s  %-28s  %-26s  %6s  %6s  %6s  %6s  %6s  %7s", name_width,
                                  "attention", "perplexity", "ratio to the first", "top-1", "head",
                                  "union", "v read", "bytes", "recall"));
  if (sparse_prefill) absl::StrAppendFormat(&table, "  %7s", "prefill");
  const bool divergence = std::ranges::any_of(
      scores, [](const AttentionScore& score) { return score.divergence.has_value(); });
  if (divergence) absl::StrAppendFormat(&table, "  %7s", "1000 KL");
  if (shadow) absl::StrAppendFormat(&table, "  %7s  %7s  %7s", "mass", "mass p1", "error");
  absl::StrAppendFormat(&table, "  %9s\n", "tokens/s");
  for (size_t i = 0; i < scores.size(); ++i) {
    const AttentionScore& score = scores[i];
    absl::StrAppend(&table,
                    absl::StrFormat("%-*s  %-28s  %-26s  %6.4f  %6.4f  %6.4f  %6.4f  %6.4f  %7s",
                                    name_width, attentions[i].name, WithInterval(score.loss),
                                    i == 0 ? "" : WithInterval(score.loss_over_first), score.top_1,
                                    score.head_density, score.union_density, score.v_read,
                                    score.bytes_read(), OrDash(score.recall)));
    if (sparse_prefill) absl::StrAppendFormat(&table, "  %7s", OrDash(score.prefill_density));
    if (divergence) {
      absl::StrAppendFormat(
          &table, "  %7s",
          score.divergence ? absl::StrFormat("%.3f", 1000.0 * *score.divergence) : "-");
    }
    if (shadow) {
      const auto of = [&](double ShadowSummary::*member) {
        return OrDash(score.shadow ? std::optional((*score.shadow).*member) : std::nullopt);
      };
      absl::StrAppendFormat(&table, "  %7s  %7s  %7s", of(&ShadowSummary::mass),
                            of(&ShadowSummary::least_mass), of(&ShadowSummary::error));
    }
    absl::StrAppendFormat(&table, "  %9.1f\n", score.tokens_per_second);
  }
  absl::StrAppend(&table, "intervals: ", IntervalMethod(), "\n");
  return table;
}

std::string PerplexityJson(const ComparisonFlags& flags, const AttentionComparison& comparison,
                           int64_t windows, std::span<const AttentionScore> scores) {
  const KvGeometry& geometry = comparison.geometry();
  Json json = {{"model", flags.runtime.model_dir},
               {"text", flags.text},
               {"backend", comparison.runtime().backend().description()},
               {"kv_dtype", std::string(Name(geometry.dtype))},
               {"index", std::string(Name(geometry.index))},
               {"index_dtype", std::string(Name(geometry.index_dtype))},
               {"weights", std::string(Name(flags.runtime.weights))},
               {"context", flags.context},
               {"prefill", flags.prefill},
               {"windows", windows},
               {"intervals", IntervalMethod()}};
  json["results"] = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    json["results"].push_back(AttentionJson(comparison.attentions()[i], scores[i]));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eta
