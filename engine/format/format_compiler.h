// Compiles the formats of answers, in a process of its own that can be killed, and keeps them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/format/answer_guide.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// Any thread may call it, any number at a time.
class FormatCompiler {
 public:
  virtual ~FormatCompiler() = default;

  // The format if it is kept, else null; does not wait.
  virtual std::shared_ptr<const CompiledFormat> Find(const std::string& tenant,
                                                     const AnswerFormat& format) = 0;
  // Waits until it is compiled, at most until `deadline` and the compiler's own limit of time.
  // INVALID_ARGUMENT, field `format...`: what it asks for cannot be enforced, is none, or is beyond
  // a limit, with the JSON path of it; DEADLINE_EXCEEDED (FORMAT_TOO_SLOW): it takes too long;
  // RESOURCE_EXHAUSTED (FORMAT_TOO_LARGE): it takes too much memory; (QUEUE_FULL): too many of them
  // are compiled now; UNIMPLEMENTED (UNSUPPORTED_BY_SERVER): this server is built without formats.
  virtual absl::StatusOr<std::shared_ptr<const CompiledFormat>> Compile(
      const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) = 0;
};

}  // namespace eta
