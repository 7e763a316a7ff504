// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/token_decoder.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/byte_alphabet.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"
#include "engine/tokenizer/text/normalizer.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {

class TokenDecoder::Step {
 public:
  virtual ~Step() = default;
  virtual absl::Status Apply(std::string& token, bool first) const = 0;
};

namespace {

constexpr int64_t kMaxStrip = 4096;

class JoinBySpaces : public TokenDecoder::Step {
 public:
  absl::Status Apply(std::string& token, bool first) const override {
    if (!first) token.insert(0, " ");
    return absl::OkStatus();
  }
};

class ReplaceStep : public TokenDecoder::Step {
 public:
  explicit ReplaceStep(std::unique_ptr<const Normalizer> replace) : replace_(std::move(replace)) {}
  absl::Status Apply(std::string& token, bool) const override {
    RegexRun run(token.size());
    MarkedText text{.text = std::move(token)};
    const absl::Status status = replace_->Apply(text, run);
    token = std::move(text.text);
    return status;
  }

 private:
  const std::unique_ptr<const Normalizer> replace_;
};

// So many of a character at either end of a token.
class StripStep : public TokenDecoder::Step {
 public:
  StripStep(std::string content, int64_t start, int64_t stop, bool first_only)
      : content_(std::move(content)), start_(start), stop_(stop), first_only_(first_only) {}
  absl::Status Apply(std::string& token, bool first) const override {
    if (first_only_ && !first) return absl::OkStatus();
    std::string_view left = token;
    for (int64_t i = 0; i < start_ && left.starts_with(content_); ++i) {
      left.remove_prefix(content_.size());
    }
    for (int64_t i = 0; i < stop_ && left.ends_with(content_); ++i) {
      left.remove_suffix(content_.size());
    }
    token = std::string(left);
    return absl::OkStatus();
  }

 private:
  const std::string content_;  // one character
  const int64_t start_;
  const int64_t stop_;
  const bool first_only_;
};

class MetaspaceStep : public TokenDecoder::Step {
 public:
  MetaspaceStep(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drops_first_(drops_first) {}
  absl::Status Apply(std::string& token, bool first) const override {
    const std::string_view space = first && drops_first_ ? "" : " ";
    std::string text;
    for (size_t at = 0; at < token.size();) {
      const std::string_view rest = std::string_view(token).substr(at);
      if (rest.starts_with(replacement_)) {
        text += space;
        at += replacement_.size();
      } else {
        text += token[at++];
      }
    }
    token = std::move(text);
    return absl::OkStatus();
  }

 private:
  const std::string replacement_;
  const bool drops_first_;
};

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

class ByteFallbackStep : public TokenDecoder::Step {
 public:
  absl::Status Apply(std::string& token, bool) const override {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
      return absl::OkStatus();
    }
    const std::optional<int> high = HexDigit(token[3]);
    const std::optional<int> low = HexDigit(token[4]);
    if (high && low) token = std::string(1, static_cast<char>(*high << 4 | *low));
    return absl::OkStatus();
  }
};

class ByteLevelStep : public TokenDecoder::Step {
 public:
  absl::Status Apply(std::string& token, bool) const override {
    if (auto bytes = BytesOfSpelled(token)) token = *std::move(bytes);
    return absl::OkStatus();
  }
};

// How far a chain of decoders has come.
struct Progress {
  bool bytes = false;  // tokens may be bytes, no more characters
  bool fused = false;  // tokens have become one text
};

absl::Status Misplaced(const Part& part, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat("tokenizer.json: ", part.place, ": ", part.type, " ",
                                               what, " is not supported"));
}

using StepPtr = std::unique_ptr<const TokenDecoder::Step>;

absl::StatusOr<StepPtr> MakeStrip(const Part& part, PartFields& fields, const Progress& progress) {
  std::string content = fields.Text("content");
  const int64_t start = fields.Integer("start", 0, kMaxStrip);
  const int64_t stop = fields.Integer("stop", 0, kMaxStrip);
  RETURN_IF_ERROR(fields.status());
  if (!IsCharacter(content)) {
    fields.Fail("content", "must be one character");
    return fields.status();
  }
  if (progress.bytes && !progress.fused) return Misplaced(part, "between bytes and Fuse");
  if (progress.fused && (start > 1 || stop > 0)) {
    return Misplaced(part, "of more than one character at the beginning, behind Fuse,");
  }
  return std::make_unique<StripStep>(std::move(content), start, stop, progress.fused);
}

absl::StatusOr<StepPtr> MakeReplaceStep(const Part& part, PartFields& fields) {
  auto pattern = fields.Pattern(part.place);
  std::string content = fields.Text("content");
  if (!pattern.ok()) return pattern.status();
  if (const auto* text = std::get_if<std::string>(&*pattern)) {
    return std::make_unique<ReplaceStep>(MakeReplace(*text, std::move(content)));
  }
  if (content.find('$') != std::string::npos) return Misplaced(part, "of a Regex by \"$\"");
  return std::make_unique<ReplaceStep>(
      MakeReplace(std::get<Regex>(*std::move(pattern)), std::move(content)));
}

// Null: a part that changes nothing here.
absl::StatusOr<StepPtr> MakeStep(const Part& part, Progress& progress) {
  PartFields fields(*part.object, part.place);
  absl::StatusOr<StepPtr> made = StepPtr();
  if (part.type == "Strip") {
    made = MakeStrip(part, fields, progress);
  } else if (part.type == "Fuse") {
    progress.fused = true;
  } else if (progress.bytes || progress.fused) {
    return Misplaced(part, "behind ByteLevel, ByteFallback or Fuse");
  } else if (part.type == "Replace") {
    made = MakeReplaceStep(part, fields);
  } else if (part.type == "Metaspace") {
    ASSIGN_OR_RETURN(auto metaspace, ReadMetaspace(fields));
    made = std::make_unique<MetaspaceStep>(std::move(metaspace.replacement),
                                           metaspace.scheme != PrependScheme::kNever);
  } else if (part.type == "ByteFallback") {
    progress.bytes = true;
    made = std::make_unique<ByteFallbackStep>();
  } else if (part.type == "ByteLevel") {
    progress.bytes = true;
    progress.fused = true;
    for (const char* field : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      fields.BooleanOr(field, true);  // of other things that ByteLevel does
    }
    made = std::make_unique<ByteLevelStep>();
  } else {
    return UnknownPart(part);
  }
  if (!made.ok()) return made.status();
  RETURN_IF_ERROR(fields.Finish());
  return made;
}

}  // namespace

TokenDecoder::TokenDecoder() = default;
TokenDecoder::TokenDecoder(TokenDecoder&&) noexcept = default;
TokenDecoder::~TokenDecoder() = default;

absl::StatusOr<TokenDecoder> TokenDecoder::Make(const nlohmann::json& root) {
  TokenDecoder decoder;
  if (root.is_null()) {
    decoder.steps_.push_back(std::make_unique<JoinBySpaces>());
    return decoder;
  }
  ASSIGN_OR_RETURN(const auto parts, ListParts(root, "decoder", "decoders"));
  Progress progress;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(auto step, MakeStep(part, progress));
    if (step != nullptr) decoder.steps_.push_back(std::move(step));
  }
  return decoder;
}

absl::StatusOr<std::string> TokenDecoder::Decode(std::string_view spelled, bool first) const {
  std::string token(spelled);
  for (const auto& step : steps_) RETURN_IF_ERROR(step->Apply(token, first));
  return token;
}

}  // namespace eta
