// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/template_probe.h"
#include "engine/tokenizer/json/json_codec.h"
#include "engine/tokenizer/piece_codec.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace eta {
namespace {

struct LoadedCodec {
  std::unique_ptr<const TextCodec> codec;
  int32_t eos_id = -1;  // the file's own
};

absl::StatusOr<ControlSource> ControlOf(const TokenizerFiles& files, const TokenizerConfig& texts,
                                        const ModelConfig& config) {
  ControlSource source;
  if (files.chat_template) {
    ASSIGN_OR_RETURN(source.written, ProbeTemplate(*files.chat_template, {.bos = texts.bos_token,
                                                                          .eos = texts.eos_token}));
  }
  if (config.eos_ids.empty() && !texts.eos_token.empty()) source.written.push_back(texts.eos_token);
  source.ids = config.eos_ids;
  source.ids.push_back(config.bos_id);
  return source;
}

absl::StatusOr<LoadedCodec> LoadPieces(std::string_view serialized, const ControlSource& source,
                                       const ModelConfig& config) {
  ASSIGN_OR_RETURN(auto table, ParsePieceTable(serialized));
  if (table.pieces.size() > static_cast<size_t>(config.vocab_size)) {
    return absl::FailedPreconditionError(absl::StrCat("tokenizer model: has ", table.pieces.size(),
                                                      " pieces, config.json says vocab_size ",
                                                      config.vocab_size));
  }
  const int32_t bos_id = config.bos_id >= 0 ? config.bos_id : table.bos_id;
  const int32_t eos_id = table.eos_id;
  return LoadedCodec{
      .codec = std::make_unique<PieceCodec>(std::move(table), bos_id, source, config.vocab_size),
      .eos_id = eos_id};
}

absl::StatusOr<LoadedCodec> LoadJson(const TokenizerFiles& files, const ControlSource& source,
                                     const ModelConfig& config) {
  ASSIGN_OR_RETURN(auto codec, LoadJsonCodec(*files.tokenizer_json, source, config.vocab_size));
  return LoadedCodec{.codec = std::move(codec)};
}

int32_t IdOf(const TokenTexts& tokens, std::string_view spelled) {
  if (spelled.empty()) return -1;
  for (size_t id = 0; id < tokens.spelled.size(); ++id) {
    if (tokens.spelled[id] == spelled) return static_cast<int32_t>(id);
  }
  return -1;
}

absl::Status CheckRanges(std::span<const ByteRange> ranges, size_t size) {
  size_t end = 0;
  for (const ByteRange& range : ranges) {
    if (range.begin < end || range.end < range.begin || range.end > size) {
      return absl::InvalidArgumentError(
          "control ranges must be sorted, disjoint and inside the text");
    }
    end = range.end;
  }
  return absl::OkStatus();
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TextCodec> codec, int32_t vocab_size)
    : codec_(std::move(codec)), vocab_size_(vocab_size) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const TokenizerFiles& files,
                                                           const ModelConfig& config) {
  std::vector<int32_t> special = config.eos_ids;
  special.push_back(config.bos_id);
  for (const int32_t id : special) {
    if (id >= config.vocab_size) {
      return absl::FailedPreconditionError(
          absl::StrCat("config.json: special id ", id, " is outside the vocabulary"));
    }
  }
  TokenizerConfig texts;
  if (files.tokenizer_config_json) {
    ASSIGN_OR_RETURN(texts, ParseTokenizerConfig(*files.tokenizer_config_json));
  }
  absl::StatusOr<LoadedCodec> loaded = LoadedCodec();
  ASSIGN_OR_RETURN(const auto control, ControlOf(files, texts, config));
  if (files.tokenizer_json) {
    loaded = LoadJson(files, control, config);
  } else if (files.sentencepiece_model) {
    loaded = LoadPieces(*files.sentencepiece_model, control, config);
  }
  if (!loaded.ok()) return loaded.status();
  if (files.tokenizer_json && config.eos_ids.empty()) {
    loaded->eos_id = IdOf(loaded->codec->tokens(), texts.eos_token);
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(loaded->codec), config.vocab_size));
  tokenizer->SetEnds(config, loaded->eos_id);
  if (!texts.bos_token.empty()) tokenizer->bos_text_ = std::move(texts.bos_token);
  if (!texts.eos_token.empty()) tokenizer->eos_text_ = std::move(texts.eos_token);
  return tokenizer;
}

void Tokenizer::SetEnds(const ModelConfig& config, int32_t file_eos_id) {
  if (codec_) {
    beginning_ = codec_->beginning();
  } else if (config.bos_id >= 0) {
    beginning_ = {config.bos_id};
  }
  eos_ids_ = config.eos_ids;
  if (eos_ids_.empty() && file_eos_id >= 0) eos_ids_ = {file_eos_id};
  if (codec_) {
    special_ids_ = codec_->tokens().special;
  } else {
    std::set<int32_t> ends(eos_ids_.begin(), eos_ids_.end());
    ends.insert(beginning_.begin(), beginning_.end());
    special_ids_.assign(ends.begin(), ends.end());
  }
  bos_text_ = TokenText(beginning_.empty() ? config.bos_id : beginning_.front());
  if (!eos_ids_.empty()) eos_text_ = TokenText(eos_ids_.front());
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_bos,
                                                       std::span<const ByteRange> control) const {
  if (!codec_) {
    return absl::FailedPreconditionError(
        "text: the checkpoint has neither a tokenizer.json nor a tokenizer.model");
  }
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("text is over ", kMaxTextBytes, " bytes"));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", *offset));
  }
  RETURN_IF_ERROR(CheckRanges(control, text.size()));
  auto ids = codec_->Encode(text, control);
  if (!ids.ok() || !add_bos) return ids;
  const bool has_beginning = !control.empty() && ids->size() >= beginning_.size() &&
                             std::equal(beginning_.begin(), beginning_.end(), ids->begin());
  if (!has_beginning) ids->insert(ids->begin(), beginning_.begin(), beginning_.end());
  ids->insert(ids->end(), codec_->ending().begin(), codec_->ending().end());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_bos,
                                                       bool parse_special) const {
  const ByteRange all = {.begin = 0, .end = text.size()};
  return Encode(text, add_bos,
                parse_special ? std::span<const ByteRange>(&all, 1) : std::span<const ByteRange>());
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  if (!codec_ || id < 0 || id >= vocab_size_) return {};
  return codec_->tokens().spelled[static_cast<size_t>(id)];
}

std::string_view Tokenizer::PieceBytes(int32_t id) const {
  if (!codec_ || id < 0 || id >= vocab_size_) return {};
  return codec_->tokens().bytes[static_cast<size_t>(id)];
}

std::string_view Tokenizer::FirstPieceBytes(int32_t id) const {
  if (!codec_ || id < 0 || id >= vocab_size_) return {};
  return codec_->tokens().first[static_cast<size_t>(id)];
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return std::binary_search(special_ids_.begin(), special_ids_.end(), id);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool show_special) const {
  std::string text;
  Utf8Assembler assembler;
  bool first = true;
  for (const int32_t id : ids) {
    if (show_special && IsSpecial(id)) {
      assembler.Append(TokenText(id), text);
    } else {
      assembler.Append(first ? FirstPieceBytes(id) : PieceBytes(id), text);
    }
    first = first && PieceBytes(id).empty();
  }
  assembler.Finish(text);
  return text;
}

}  // namespace eta
