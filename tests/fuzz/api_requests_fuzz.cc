// Any bytes as a request of any other method: refused in a readable sentence, or within the limits
// that its .proto file states. The first byte chooses the method.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/page_token.h"
#include "engine/request/request_validation.h"
#include "eta/v1/calibrate.pb.h"
#include "eta/v1/profiles.pb.h"
#include "eta/v1/stats.pb.h"
#include "eta/v1/tokenize.pb.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/generate/tokenize.h"
#include "service/profiles/convert_profile.h"
#include "service/stats/convert_stats.h"
#include "service/wire/payload_digest.h"
#include "tests/testing/engine/puppet_engine.h"
#include "tests/testing/fuzz/checked_error.h"
#include "tests/testing/fuzz/message_filler.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::ReadMessage;
using eta::fuzz::Require;
using eta::fuzz::RequireReadable;

constexpr int32_t kVocabulary = 100;
constexpr int64_t kMaxTokens = 4096;

const eta::Tenant& Acme() {
  static const eta::Tenant tenant = *eta::Tenant::Parse("acme");
  return tenant;
}

eta::EngineInfo Model(bool gated) {
  eta::EngineInfo info{};
  info.block_size = 16;
  info.config.vocab_size = kVocabulary;
  info.config.has_predictor = gated;
  info.config.gate = gated ? eta::Gate::kSilu : eta::Gate::kNone;
  return info;
}

// Of what is accepted, as many tokens as may be, of every sample.
void CheckTokens(const eta::v1::CalibrateRequest& message) {
  static const eta::testing::PuppetEngine engine;
  const auto samples = eta::TokenizeSamples(message, engine, kMaxTokens, {});
  if (samples.ok()) {
    Require(samples->size() == static_cast<size_t>(message.samples_size()));
    size_t tokens = 0;
    for (const auto& sample : *samples) tokens += sample.size();
    Require(tokens <= kMaxTokens);
  } else {
    RequireReadable(samples.status());
  }
  std::stop_source stopped;
  stopped.request_stop();
  Require(!eta::TokenizeSamples(message, engine, kMaxTokens, stopped.get_token()).ok());
}

void Calibrate(InputReader& reader) {
  static const eta::EngineInfo models[] = {Model(false), Model(true)};
  const eta::EngineInfo& model = models[reader.Byte() & 1];
  eta::v1::CalibrateRequest message;
  if (!ReadMessage(reader, message)) return;
  const eta::Limits limits;
  const auto plan = eta::ToCalibration(message, model, limits, kMaxTokens);
  if (!plan.ok()) return RequireReadable(plan.status());
  Require(eta::CheckProfileName("name", plan->put.name).ok());
  Require(eta::CheckProfileLabels(plan->job.labels).ok());
  Require(message.samples_size() >= 1 && message.samples_size() <= eta::kMaxCalibrationSamples);
  int64_t tokens = 0;
  for (const auto& sample : message.samples()) tokens += sample.token_ids().ids_size();
  Require(tokens <= kMaxTokens);
  Require(plan->put.expected_version.value_or(0) >= 0);
  Require(plan->put.request_id.empty() == plan->put.payload_digest.empty());
  Require(eta::CheckRequestIdentity(plan->put.request_id, plan->put.payload_digest).ok());
  const float offset = plan->job.settings.offset.value_or(0);
  Require(offset >= -100 && offset <= 100);
  Require(plan->job.settings.z.value_or(0) >= 0 && plan->job.settings.z.value_or(0) <= 16);
  Require(plan->job.held_out >= 0 && plan->job.held_out < 1);
  Require(plan->job.documents.size() == static_cast<size_t>(message.samples_size()));
  CheckTokens(message);
}

