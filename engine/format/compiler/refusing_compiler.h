// Stands where formats cannot be compiled: refuses each with one error.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/format/format_compiler.h"

namespace eta {

class RefusingCompiler final : public FormatCompiler {
 public:
  explicit RefusingCompiler(absl::Status why) : why_(std::move(why)) {}

  std::shared_ptr<const CompiledFormat> Find(const std::string&, const AnswerFormat&) override {
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Compile(const std::string&,
                                                                const AnswerFormat&,
                                                                Clock::time_point) override {
    return why_;
  }

 private:
  const absl::Status why_;
};

}  // namespace eta
