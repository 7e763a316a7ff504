// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/json_codec.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/added_tokens.h"
#include "engine/tokenizer/json/bpe_model.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"
#include "engine/tokenizer/json/post_processor.h"
#include "engine/tokenizer/json/scratch_pool.h"
#include "engine/tokenizer/json/token_decoder.h"
#include "engine/tokenizer/json/tokenizer_file.h"
#include "engine/tokenizer/text/splits.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

using Json = nlohmann::json;

struct Parts {
  TokenTexts tokens;
  std::vector<std::unique_ptr<const Normalizer>> normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<const BpeModel> model;
  AddedTokens raw;         // looked for in the text as it is
  AddedTokens normalized;  // and in the normalized one
  PostProcessor ends;
  size_t longest_added = 0;
};

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

// Adds the ids of tokens that `text` spells, as it is or normalized, control tokens and plain ones
// apart.
absl::Status FindAdded(std::string_view text, const AddedTokens& raw, const AddedTokens& normalized,
                       const Normalizers& normalizers, RegexRun& regex, std::set<int32_t>& ids) {
  raw.FindIn(text, ids);
  if (normalized.empty()) return absl::OkStatus();
  MarkedText normal{.text = std::string(text)};
  for (const auto& normalizer : normalizers) RETURN_IF_ERROR(normalizer->Apply(normal, regex));
  normalized.FindIn(normal.text, ids);
  return absl::OkStatus();
}

class JsonCodec : public TextCodec {
 public:
  explicit JsonCodec(Parts parts)
      : parts_(std::move(parts)), max_token_bytes_(MaxTokenBytes(parts_)) {}

  const TokenTexts& tokens() const override { return parts_.tokens; }
  size_t max_token_bytes() const override { return max_token_bytes_; }
  const std::vector<int32_t>& beginning() const override { return parts_.ends.beginning; }
  const std::vector<int32_t>& ending() const override { return parts_.ends.ending; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              std::span<const ByteRange> control) const override;

 private:
  // A text on its way, and the ids so far.
  struct Run {
    Run(std::string_view whole, std::span<const ByteRange> ranges, BpeScratch& borrowed)
        : text(whole), control(JoinTouching(ranges)), cut(whole.size()), scratch(borrowed) {}

    const std::string_view text;
    const std::vector<ByteRange> control;
    std::set<int32_t> withheld;  // tokens that count in `control` alone, beside control tokens
    CutRun cut;
    BpeScratch& scratch;
    std::vector<int32_t> ids;
    absl::Status status;
  };

  static size_t MaxTokenBytes(const Parts& parts);
  void Withhold(Run& run) const;
  void EncodeStretch(ByteRange stretch, Run& run) const;
  void EncodeWords(TextPiece piece, Run& run) const;

  const Parts parts_;
  const size_t max_token_bytes_;
  mutable ScratchPool scratches_;
};

size_t JsonCodec::MaxTokenBytes(const Parts& parts) {
  size_t bytes = parts.model->max_token_bytes();
  if (bytes == 0 || parts.raw.strips() || parts.normalized.strips()) return 0;
  bytes = std::max(bytes, parts.longest_added);
  for (const auto& stage : parts.pre_tokenizers) {
    if (!stage->keeps_all()) return 0;
  }
  for (const auto& normalizer : parts.normalizers) {
    const auto product = CheckedMul(bytes, normalizer->max_shrink());
    if (!product) return 0;
    bytes = *product;
  }
  return bytes;
}

absl::StatusOr<std::vector<int32_t>> JsonCodec::Encode(std::string_view text,
                                                       std::span<const ByteRange> control) const {
  const ScratchPool::Loan scratch = scratches_.Borrow();
  Run run(text, control, *scratch);
  Withhold(run);
  const auto on_text = [&](ByteRange stretch) { EncodeStretch(stretch, run); };
  if (parts_.raw.empty()) {
    on_text({.begin = 0, .end = text.size()});
  } else {
    parts_.raw.Split(text, run.control, run.withheld, on_text,
                     [&run](int32_t id) { run.ids.push_back(id); });
  }
  if (!run.status.ok()) return run.status;
  return std::move(run.ids);
}

