#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/format/format_limits.h"
#include "engine/format/guide/bound_format.h"
#include "engine/format/library/choice_grammar.h"
#include "engine/format/library/grammar_library.h"
#include "engine/format/library/regex_sets.h"
#include "engine/format/library/xgrammar_log.h"
#include "engine/format/library/xgrammar_matcher.h"
#include "engine/format/schema/schema_check.h"
#include "engine/format/structural_tag.h"
#include "engine/format/token_mask.h"
#include "kernels/params/sampling.h"
#include "xgrammar/xgrammar.h"

namespace eta {
namespace {

constexpr int kTriedTokens = 64;
constexpr std::chrono::milliseconds kMostTokenTime{50};  // of a CPU
constexpr int kMaxRecursion = 500;                       // of the library, wherever it calls itself
constexpr char kAnyObject[] = R"({"type":"object"})";
// Text of a special token: no UTF-8, so that no text matches it; it differs from all others, since
// the library tells tokens apart by their bytes.
constexpr char kNoText[] = "\xff\xfe";

xgrammar::TokenizerInfo TokenizerInfoOf(const FormatVocabulary& vocabulary) {
  std::vector<std::string> tokens = vocabulary.tokens;
  for (const int32_t id : vocabulary.special) {
    tokens.at(static_cast<size_t>(id)) = absl::StrCat(kNoText, id);
  }
  return {tokens, xgrammar::VocabType::RAW, vocabulary.size, vocabulary.ends};
}

// Calls `work`; what the library throws becomes a status of `code`.
template <typename Work>
auto Guarded(absl::StatusCode code, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& failure) {
    return absl::Status(code, failure.what());
  }
}

// Options of its rules (`rule[temperature=0.7] ::= ...`) do other things than bind text. They stand
// before "::=" in the grammar as the library prints it: a line for each rule.
bool HasRuleOptions(const std::string& printed) {
  size_t begin = 0;
  while (begin < printed.size()) {
    const size_t end = std::min(printed.find('\n', begin), printed.size());
    const std::string line = printed.substr(begin, end - begin);
    const size_t bracket = line.find('[');
    if (bracket != std::string::npos && bracket < line.find("::=")) return true;
    begin = end + 1;
  }
  return false;
}

class XgrammarLibrary final : public GrammarLibrary {
 public:
  explicit XgrammarLibrary(const FormatVocabulary& vocabulary)
      : vocabulary_(std::make_shared<FormatVocabulary>(vocabulary)),
        tokens_(TokenizerInfoOf(vocabulary)) {}

  absl::StatusOr<std::string> Compile(const AnswerFormat& format) const override {
    const auto work = [&]() -> absl::StatusOr<std::string> {
      const XgrammarWarnings warnings;
      ASSIGN_OR_RETURN(const StructuralTag tag, TagOf(format));
      ASSIGN_OR_RETURN(const auto grammar, CompileKind(format, tag));
      if (!warnings.first().empty()) return absl::InvalidArgumentError(warnings.first());
      RETURN_IF_ERROR(TryToFollow(Matched(grammar, tag)));
      return grammar.SerializeJSON();
    };
    return Guarded(absl::StatusCode::kInvalidArgument, work);
  }

  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Read(
      const AnswerFormat& format, const std::string& compiled) const override {
    const auto work = [&]() -> absl::StatusOr<std::shared_ptr<const CompiledFormat>> {
      auto read = xgrammar::CompiledGrammar::DeserializeJSON(compiled, tokens_);
      if (!std::holds_alternative<xgrammar::CompiledGrammar>(read)) {
        return absl::InternalError("no compiled format");
      }
      ASSIGN_OR_RETURN(const StructuralTag tag, TagOf(format));
      const auto grammar = Matched(std::get<xgrammar::CompiledGrammar>(std::move(read)), tag);
      return std::make_shared<BoundFormat>(BoundFormat::Parts{
          .format = format,
          .vocabulary = vocabulary_,
          .make_matcher = [grammar] { return std::make_unique<XgrammarMatcher>(grammar); },
          .by_tokens = tag.by_tokens,
          .bytes =
              grammar->grammar.MemorySizeBytes() + grammar->forbidden.size() * sizeof(uint32_t)});
    };
    return Guarded(absl::StatusCode::kInternal, work);
  }

 private:
  // Of another kind: an empty one.
  absl::StatusOr<StructuralTag> TagOf(const AnswerFormat& format) const {
    if (format.kind != AnswerFormatKind::kStructuralTag) return StructuralTag();
    return ReadStructuralTag(format.source, *vocabulary_);
  }

