// lint: untrusted-input, fuzz-covered
#include "service/calibrate/convert_calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/calibrate/calibration_job.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "kernels/calibration_cells.h"
#include "service/profiles/convert_profile.h"
#include "service/wire/attention_message.h"
#include "service/wire/payload_digest.h"

namespace eta {
namespace {

constexpr double kMaxSecondsLeft = 1e9;

std::string SampleField(int i) {
  return absl::StrCat("samples[", i, "]");
}

absl::Status CheckSample(const v1::CalibrationSample& sample, const std::string& field,
                         const EngineInfo& info, const Limits& limits) {
  if (sample.has_text()) return InField(field + ".text", ValidateText(sample.text(), limits));
  if (!sample.has_token_ids()) return InvalidField(field, "one of text and token_ids must be set");
  const std::string ids_field = field + ".token_ids.ids";
  const auto& ids = sample.token_ids().ids();
  if (ids.empty()) return InvalidField(ids_field, "must not be empty");
  return CheckTokenIds(ids_field, {ids.data(), static_cast<size_t>(ids.size())},
                       info.config.vocab_size);
}

absl::Status CheckSamples(const v1::CalibrateRequest& message, const EngineInfo& info,
                          const Limits& limits, int64_t max_tokens) {
  if (message.samples_size() > kMaxCalibrationSamples) {
    return InvalidField("samples", absl::StrCat("at most ", kMaxCalibrationSamples));
  }
  for (int i = 0; i < message.samples_size(); ++i) {
    const v1::CalibrationSample& sample = message.samples(i);
    RETURN_IF_ERROR(CheckSample(sample, SampleField(i), info, limits));
    if (sample.document().size() > kMaxDocumentNameBytes) {
      return InvalidField(SampleField(i) + ".document",
                          absl::StrCat("at most ", kMaxDocumentNameBytes, " bytes"));
    }
  }
  return CheckSampleSizes(static_cast<size_t>(message.samples_size()),
                          SizesOf(message, info).least_tokens, max_tokens);
}

// The number of each sample's document: the place of the first sample of it.
std::vector<int32_t> DocumentsOf(const v1::CalibrateRequest& message) {
  std::vector<int32_t> documents;
  std::map<std::string_view, int32_t> places;
  for (int32_t i = 0; i < message.samples_size(); ++i) {
    const std::string_view name = message.samples(i).document();
    documents.push_back(name.empty() ? i : places.emplace(name, i).first->second);
  }
  return documents;
}

absl::Status SetJob(const v1::CalibrateRequest& message, const EngineInfo& info,
                    const Limits& limits, CalibrationJob& job) {
  if (message.has_held_out()) job.held_out = message.held_out();
  job.target = DefaultTarget(info.config);
  if (message.has_target()) {
    ASSIGN_OR_RETURN(job.target, ToTarget("target", message.target()));
  }
  if (message.has_z_recall()) job.z_recall = message.z_recall();
  ASSIGN_OR_RETURN(job.settings, ReadSettings("", message));
  job.allow_loss = message.allow_loss();
  if (message.has_min_retrieval()) job.min_retrieval = message.min_retrieval();
  if (message.has_sequence_tokens()) job.sequence_tokens = message.sequence_tokens();
  return CheckJob(job, info, limits);
}

absl::Status SetPut(const v1::CalibrateRequest& message, PutProfile& put) {
  put.stage = message.stage();
  if (message.has_expected_version()) {
    put.expected_version = message.expected_version();
    RETURN_IF_ERROR(CheckExpectedVersion(put.expected_version));
  }
  if (message.request_id().empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRequestId("request_id", message.request_id()));
  ASSIGN_OR_RETURN(auto digest, PayloadDigest("Calibrate", message));
  put.request_id = message.request_id();
  put.payload_digest = std::move(digest);
  return absl::OkStatus();
}

v1::CalibrationPhase ToMessage(CalibrationPhase phase) {
  switch (phase) {
    case CalibrationPhase::kCollect:
      return v1::CALIBRATION_PHASE_COLLECT;
    case CalibrationPhase::kSolve:
      return v1::CALIBRATION_PHASE_SOLVE;
    case CalibrationPhase::kSearch:
      return v1::CALIBRATION_PHASE_SEARCH;
    case CalibrationPhase::kVerify:
      return v1::CALIBRATION_PHASE_VERIFY;
  }
  return v1::CALIBRATION_PHASE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<CalibrationPlan> ToCalibration(const v1::CalibrateRequest& message,
                                              const EngineInfo& info, const Limits& limits,
                                              int64_t max_tokens) {
  CalibrationPlan plan;
  plan.put.name = message.name();
  RETURN_IF_ERROR(CheckProfileName("name", message.name()));
  RETURN_IF_ERROR(CheckProfileLabelCount(message.labels().size()));
  plan.job.labels.insert(message.labels().begin(), message.labels().end());
  RETURN_IF_ERROR(CheckProfileLabels(plan.job.labels));
  RETURN_IF_ERROR(CheckSamples(message, info, limits, max_tokens));
  plan.job.documents = DocumentsOf(message);
  RETURN_IF_ERROR(SetJob(message, info, limits, plan.job));
  RETURN_IF_ERROR(SetPut(message, plan.put));
  return plan;
}

SampleSizes SizesOf(const v1::CalibrateRequest& message, const EngineInfo& info) {
  SampleSizes sizes;
  for (const v1::CalibrationSample& sample : message.samples()) {
    if (!sample.has_text()) {
      sizes.least_tokens += sample.token_ids().ids_size();
    } else if (!sample.text().empty()) {
      sizes.text_bytes += static_cast<int64_t>(sample.text().size());
      sizes.least_tokens += LeastTokens(sample.text().size(), info);
    }
  }
  return sizes;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> TokenizeSamples(
    const v1::CalibrateRequest& message, const Engine& engine, int64_t max_tokens,
    const std::stop_token& stop) {
  std::vector<std::vector<int32_t>> samples;
  int64_t tokens = 0;
  for (int i = 0; i < message.samples_size(); ++i) {
    if (stop.stop_requested()) return absl::CancelledError("samples: cancelled");
    const v1::CalibrationSample& sample = message.samples(i);
    if (sample.has_text()) {
      auto ids = engine.Tokenize(sample.text());
      if (!ids.ok()) return InField(SampleField(i) + ".text", ids.status());
      samples.push_back(*std::move(ids));
    } else {
      samples.emplace_back(sample.token_ids().ids().begin(), sample.token_ids().ids().end());
    }
    tokens += static_cast<int64_t>(samples.back().size());
    RETURN_IF_ERROR(CheckSampleSizes(samples.size(), tokens, max_tokens));
  }
  return samples;
}

v1::CalibrateResponse ToMessage(const CalibrationProgress& progress) {
  v1::CalibrateResponse message;
  v1::CalibrationProgress& out = *message.mutable_progress();
  out.set_phase(ToMessage(progress.phase));
  out.set_sequences_done(progress.sequences_done);
  out.set_sequences_total(progress.sequences_total);
  out.set_tokens_per_second(progress.tokens_per_second);
  const double seconds = std::isfinite(progress.seconds_left)
                             ? std::clamp(progress.seconds_left, 0.0, kMaxSecondsLeft)
                             : kMaxSecondsLeft;
  out.mutable_time_left()->set_seconds(static_cast<int64_t>(seconds));
  // cannot wrap: a fraction of a second
  out.mutable_time_left()->set_nanos(static_cast<int32_t>(std::fmod(seconds, 1.0) * 1e9));
  return message;
}

}  // namespace eta