// Tokens that the caller wrote as structure in this text. Where all of it is, there is no other.
void JsonCodec::Withhold(Run& run) const {
  for (const ByteRange& range : run.control) {
    const std::string_view written = run.text.substr(range.begin, range.end - range.begin);
    if (written.size() == run.text.size()) return;
    RegexRun regex(written.size());
    run.status.Update(
        FindAdded(written, parts_.raw, parts_.normalized, parts_.normalizers, regex, run.withheld));
  }
}

// The marked bytes as ranges.
std::vector<ByteRange> RangesOf(std::string_view marks) {
  std::vector<ByteRange> ranges;
  for (size_t at = 0; at < marks.size(); ++at) {
    if (marks[at] == 0) continue;
    if (ranges.empty() || ranges.back().end != at) ranges.push_back({.begin = at, .end = at});
    ranges.back().end = at + 1;
  }
  return ranges;
}

// 1 for each byte of `stretch` that lies in a range.
std::string MarksOf(ByteRange stretch, std::span<const ByteRange> ranges) {
  std::string marks(stretch.end - stretch.begin, '\0');
  auto range = std::partition_point(ranges.begin(), ranges.end(), [&stretch](const ByteRange& r) {
    return r.end <= stretch.begin;
  });
  for (; range != ranges.end() && range->begin < stretch.end; ++range) {
    const size_t begin = std::max(range->begin, stretch.begin) - stretch.begin;
    const size_t end = std::min(range->end, stretch.end) - stretch.begin;
    std::fill(marks.begin() + static_cast<std::ptrdiff_t>(begin),
              marks.begin() + static_cast<std::ptrdiff_t>(end), '\1');
  }
  return marks;
}

void JsonCodec::EncodeStretch(ByteRange stretch, Run& run) const {
  if (!run.status.ok()) return;
  const std::string_view part = run.text.substr(stretch.begin, stretch.end - stretch.begin);
  const bool begins_text = stretch.begin == 0;
  if (parts_.normalizers.empty() && parts_.normalized.empty()) {
    EncodeWords({.text = part, .begins_text = begins_text}, run);
    return;
  }
  MarkedText normal{.text = std::string(part), .marks = {}, .begins_text = begins_text};
  const bool asks_marks = !parts_.normalized.empty() && !run.control.empty();
  if (asks_marks) normal.marks = MarksOf(stretch, run.control);
  for (const auto& normalizer : parts_.normalizers) {
    run.status.Update(normalizer->Apply(normal, run.cut.regex));
    if (!run.status.ok()) return;
  }
  const std::string_view whole = normal.text;
  const auto on_text = [&](ByteRange inner) {
    EncodeWords({.text = whole.substr(inner.begin, inner.end - inner.begin),
                 .begins_text = normal.begins_text && inner.begin == 0},
                run);
  };
  if (parts_.normalized.empty()) {
    on_text({.begin = 0, .end = whole.size()});
  } else {
    parts_.normalized.Split(whole, RangesOf(normal.marks), run.withheld, on_text,
                            [&run](int32_t id) { run.ids.push_back(id); });
  }
}

// `word` is a part of `text`, or what the file's normalizers made of one.
absl::Status NoTokenFor(std::string_view word, size_t place, bool byte_level,
                        std::string_view text) {
  std::string_view unit = word.substr(place, 1);
  std::string named = absl::StrFormat("byte 0x%02X", static_cast<uint8_t>(unit.front()));
  if (!byte_level) {
    const Character character = CharacterAt(word, place);
    unit = word.substr(place, character.size);
    named = absl::StrFormat("character U+%04X", static_cast<uint32_t>(character.code));
  }
  const std::less<> before;
  const char* const end = text.data() + text.size();
  const bool is_part = !before(unit.data(), text.data()) && before(unit.data(), end);
  const size_t at = is_part ? static_cast<size_t>(unit.data() - text.data()) : text.find(unit);
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the model's vocabulary has no token for ", named, ", ",
                                at == std::string_view::npos ? "which its tokenizer writes"
                                                             : absl::StrCat("at offset ", at)),
                   {.metadata = {{kNoTokenFor, named}}});
}

