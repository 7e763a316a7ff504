// Where batches of spans go.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/clock.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"

namespace eta {

// What the collector answered.
struct SendOutcome {
  enum class Kind : uint8_t {
    kTaken,
    kTryAgain,  // it was not there, or has no room now
    kRefused,   // it would refuse the same batch again
  };
  Kind kind = Kind::kTaken;
  int64_t rejected = 0;                                  // spans of what was taken
  std::string error;                                     // why not, or what it has to say
  std::optional<std::chrono::milliseconds> retry_after;  // not sooner
};

class SpanSender {
 public:
  virtual ~SpanSender() = default;
  // Returns at `deadline` at the latest. By one thread at a time.
  virtual SendOutcome Send(
      const opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest& batch,
      Clock::time_point deadline) = 0;
  // From any thread: a Send that runs, and all later ones, return at once.
  virtual void Cancel() = 0;
};

}  // namespace eta
