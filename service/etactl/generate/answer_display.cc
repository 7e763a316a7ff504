#include "service/etactl/generate/answer_display.h"

#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "service/etactl/generate/chat_tools.h"
#include "service/etactl/json.h"
#include "service/etactl/view/draft_text.h"
#include "service/etactl/view/terminal.h"
#include "service/wire/attention_message.h"

namespace eta::ctl {
namespace {

constexpr char kCutOff[] =
    "etactl: cut off: --max_tokens came before the answer was what its format asks for\n";

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(google::protobuf::util::TimeUtil::DurationToNanoseconds(duration)) *
         1e-9;
}

std::string DescribeMode(const v1::AttentionUsed& attention) {
  switch (attention.mode()) {
    case v1::ATTENTION_MODE_FULL:
      return "full attention";
    case v1::ATTENTION_MODE_DYNAMIC:
      if (!attention.has_relative_threshold()) return "dynamic thresholds";
      return absl::StrFormat("relative thresholds of %g", attention.relative_threshold());
    case v1::ATTENTION_MODE_PROFILE:
      return absl::StrCat("profile ", attention.profile(), "@", attention.profile_version());
    default:
      return "unknown attention";
  }
}

std::string DescribeMiss(v1::DefaultProfileMiss miss) {
  switch (miss) {
    case v1::DEFAULT_PROFILE_MISS_ABSENT:
      return "no default profile: the tenant has none";
    case v1::DEFAULT_PROFILE_MISS_UNFIT:
      return "no default profile: it is of another model";
    case v1::DEFAULT_PROFILE_MISS_UNAVAILABLE:
      return "no default profile: the profile store could not give it";
    default:
      return "no default profile";
  }
}

// What goes beyond the paper, where it is in use.
void DescribeOptions(const v1::AttentionUsed& attention, std::vector<std::string>& phrases) {
  const absl::StatusOr<AttentionSettings> settings = ReadSettings("", attention);
  if (settings.ok()) {
    const std::string unusual = Describe(*settings, /*unusual=*/true);
    if (!unusual.empty()) phrases.push_back(unusual);
  }
  for (const v1::ProfileDifference& difference : attention.profile_differences()) {
    phrases.push_back(absl::StrCat("calibrated with ", difference.what(), " ", difference.profile(),
                                   ", served with ", difference.served()));
  }
}

}  // namespace

AnswerDisplay::AnswerDisplay(const GenerateFlags& flags)
    : json_(flags.json),
      quiet_(flags.quiet),
      greedy_(flags.temperature == 0.0f),
      safe_text_(IsTerminal(STDOUT_FILENO)) {}