void JsonCodec::EncodeWords(TextPiece piece, Run& run) const {
  if (!run.status.ok() || piece.text.empty()) return;
  CutByAll(parts_.pre_tokenizers, piece, run.cut, [this, &run](TextPiece word) {
    if (!run.status.ok() || !run.cut.regex.status().ok()) return;
    if (const auto place = parts_.model->Encode(word.text, run.scratch, run.ids)) {
      run.status = NoTokenFor(word.text, *place, parts_.model->options().byte_level, run.text);
    }
  });
  run.status.Update(run.cut.regex.status());
}

absl::StatusOr<BpeOptions> ReadModel(const Json& root, bool has_merges) {
  if (!root.is_object()) return InvalidPart("model", "must be an object");
  PartFields fields(root, "model");
  // Files of old have none.
  const bool has_type = root.contains("type") && root["type"].is_string();
  const std::string type = has_type ? root["type"].get<std::string>() : "";
  if (has_type ? type != "BPE" : !has_merges) {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer.json: model: type ", Quoted(type), " is not supported"));
  }
  const auto must_be_nothing = [&](const std::string& field) {
    if (!fields.Has(field) || fields.IsNull(field)) return absl::OkStatus();
    const Json& value = root[field];
    const bool nothing = value == "" || (value.is_number() && value.get<double>() == 0.0);
    return nothing ? absl::OkStatus()
                   : absl::UnimplementedError(
                         absl::StrCat("tokenizer.json: model.", field, " is not supported"));
  };
  RETURN_IF_ERROR(must_be_nothing("dropout"));
  RETURN_IF_ERROR(must_be_nothing("continuing_subword_prefix"));
  RETURN_IF_ERROR(must_be_nothing("end_of_word_suffix"));
  BpeOptions options;
  options.fuse_unk = fields.BooleanOr("fuse_unk", false);
  options.byte_fallback = fields.BooleanOr("byte_fallback", false);
  options.ignore_merges = fields.BooleanOr("ignore_merges", false);
  if (fields.Has("unk_token") && !fields.IsNull("unk_token")) {
    options.unk_token = fields.Text("unk_token");
  }
  for (const char* field : {"vocab", "merges"}) fields.IsNull(field);  // read elsewhere
  RETURN_IF_ERROR(fields.Finish());
  return options;
}

