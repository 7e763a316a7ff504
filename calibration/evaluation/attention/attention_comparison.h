// The common beginning of comparisons of ways of attending over a text: the flags, and the model
// and ways that they name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/attention_flags.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runner_pool.h"
#include "calibration/evaluation/runtime/runtime_flags.h"
#include "calibration/evaluation/text/text_source.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

inline constexpr int32_t kMaxComparedContext = 1 << 20;

// Parsing the command line writes these flags. The object must not move until then.
struct ComparisonFlags {
  RuntimeFlags runtime;
  std::string text;
  AttentionFlags attentions;
  int32_t context = 0;
  int32_t prefill = 0;
  bool json = false;

  // Adds --text, --attention and its settings, --json and the flags of RuntimeFlags. The commands
  // add --context and --prefill, which mean something else to each.
  void Register(CLI::App& command, const std::string& text_help);
};

class AttentionComparison {
 public:
  // InvalidArgument, naming the field, for a prefill that is not less than the context.
  static absl::StatusOr<std::unique_ptr<AttentionComparison>> Load(const ComparisonFlags& flags);

  const Runtime& runtime() const { return *runtime_; }
  RivalBackend& rivals() { return runtime_->rivals(); }
  const KvGeometry& geometry() const { return geometry_; }
  TextSource& text() { return *text_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<EvaluatedAttention>& attentions() const { return attentions_; }

  // Runners for windows of `context` tokens. Ways of attending that ask for constants get them from
  // rows of `window` from `prefill` on. The pool must not outlive this object.
  absl::StatusOr<std::unique_ptr<RunnerPool>> MakeRunners(int32_t context,
                                                          std::span<const int32_t> window,
                                                          int32_t prefill);

 private:
  AttentionComparison() = default;

  std::unique_ptr<TextSource> text_;
  std::unique_ptr<Runtime> runtime_;
  KvGeometry geometry_;
  std::vector<EvaluatedAttention> attentions_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace eta
