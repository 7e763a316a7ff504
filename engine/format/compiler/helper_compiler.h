// Compiles formats in the helper process (helper/format_helper.h), and keeps what it has compiled.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/format/compiler/compile_queue.h"
#include "engine/format/compiler/format_cache.h"
#include "engine/format/format_compiler.h"
#include "engine/format/helper/format_helper.h"
#include "engine/format/library/grammar_library.h"
#include "engine/format/vocabulary.h"

namespace eta {

struct FormatOptions {
  std::chrono::milliseconds compile_timeout{10'000};  // of one format
  int64_t cache_bytes = int64_t{256} << 20;           // of formats that are kept
  int32_t max_compiling = 4;                          // at a time
};

class HelperCompiler final : public FormatCompiler {
 public:
  // Gives the helper, which outlives this, its vocabulary. UNAVAILABLE where it has died; errors of
  // MakeLibrary.
  static absl::StatusOr<std::unique_ptr<FormatCompiler>> Create(
      const FormatOptions& options, FormatHelper& helper, FormatVocabulary vocabulary,
      const MakeLibrary& make_library = MakeGrammarLibrary);

  std::shared_ptr<const CompiledFormat> Find(const std::string& tenant,
                                             const AnswerFormat& format) override EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Compile(
      const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) override;

 private:
  HelperCompiler(const FormatOptions& options, FormatHelper& helper, FormatVocabulary vocabulary,
                 std::unique_ptr<GrammarLibrary> library);

  std::shared_ptr<const CompiledFormat> FindKey(const std::string& key) EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<const CompiledFormat>> CompileNow(const std::string& tenant,
                                                                   const AnswerFormat& format,
                                                                   Clock::time_point deadline);

  const FormatOptions options_;
  FormatHelper& helper_;
  const FormatVocabulary vocabulary_;
  const std::unique_ptr<GrammarLibrary> library_;
  CompileQueue queue_;
  Mutex mutex_;
  FormatCache cache_ GUARDED_BY(mutex_);
};

}  // namespace eta
