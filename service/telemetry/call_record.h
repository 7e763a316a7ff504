// What there is to say about one finished call: for the log (one line), for the metrics (one
// increment). Made by whoever answers the call, when its status is known; no prompt text, no
// answer text, no credential ever stands in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/request/answers/answer_format.h"
#include "engine/request/request.h"

namespace eta {

// What a call that named no mode got of the server's default profile (--default_profile).
enum class DefaultProfileUse : uint8_t {
  kUsed,
  kAbsent,       // its tenant has none
  kUnfit,        // it belongs to another model, tokenizer or block size
  kUnavailable,  // the store could not give it
};
inline constexpr int kDefaultProfileUses = 4;

// The format that a Generate call asked its answers to have.
struct FormatUse {
  AnswerFormatKind kind = AnswerFormatKind::kJsonObject;
  bool kept = false;  // the engine had it compiled
  // How long the call waited until it was compiled, or refused; absent: it did not come to that.
  std::optional<std::chrono::nanoseconds> compile;
};

// What a Generate call asked for, as far as spans tell it.
struct AskedOfModel {
  bool chat = false;
  float temperature = 0.0f;
  float top_p = 0.0f;
  int32_t max_tokens = 0;
};

// The service that declares most methods.
inline constexpr std::string_view kEtaService = "eta.v1.EtaService";

struct CallRecord {
  std::string_view method;                 // "Generate", "Calibrate", "Stats", "GetProfile", ...
  std::string_view service = kEtaService;  // that declares the method
  std::string request_id;                  // empty: it has none
  // 32 hex digits of the caller's trace, or of one that began with this call; empty: there is none
  std::string trace_id;
  std::string parent_span_id;  // 16 hex digits, the caller's; empty: the trace began here
  std::string span_id;         // 16 hex digits, drawn for this call; empty without a trace
  bool sampled = false;        // the trace is: whoever collects spans wants this call's
  std::string trace_state;     // as the caller sent it; empty: none, or not a valid one
  std::string tenant;          // empty: the call was refused before it was known
  std::string credential;      // how the caller is known (Caller::credential); empty likewise
  std::string peer;            // address of the other end, as gRPC writes it
  // With its reason (engine/base/error.h). CANCELLED, DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED
  // (SLOW_CONSUMER) also where an answer was made and the client was not there to take it.
  absl::Status status;
  std::string reason;                    // the ErrorReason that the client is told; empty: OK
  std::chrono::nanoseconds duration{0};  // from the arrival of the message to the status

  // Generate fills these as far as it came. Calibrate and calls about one profile fill its name and
  // version once they are known, whether or not the call succeeds.
  std::optional<AskedOfModel> asked;
  bool resolved = false;  // of Generate: `mode` holds
  AttentionMode mode = AttentionMode::kFull;
  std::string profile;  // its name; empty: none
  int64_t profile_version = 0;
  std::string profile_alias;  // that SetProfileAlias moves to that version; 0: removes
  bool submitted = false;     // the engine took it: `outcome` holds
  FinishedEvent outcome;
  bool reader_behind = false;  // at the end the answer only waited to be read
  // A Calibrate call waited for a calibration, or was refused one that runs. Other calls may wait
  // for the same one. It has an end of its own (CallObserver::OnCalibrationEnd).
  bool of_calibration = false;
  // Of Generate, where it named no mode and the server has a default profile.
  std::optional<DefaultProfileUse> default_profile;
  std::optional<FormatUse> format;  // of Generate, where there is one

  // package.Service/Method
  std::string full_method() const { return std::string(service).append("/").append(method); }
};

// Called on any thread, once for every call that a method of ours was asked for, before its client
// can see the status; must not block.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void OnCallEnd(const CallRecord& record) = 0;
  // Likewise once for every calibration that calls waited for, before any of them ends. The record
  // is the call's that began it, with the calibration's own end. `alone`: no call waits for it any
  // more, so that none tells of its end.
  virtual void OnCalibrationEnd(const CallRecord& /*record*/, bool /*alone*/) {}
};

}  // namespace eta