void Progress(InputReader& reader) {
  using eta::CalibrationPhase;
  const auto phase = reader.Pick({CalibrationPhase::kCollect, CalibrationPhase::kSolve,
                                  CalibrationPhase::kSearch, CalibrationPhase::kVerify});
  const auto seconds = reader.Raw<double>();
  const auto message =
      eta::ToMessage(eta::CalibrationProgress{.phase = phase,
                                              .sequences_done = reader.Raw<int32_t>(),
                                              .sequences_total = reader.Raw<int32_t>(),
                                              .tokens_per_second = reader.Raw<double>(),
                                              .seconds_left = seconds});
  const auto& left = message.progress().time_left();
  Require(message.progress().phase() != eta::v1::CALIBRATION_PHASE_UNSPECIFIED);
  Require(left.seconds() >= 0 && left.nanos() >= 0 && left.nanos() < 1'000'000'000);
  Require(!(seconds < 1e9) || left.seconds() <= std::max(seconds, 0.0));
}

void Import(InputReader& reader) {
  eta::v1::ImportProfileRequest message;
  if (!ReadMessage(reader, message)) return;
  const auto profile = eta::ProfileFromJson(message.json());
  if (!profile.ok()) return RequireReadable(profile.status());
  Require(eta::CheckProfileContent(profile->content).ok());
  Require(eta::PayloadDigest("ImportProfile", message).ok());
}

void Reference(InputReader& reader) {
  eta::v1::GetProfileRequest message;
  if (!ReadMessage(reader, message)) return;
  const auto reference = eta::ParseProfileReference("profile", message.profile());
  if (!reference.ok()) return RequireReadable(reference.status());
  Require(eta::CheckProfileName("name", reference->name).ok());
  if (const auto* version = std::get_if<int64_t>(&reference->selector)) {
    Require(message.profile() == reference->name + "@" + std::to_string(*version));
  }
}

void Pages(InputReader& reader) {
  eta::v1::ListProfileVersionsRequest message;
  if (!ReadMessage(reader, message)) return;
  const eta::ProfilePage page{.size = message.page_size(), .token = message.page_token()};
  const auto last_name = eta::ReadNamePage(Acme(), page);
  if (!last_name.ok()) RequireReadable(last_name.status());
  Require(!last_name.ok() || page.token.empty() ||
          eta::MakePageToken(Acme(), "", *last_name) == page.token);
  const auto before = eta::ReadVersionPage(Acme(), message.name(), page);
  if (!before.ok()) RequireReadable(before.status());
  // A page's own token is taken back, for its own listing only.
  const std::string made = eta::MakePageToken(Acme(), message.name(), "17");
  const eta::ProfilePage next{.size = 1, .token = made};
  const auto again = eta::ReadVersionPage(Acme(), message.name(), next);
  Require(made.size() > 256 ? !again.ok() : again.ok() && *again == 17);
  Require(!eta::ReadVersionPage(Acme(), message.name() + "x", next).ok());
}

void Watch(InputReader& reader) {
  eta::v1::WatchStatsRequest message;
  if (!ReadMessage(reader, message)) return;
  const auto interval = eta::ToInterval(message);
  if (!interval.ok()) return RequireReadable(interval.status());
  Require(*interval >= std::chrono::milliseconds(100) && *interval <= std::chrono::seconds(60));
}

void Tokenize(InputReader& reader) {
  static const eta::testing::PuppetEngine engine;
  eta::v1::TokenizeRequest message;
  if (!ReadMessage(reader, message)) return;
  Require(eta::TokenizeCost(message) >= 0);
  const auto answer = eta::Tokenize(message, engine);
  if (!answer.ok()) return RequireReadable(answer.status());
  Require(answer->token_ids_size() > 0);
  Require(answer->token_texts().ends_size() ==
          (message.token_texts() ? answer->token_ids_size() : 0));
}

void Detokenize(InputReader& reader) {
  static const eta::testing::PuppetEngine engine;
  eta::v1::DetokenizeRequest message;
  if (!ReadMessage(reader, message)) return;
  const auto answer = eta::Detokenize(message, engine);
  if (!answer.ok()) return RequireReadable(answer.status());
  Require(message.token_ids().ids_size() > 0);
  Require(answer->token_texts().ends_size() ==
          (message.token_texts() ? message.token_ids().ids_size() : 0));
}

void Target(InputReader& reader) {
  eta::v1::CalibrationTarget message;
  if (!ReadMessage(reader, message)) return;
  const auto target = eta::ToTarget("target", message);
  if (!target.ok()) return RequireReadable(target.status());
  Require(target->value >= 0 && target->value <= eta::kMaxPerplexityIncrease);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputReader reader(data, size);
  switch (reader.Byte() % 10) {
    case 0:
    case 1:
      Calibrate(reader);
      break;
    case 2:
      Progress(reader);
      break;
    case 3:
      Import(reader);
      break;
    case 4:
      Reference(reader);
      break;
    case 5:
      Pages(reader);
      break;
    case 6:
      Watch(reader);
      break;
    case 7:
      Target(reader);
      break;
    case 8:
      Tokenize(reader);
      break;
    case 9:
      Detokenize(reader);
      break;
  }
  return 0;
}