bool AnswerDisplay::Show(const v1::GenerateResponse& response) {
  if (json_) {
    const std::string line = JsonLine(response);
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      started_ = response.started();
      break;
    case v1::GenerateResponse::kPrefill:
      if (quiet_ || response.prefill().total() <= 0) break;
      progress_.Show(
          ProgressText("reading the prompt", response.prefill().done(), response.prefill().total()),
          /*at_once=*/true);
      break;
    case v1::GenerateResponse::kDelta:
      progress_.Clear();
      text_ += response.delta().text();
      reasoning_ += response.delta().reasoning();
      if (!json_ && !quiet_) ShowReasoning(response.delta().reasoning());
      if (!json_) ShowText(response.delta().text());
      break;
    case v1::GenerateResponse::kFinished:
      finished_ = response.finished();
      if (!json_) ShowCalls();
      break;
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  std::fflush(stdout);
  return std::ferror(stdout) == 0;
}

void AnswerDisplay::End() {
  progress_.Clear();
  if (std::exchange(reasons_, false)) std::fputc('\n', stderr);
  if (!json_ && !ends_line_ && (safe_text_ || !quiet_)) std::fputc('\n', stdout);
  std::fflush(stdout);
  if (!finished_.has_value()) return;
  // Also for a program, which would take it for an answer.
  if (finished_->finish_reason() == v1::FINISH_REASON_CUT_OFF) std::fputs(kCutOff, stderr);
  if (quiet_) return;
  std::string line = DescribeStatistics(started_, *finished_);
  if (!greedy_) absl::StrAppend(&line, ", seed ", started_.seed());
  std::fprintf(stderr, "%s\n", line.c_str());
  int layer = 0;
  for (const v1::LayerDensity& density : finished_->attention().layers()) {
    // Others read their newest keys at least.
    if (density.union_density() == 0.0) {
      std::fprintf(stderr, "layer %2d: has a window\n", layer++);
      continue;
    }
    std::fprintf(stderr, "layer %2d: head density %.3f, union density %.3f\n", layer++,
                 density.head_density(), density.union_density());
  }
}

// Calls are a part of the answer, a line each.
void AnswerDisplay::ShowCalls() {
  for (const v1::ToolCall& call : finished_->tool_calls()) {
    ShowText(absl::StrCat(ends_line_ ? "" : "\n", CallLine(call), "\n"));
  }
}

void AnswerDisplay::ShowReasoning(const std::string& text) {
  if (text.empty()) return;
  if (!std::exchange(reasons_, true)) std::fputs("(reasoning) ", stderr);
  std::fputs(WithoutControls(text).c_str(), stderr);
}

void AnswerDisplay::ShowText(const std::string& text) {
  if (text.empty()) return;
  if (std::exchange(reasons_, false)) std::fputc('\n', stderr);
  const std::string shown = safe_text_ ? WithoutControls(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  ends_line_ = shown.back() == '\n';
}

std::string DescribeStatistics(const v1::Started& started, const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  const v1::AttentionStats& stats = finished.attention();
  std::vector<std::string> phrases;
  phrases.push_back(absl::StrCat(usage.output_tokens(), " tokens"));
  const double decode = Seconds(finished.timing().decode());
  if (usage.output_tokens() > 1 && decode > 0.0) {
    phrases.push_back(absl::StrFormat("%.1f tok/s", (usage.output_tokens() - 1) / decode));
  }
  if (finished.has_drafts()) phrases.push_back(DescribeDrafts(finished.drafts()));
  phrases.push_back(
      absl::StrCat("first after ", ReadableSeconds(Seconds(finished.timing().first_token())),
                   " (prompt ", usage.prompt_tokens(), ", cached ", usage.cached_tokens(), ")"));
  if (started.rope_factor() > 1.0f) {
    phrases.push_back(absl::StrCat("RoPE factor ", started.rope_factor()));
  }
  phrases.push_back(DescribeMode(started.attention()));
  DescribeOptions(started.attention(), phrases);
  if (started.attention().has_default_profile_miss()) {
    phrases.push_back(DescribeMiss(started.attention().default_profile_miss()));
  }
  if (stats.has_head_density()) {
    phrases.push_back(absl::StrFormat("head density %.3f", stats.head_density()));
  }
  if (stats.has_union_density()) {
    phrases.push_back(absl::StrFormat("union density %.3f", stats.union_density()));
  }
  if (stats.has_prefill_density()) {
    phrases.push_back(absl::StrFormat("prefill density %.3f", stats.prefill_density()));
  }
  // Older servers do not tell, and always read both.
  if (stats.values_read() > 0 && stats.values_read() < stats.keys_read()) {
    phrases.push_back(absl::StrFormat(
        "V read of %.1f %% of the keys read",
        100.0 * static_cast<double>(stats.values_read()) / static_cast<double>(stats.keys_read())));
  }
  if (stats.has_mass_kept()) {
    phrases.push_back(absl::StrFormat("mass kept %.3f (error %.3f) in %d row-layers",
                                      stats.mass_kept(), stats.output_error(),
                                      stats.shadow_row_layers()));
  }
  if (finished.has_full_from()) {
    // Whoever begins with it may have asked for it.
    const bool begun = started.attention().begin() == v1::BEGIN_FULL;
    phrases.push_back(absl::StrCat("full attention from token ", finished.full_from(), " on",
                                   begun ? "" : ", for want of mass"));
    if (stats.fallback_steps() > 0) {
      phrases.push_back(absl::StrCat(stats.fallback_steps(), " steps with it read ",
                                     ReadableBytes(stats.fallback_kv_bytes_read())));
    }
  }
  if (stats.kv_bytes_dense() > 0) {
    phrases.push_back(absl::StrFormat("KV read %s of %s (%.1f %%), index %s",
                                      ReadableBytes(stats.kv_bytes_read()),
                                      ReadableBytes(stats.kv_bytes_dense()),
                                      100.0 * static_cast<double>(stats.kv_bytes_read()) /
                                          static_cast<double>(stats.kv_bytes_dense()),
                                      ReadableBytes(stats.index_bytes_read())));
  }
  return absl::StrJoin(phrases, ", ");
}

}  // namespace eta::ctl
