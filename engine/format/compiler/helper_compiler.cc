#include "engine/format/compiler/helper_compiler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/format/format_check.h"
#include "engine/format/helper/byte_text.h"
#include "engine/request/answers/format_validation.h"

namespace eta {
namespace {

absl::StatusOr<std::string> KeyOf(const std::string& tenant, const AnswerFormat& format) {
  ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(BytesOf(format)));
  return absl::StrCat(digest, tenant);
}

// What says only `format` names the field that it is about.
absl::Status OfKind(const AnswerFormat& format, const absl::Status& status) {
  ErrorDetail detail = GetErrorDetail(status);
  if (detail.field != "format") return status;
  const std::string sentence(status.message().substr(detail.field.size()));
  detail.field = FieldOf(format.kind);
  const std::string message = detail.field + sentence;
  return MakeError(status.code(), message, std::move(detail));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FormatCompiler>> HelperCompiler::Create(
    const FormatOptions& options, FormatHelper& helper, FormatVocabulary vocabulary,
    const MakeLibrary& make_library) {
  RETURN_IF_ERROR(helper.SetVocabulary(vocabulary));
  ASSIGN_OR_RETURN(auto library, make_library(vocabulary));
  return std::unique_ptr<FormatCompiler>(
      new HelperCompiler(options, helper, std::move(vocabulary), std::move(library)));
}

HelperCompiler::HelperCompiler(const FormatOptions& options, FormatHelper& helper,
                               FormatVocabulary vocabulary, std::unique_ptr<GrammarLibrary> library)
    : options_(options),
      helper_(helper),
      vocabulary_(std::move(vocabulary)),
      library_(std::move(library)),
      queue_(options.max_compiling),
      cache_(options.cache_bytes) {}

std::shared_ptr<const CompiledFormat> HelperCompiler::Find(const std::string& tenant,
                                                           const AnswerFormat& format) {
  const auto key = KeyOf(tenant, format);
  return key.ok() ? FindKey(*key) : nullptr;
}

std::shared_ptr<const CompiledFormat> HelperCompiler::FindKey(const std::string& key) {
  const MutexLock lock(mutex_);
  return cache_.Find(key);
}

absl::StatusOr<std::shared_ptr<const CompiledFormat>> HelperCompiler::Compile(
    const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) {
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::shared_ptr<const CompiledFormat>> {
    auto compiled = CompileNow(tenant, format, deadline);
    if (!compiled.ok()) return OfKind(format, compiled.status());
    return compiled;
  });
}

absl::StatusOr<std::shared_ptr<const CompiledFormat>> HelperCompiler::CompileNow(
    const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) {
  RETURN_IF_ERROR(CheckFormat(format, vocabulary_));
  ASSIGN_OR_RETURN(const std::string key, KeyOf(tenant, format));
  if (auto kept = FindKey(key)) return kept;
  ASSIGN_OR_RETURN(const Lease place, queue_.Enter(tenant, key, deadline));
  if (auto kept = FindKey(key)) return kept;  // made while this one waited
  ASSIGN_OR_RETURN(const std::string bytes,
                   helper_.Compile(format, options_.compile_timeout, deadline));
  ASSIGN_OR_RETURN(auto compiled, library_->Read(format, bytes));
  const MutexLock lock(mutex_);
  cache_.Insert(key, compiled);
  return compiled;
}

}  // namespace eta