  absl::StatusOr<xgrammar::CompiledGrammar> CompileKind(const AnswerFormat& format,
                                                        const StructuralTag& tag) const {
    // One thread: the process is the bound of what a compilation takes.
    xgrammar::GrammarCompiler compiler(tokens_, /*max_threads=*/1);
    const auto schema = [&](const std::string& text) -> absl::StatusOr<xgrammar::CompiledGrammar> {
      ASSIGN_OR_RETURN(const std::string enforceable, EnforceableSchema(text));
      return compiler.CompileJSONSchema(enforceable, /*any_whitespace=*/true, std::nullopt,
                                        std::nullopt,
                                        /*strict_mode=*/true, kMaxWhiteSpace);
    };
    switch (format.kind) {
      case AnswerFormatKind::kJsonSchema:
        return schema(format.source);
      case AnswerFormatKind::kJsonObject:
        return schema(kAnyObject);
      case AnswerFormatKind::kRegex:
        // An error is of the caller's own text.
        static_cast<void>(xgrammar::Grammar::FromRegex(format.source));
        return compiler.CompileRegex(WithJavaScriptSets(format.source));
      case AnswerFormatKind::kGrammar:
        return CompileGrammar(compiler, format.source);
      case AnswerFormatKind::kChoice:
        return compiler.CompileGrammar(ChoiceGrammar(format.choices));
      case AnswerFormatKind::kStructuralTag:
        return compiler.CompileStructuralTag(tag.json);
    }
    return absl::InvalidArgumentError("of a kind that is not known");
  }

  static absl::StatusOr<xgrammar::CompiledGrammar> CompileGrammar(
      xgrammar::GrammarCompiler& compiler, const std::string& source) {
    const auto grammar = xgrammar::Grammar::FromEBNF(source);
    if (HasRuleOptions(grammar.ToString())) {
      return absl::InvalidArgumentError("options of rules are not enforced");
    }
    return compiler.CompileGrammar(grammar);
  }

  std::shared_ptr<const MatchedGrammar> Matched(xgrammar::CompiledGrammar grammar,
                                                const StructuralTag& tag) const {
    return std::make_shared<MatchedGrammar>(MatchedGrammar{.grammar = std::move(grammar),
                                                           .vocabulary_size = vocabulary_->size,
                                                           .forbidden = Forbidden(tag)});
  }

  // The first tokens of an answer, drawn at random. Something must fit, or no answer can ever
  // begin; and a grammar that takes long to follow holds up everybody's steps.
  absl::Status TryToFollow(const std::shared_ptr<const MatchedGrammar>& grammar) const {
    XgrammarMatcher matcher(grammar);
    std::vector<uint32_t> mask = Words();
    std::minstd_rand random(1);
    for (int i = 0; i < kTriedTokens; ++i) {
      const std::chrono::nanoseconds before = matcher.time();
      matcher.Fill(mask);
      const std::optional<int32_t> token = DrawOf(mask, random);
      if (!token && i == 0 && !matcher.Complete()) {
        return absl::InvalidArgumentError("no text fits it");
      }
      const bool taken = token && matcher.Accept(*token);
      if (matcher.time() - before > kMostTokenTime) {
        return absl::InvalidArgumentError(absl::StrCat(
            "takes too long to follow: ",
            std::chrono::duration_cast<std::chrono::milliseconds>(matcher.time() - before).count(),
            " ms for token ", i));
      }
      if (!taken) break;
    }
    return absl::OkStatus();
  }

  // One that the mask allows, and that ends nothing.
  std::optional<int32_t> DrawOf(std::vector<uint32_t>& mask, std::minstd_rand& random) const {
    for (const int32_t id : vocabulary_->ends) RemoveToken(mask, id);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary_->size; ++id) {
      if (HasToken(mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) return std::nullopt;
    return allowed[random() % allowed.size()];
  }

  std::vector<uint32_t> Words() const {
    return std::vector<uint32_t>(MaskWords(vocabulary_->size), 0);
  }

  // Special tokens are no text: no part of an answer but where a structural tag names them.
  std::vector<uint32_t> Forbidden(const StructuralTag& tag) const {
    std::vector<uint32_t> words = Words();
    for (const int32_t id : vocabulary_->special) {
      if (vocabulary_->IsEnd(id) || std::ranges::binary_search(tag.tokens, id)) continue;
      AddToken(words, id);
    }
    return words;
  }

  const std::shared_ptr<const FormatVocabulary> vocabulary_;
  const xgrammar::TokenizerInfo tokens_;
};

}  // namespace

bool HasGrammarLibrary() {
  return true;
}

absl::StatusOr<std::unique_ptr<GrammarLibrary>> MakeGrammarLibrary(
    const FormatVocabulary& vocabulary) {
  return Guarded(absl::StatusCode::kInternal,
                 [&]() -> absl::StatusOr<std::unique_ptr<GrammarLibrary>> {
                   xgrammar::SetMaxRecursionDepth(kMaxRecursion);
                   return std::make_unique<XgrammarLibrary>(vocabulary);
                 });
}

}  // namespace eta