absl::Status CheckIds(const TokenizerTables& tables, const VocabularyIds& vocabulary,
                      int32_t vocab_size) {
  const auto too_large = [vocab_size](const std::string& what, int32_t id) {
    return absl::FailedPreconditionError(absl::StrCat("tokenizer.json: ", what, ": id ", id,
                                                      " is outside of config.json's vocab_size ",
                                                      vocab_size));
  };
  std::unordered_map<int32_t, size_t> of_id;
  for (size_t i = 0; i < tables.ids.size(); ++i) {
    if (tables.ids[i] >= vocab_size) return too_large("model.vocab", tables.ids[i]);
    of_id.emplace(tables.ids[i], i);
  }
  std::unordered_map<std::string_view, size_t> seen;
  std::vector<bool> taken(static_cast<size_t>(vocab_size));
  for (size_t i = 0; i < tables.added.size(); ++i) {
    const AddedToken& token = tables.added[i];
    const std::string place = absl::StrCat("added_tokens[", i, "]");
    if (token.id >= vocab_size) return too_large(place, token.id);
    if (!seen.emplace(token.content, i).second) {
      return InvalidPart(place, "its content is there twice");
    }
    if (taken[static_cast<size_t>(token.id)]) {
      return InvalidPart(place, absl::StrCat("id ", token.id, " is there twice"));
    }
    taken[static_cast<size_t>(token.id)] = true;
    const auto known = vocabulary.find(token.content);
    if (known != vocabulary.end() && known->second != token.id) {
      return InvalidPart(
          place, absl::StrCat("has id ", token.id, ", but ", known->second, " in model.vocab"));
    }
    const auto other = of_id.find(token.id);
    if (other != of_id.end() && tables.vocabulary[other->second] != token.content) {
      return InvalidPart(place, absl::StrCat("id ", token.id, " is another token in model.vocab"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenTexts> ReadTexts(const TokenizerTables& tables, const TokenDecoder& decoder,
                                     int32_t vocab_size) {
  struct Token {
    std::string_view spelled;
    bool special = false;
  };
  std::vector<Token> by_id(static_cast<size_t>(vocab_size));
  for (size_t i = 0; i < tables.ids.size(); ++i) {
    by_id[static_cast<size_t>(tables.ids[i])].spelled = tables.vocabulary[i];
  }
  for (const AddedToken& token : tables.added) {
    by_id[static_cast<size_t>(token.id)] = {.spelled = token.content, .special = token.special};
  }
  TokenTexts texts;
  for (const Token& token : by_id) {
    if (token.special) texts.special.push_back(static_cast<int32_t>(texts.spelled.size()));
    texts.spelled.Add(token.spelled);
    if (token.special || token.spelled.empty()) {
      texts.bytes.Add("");
      texts.first.Add("");
      continue;
    }
    ASSIGN_OR_RETURN(const auto bytes, decoder.Decode(token.spelled, /*first=*/false));
    texts.bytes.Add(bytes);
    ASSIGN_OR_RETURN(const auto first, decoder.Decode(token.spelled, /*first=*/true));
    texts.first.Add(first);
  }
  return texts;
}

// What added tokens are, by id.
struct AddedKinds {
  std::vector<bool> control;  // part of a text's structure
  std::vector<bool> plain;    // no structure, though a template writes it
};

// Those of them whose `normalized` is the one asked for.
absl::StatusOr<AddedTokens> MakeAdded(const TokenizerTables& tables, bool normalized,
                                      const AddedKinds& kinds, const Normalizers& normalizers) {
  std::vector<SoughtToken> sought;
  // Special ones first: of two that are the same once normalized, the first counts.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : tables.added) {
      if (token.normalized != normalized || token.special != special) continue;
      MarkedText text{.text = token.content};
      RegexRun run(text.text.size());
      for (const auto& normalizer : normalizers) {
        if (normalized) RETURN_IF_ERROR(normalizer->Apply(text, run));
      }
      if (text.text.empty()) continue;
      sought.push_back({.text = std::move(text.text),
                        .id = token.id,
                        .control = kinds.control[static_cast<size_t>(token.id)],
                        .plain = kinds.plain[static_cast<size_t>(token.id)],
                        .single_word = token.single_word,
                        .lstrip = token.lstrip,
                        .rstrip = token.rstrip});
    }
  }
  return AddedTokens(std::move(sought));
}

// What begins and ends a text, and the added tokens that the template writes.
absl::StatusOr<std::set<int32_t>> StructureIds(const TokenizerTables& tables,
                                               const ControlSource& source, const AddedKinds& kinds,
                                               const Normalizers& normalizers) {
  std::set<int32_t> ids(source.ids.begin(), source.ids.end());
  if (source.written.empty()) return ids;
  ASSIGN_OR_RETURN(const auto raw, MakeAdded(tables, /*normalized=*/false, kinds, normalizers));
  ASSIGN_OR_RETURN(const auto normalized,
                   MakeAdded(tables, /*normalized=*/true, kinds, normalizers));
  for (const std::string& text : source.written) {
    RegexRun regex(text.size());
    // A text that a normalizer's pattern exceeds its limits on tells less.
    (void)FindAdded(text, raw, normalized, normalizers, regex, ids);
  }
  return ids;
}

// Tells kinds apart. An unknown token that is structure is none: whoever writes what no token
// stands for would write it.
absl::StatusOr<AddedKinds> TellKinds(const TokenizerTables& tables, const VocabularyIds& vocabulary,
                                     const ControlSource& source, const Normalizers& normalizers,
                                     int32_t vocab_size, BpeOptions& options) {
  const auto size = static_cast<size_t>(vocab_size);
  AddedKinds kinds = {.control = std::vector<bool>(size), .plain = std::vector<bool>(size)};
  for (const AddedToken& token : tables.added) {
    const bool is_unit =
        vocabulary.contains(token.content) && IsUnit(token.content, options.byte_level);
    kinds.plain[static_cast<size_t>(token.id)] = is_unit || IsBlankText(token.content);
  }
  ASSIGN_OR_RETURN(const auto structure, StructureIds(tables, source, kinds, normalizers));
  for (const AddedToken& token : tables.added) {
    const bool is_structure = structure.contains(token.id) && !IsBlankText(token.content);
    kinds.control[static_cast<size_t>(token.id)] = token.special || is_structure;
  }
  const auto unknown = options.unk_token ? vocabulary.find(*options.unk_token) : vocabulary.end();
  if (unknown != vocabulary.end() && structure.contains(unknown->second)) {
    options.unk_token.reset();
  }
  options.never_made = kinds.control;
  return kinds;
}

absl::Status CheckTop(const Json& root) {
  PartFields fields(root, "");
  if (fields.Has("version") && root["version"] != "1.0") {
    return absl::UnimplementedError(
        "tokenizer.json: a version other than \"1.0\" is not supported");
  }
  for (const char* field : {"version", "truncation", "padding", "added_tokens", "normalizer",
                            "pre_tokenizer", "model", "post_processor", "decoder"}) {
    if (fields.Has(field)) fields.IsNull(field);
  }
  return fields.Finish();
}

const Json& At(const Json& root, const char* field) {
  static const Json kNull;
  const auto found = root.find(field);
  return found == root.end() ? kNull : *found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextCodec>> LoadJsonCodec(std::string_view json,
                                                               const ControlSource& source,
                                                               int32_t vocab_size) {
  ASSIGN_OR_RETURN(auto file, ParseTokenizerFile(json));
  const Json& root = file.rest.root();
  const TokenizerTables& tables = file.tables;
  RETURN_IF_ERROR(CheckTop(root));
  ASSIGN_OR_RETURN(auto options,
                   ReadModel(At(root, "model"), At(root, "model").contains("merges")));
  if (!tables.has_vocabulary) return InvalidPart("model.vocab", "is missing");
  ASSIGN_OR_RETURN(const auto vocabulary, IndexVocabulary(tables));
  RETURN_IF_ERROR(CheckIds(tables, vocabulary, vocab_size));

  Parts parts;
  ASSIGN_OR_RETURN(parts.normalizers, MakeNormalizers(At(root, "normalizer")));
  ASSIGN_OR_RETURN(auto pre_tokenizers, MakePreTokenizers(At(root, "pre_tokenizer")));
  parts.pre_tokenizers = std::move(pre_tokenizers.stages);
  options.byte_level = pre_tokenizers.byte_level;
  ASSIGN_OR_RETURN(parts.ends, MakePostProcessor(At(root, "post_processor"), vocab_size));
  ControlSource structure = source;
  for (const auto& ids : {parts.ends.beginning, parts.ends.ending}) {
    structure.ids.insert(structure.ids.end(), ids.begin(), ids.end());
  }
  ASSIGN_OR_RETURN(const auto kinds, TellKinds(tables, vocabulary, structure, parts.normalizers,
                                               vocab_size, options));
  ASSIGN_OR_RETURN(parts.model, BpeModel::Make(tables, vocabulary, std::move(options)));
  ASSIGN_OR_RETURN(const auto decoder, TokenDecoder::Make(At(root, "decoder")));
  ASSIGN_OR_RETURN(parts.tokens, ReadTexts(tables, decoder, vocab_size));
  ASSIGN_OR_RETURN(parts.raw, MakeAdded(tables, /*normalized=*/false, kinds, parts.normalizers));
  ASSIGN_OR_RETURN(parts.normalized,
                   MakeAdded(tables, /*normalized=*/true, kinds, parts.normalizers));
  for (const AddedToken& token : tables.added) {
    parts.longest_added = std::max(parts.longest_added, token.content.size());
  }
  return std::make_unique<JsonCodec>(std::move(parts));
}

}  // namespace eta
