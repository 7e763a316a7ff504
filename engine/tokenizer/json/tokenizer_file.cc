// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/tokenizer_file.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/utf8.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxRestValues = 65536;
constexpr size_t kMaxRestBytes = size_t{4} << 20;  // of texts
constexpr uint32_t kIdField = 0;
constexpr uint32_t kContentField = 1;
constexpr std::array<const char*, 7> kAddedFields = {
    "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};

class Reader : public nlohmann::json_sax<Json> {
 public:
  ~Reader() override { const JsonTree gone_without_allocating(std::move(root_)); }

  const std::string& error() const { return error_; }
  // Empties it.
  TokenizerFile Finish() { return {std::move(tables_), JsonTree(std::move(root_))}; }

  bool null() override { return Value(Json(nullptr)); }
  bool boolean(bool value) override {
    if (where_ == Where::kAddedToken) return AddedFlag(value);
    return Value(Json(value));
  }
  bool number_integer(number_integer_t value) override { return Number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return Number(value > uint64_t(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return Value(Json(value)); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Fail("is not JSON"); }
  bool start_object(size_t) override;
  bool key(string_t& key) override;
  bool end_object() override { return Close(); }
  bool start_array(size_t) override;
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not JSON at byte ", position));
  }

 private:
  // What the innermost open object or list is.
  enum class Where { kOutside, kRest, kVocabulary, kMerges, kMerge, kAdded, kAddedToken, kSkipped };

  bool Fail(const std::string& error) {
    error_ = error;
    return false;
  }
  bool At(std::string_view first, std::string_view second = {}) const {
    const size_t depth = second.empty() ? 1 : 2;
    return where_ == Where::kRest && open_.size() == depth &&
           (second.empty() ? key_ == first : model_ && key_ == second);
  }
  bool Open(Where where) {
    if (open_.size() == kMaxDepth) return Fail(absl::StrCat("is nested over ", kMaxDepth, " deep"));
    open_.push_back(std::exchange(where_, where));
    return true;
  }
  bool OpenRest(Json container);
  bool Close();
  bool Value(Json value);
  bool Number(int64_t value);
  bool Merge(std::string_view text);
  bool AddMerge(std::string_view left, std::string_view right);
  bool AddedFlag(bool value);
  bool AddedId(int64_t value);
  // Puts a value where the innermost container of the rest wants it; null: limits exceeded.
  Json* Put(Json value);

  TokenizerTables tables_;
  Json root_ = Json::object();
  std::vector<Json*> containers_;  // of the rest, that are open
  std::vector<Where> open_;        // what was innermost before each open one
  Where where_ = Where::kOutside;
  bool model_ = false;  // inside of the field "model"
  std::string key_;
  size_t rest_values_ = 0;
  size_t rest_bytes_ = 0;
  size_t added_bytes_ = 0;
  std::vector<std::string> merge_;  // parts of the open one
  uint32_t added_seen_ = 0;         // bits of kAddedFields
  uint32_t added_field_ = 0;
  std::string error_;
};

Json* Reader::Put(Json value) {
  if (++rest_values_ > kMaxRestValues || rest_bytes_ > kMaxRestBytes) {
    Fail("holds too much beside vocabulary, merges and added tokens");
    return nullptr;
  }
  Json& container = *containers_.back();
  if (container.is_array()) {
    container.push_back(std::move(value));
    return &container.back();
  }
  return &(container[key_] = std::move(value));
}

bool Reader::OpenRest(Json container) {
  if (where_ == Where::kOutside) {
    if (!container.is_object()) return Fail("is not a JSON object");
    containers_.push_back(&root_);
  } else {
    if (open_.size() == 1) model_ = key_ == "model";
    Json* const placed = Put(std::move(container));
    if (placed == nullptr) return false;
    containers_.push_back(placed);
  }
  return Open(Where::kRest);
}

bool Reader::start_object(size_t) {
  switch (where_) {
    case Where::kOutside:
    case Where::kRest:
      if (At("model", "vocab")) {
        tables_.has_vocabulary = true;
        return Open(Where::kVocabulary);
      }
      if (At("added_tokens")) return Fail("added_tokens must be a list");
      if (At("model", "merges")) return Fail("model.merges must be a list");
      return OpenRest(Json::object());
    case Where::kAdded:
      if (tables_.added.size() == kMaxAddedTokens) {
        return Fail(absl::StrCat("added_tokens: over ", kMaxAddedTokens));
      }
      tables_.added.emplace_back();
      added_seen_ = 0;
      return Open(Where::kAddedToken);
    case Where::kSkipped:
      return Open(Where::kSkipped);
    default:
      return Value(Json::object());
  }
}

bool Reader::start_array(size_t) {
  switch (where_) {
    case Where::kOutside:
    case Where::kRest:
      if (At("added_tokens")) return Open(Where::kAdded);
      if (At("model", "merges")) return Open(Where::kMerges);
      if (At("model", "vocab")) return Open(Where::kSkipped);
      return OpenRest(Json::array());
    case Where::kMerges:
      merge_.clear();
      return Open(Where::kMerge);
    case Where::kSkipped:
      return Open(Where::kSkipped);
    default:
      return Value(Json::array());
  }
}

bool Reader::Close() {
  if (where_ == Where::kRest) {
    containers_.pop_back();
  } else if (where_ == Where::kMerge) {
    if (merge_.size() != 2) return Fail("model.merges: a merge must be two texts");
    if (!AddMerge(merge_[0], merge_[1])) return false;
  } else if (where_ == Where::kAddedToken) {
    for (size_t i = 0; i < kAddedFields.size(); ++i) {
      if ((added_seen_ >> i & 1) == 0) {
        return Fail(absl::StrCat("added_tokens[", tables_.added.size() - 1, "].", kAddedFields[i],
                                 " is missing"));
      }
    }
  }
  where_ = open_.back();
  open_.pop_back();
  return true;
}

bool Reader::key(string_t& key) {
  if (where_ == Where::kVocabulary) {
    if (key.empty() || key.size() > kMaxTokenBytes) {
      return Fail(absl::StrCat("model.vocab: a token must have 1 to ", kMaxTokenBytes, " bytes"));
    }
    if (tables_.vocabulary.size() == kMaxVocabulary) {
      return Fail(absl::StrCat("model.vocab: over ", kMaxVocabulary, " tokens"));
    }
    tables_.vocabulary.Add(key);
    return true;
  }
  if (where_ == Where::kAddedToken) {
    const std::string place = absl::StrCat("added_tokens[", tables_.added.size() - 1, "].");
    for (uint32_t i = 0; i < kAddedFields.size(); ++i) {
      if (kAddedFields[i] != key) continue;
      if ((added_seen_ >> i & 1) != 0) return Fail(absl::StrCat(place, key, " is there twice"));
      added_seen_ |= uint32_t{1} << i;
      added_field_ = i;
      return true;
    }
    return Fail(absl::StrCat(place, Quoted(key), " is unknown"));
  }
  if (where_ == Where::kRest) {
    rest_bytes_ += key.size();
    if (containers_.back()->contains(key)) {
      return Fail(absl::StrCat("has the key ", Quoted(key), " twice in one object"));
    }
  }
  key_ = std::move(key);
  // Long parts leave no trace in the tree but this, so that they cannot come twice either.
  const bool is_long = At("added_tokens") || At("model", "vocab") || At("model", "merges");
  if (is_long) (*containers_.back())[key_] = nullptr;
  return true;
}

bool Reader::Value(Json value) {
  switch (where_) {
    case Where::kOutside:
      return Fail("is not a JSON object");
    case Where::kRest:
      if (At("added_tokens")) return value.is_null() || Fail("added_tokens must be a list");
      if (At("model", "vocab")) return Fail("model.vocab must be an object");
      if (At("model", "merges")) return Fail("model.merges must be a list");
      return Put(std::move(value)) != nullptr;
    case Where::kVocabulary:
      return Fail("model.vocab: an id must be a whole number");
    case Where::kMerges:
    case Where::kMerge:
      return Fail("model.merges: a merge must be two texts");
    case Where::kAdded:
      return Fail("added_tokens must be a list of objects");
    case Where::kAddedToken:
      return Fail(absl::StrCat("added_tokens[", tables_.added.size() - 1, "].",
                               kAddedFields[added_field_], " is of another type"));
    case Where::kSkipped:
      break;
  }
  return true;
}

bool Reader::Number(int64_t value) {
  if (where_ == Where::kAddedToken) return AddedId(value);
  if (where_ != Where::kVocabulary) return Value(Json(value));
  if (value < 0 || value >= static_cast<int64_t>(kMaxVocabulary)) {
    return Fail(absl::StrCat("model.vocab: id ", value, " is not in [0, ", kMaxVocabulary, ")"));
  }
  tables_.ids.push_back(static_cast<int32_t>(value));
  return true;
}

bool Reader::string(string_t& value) {
  if (where_ == Where::kMerges) return Merge(value);
  if (where_ == Where::kMerge) {
    if (merge_.size() == 2) return Fail("model.merges: a merge must be two texts");
    merge_.push_back(value);
    return true;
  }
  if (where_ == Where::kAddedToken && added_field_ == kContentField) {
    added_bytes_ += value.size();
    if (value.empty() || value.size() > kMaxTokenBytes) {
      return Fail(absl::StrCat("added_tokens[", tables_.added.size() - 1,
                               "].content must have 1 to ", kMaxTokenBytes, " bytes"));
    }
    if (added_bytes_ > kMaxAddedBytes) {
      return Fail(absl::StrCat("added_tokens: over ", kMaxAddedBytes, " bytes together"));
    }
    tables_.added.back().content = value;
    return true;
  }
  if (where_ == Where::kRest) rest_bytes_ += value.size();
  return Value(where_ == Where::kRest ? Json(std::move(value)) : Json(""));
}

// "a b": older files write both in one text.
bool Reader::Merge(std::string_view text) {
  if (text.starts_with("#version")) return true;
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return Fail("model.merges: a merge must be two texts");
  }
  return AddMerge(text.substr(0, space), text.substr(space + 1));
}

bool Reader::AddMerge(std::string_view left, std::string_view right) {
  if (tables_.merge_left.size() == kMaxMerges) {
    return Fail(absl::StrCat("model.merges: over ", kMaxMerges));
  }
  tables_.merge_left.Add(left);
  tables_.merge_right.Add(right);
  return true;
}

bool Reader::AddedId(int64_t value) {
  if (added_field_ != kIdField) return Value(Json(value));
  if (value < 0 || value >= static_cast<int64_t>(kMaxVocabulary)) {
    return Fail(absl::StrCat("added_tokens[", tables_.added.size() - 1, "].id must be in [0, ",
                             kMaxVocabulary, ")"));
  }
  tables_.added.back().id = static_cast<int32_t>(value);
  return true;
}

bool Reader::AddedFlag(bool value) {
  AddedToken& token = tables_.added.back();
  bool* const flags[] = {nullptr,       nullptr,           &token.single_word, &token.lstrip,
                         &token.rstrip, &token.normalized, &token.special};
  if (flags[added_field_] == nullptr) return Value(Json(value));
  *flags[added_field_] = value;
  return true;
}

}  // namespace

absl::StatusOr<TokenizerFile> ParseTokenizerFile(std::string_view json) {
  const auto invalid = [](const std::string& sentence) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", sentence));
  };
  if (json.size() > kMaxTokenizerJsonBytes) {
    return invalid(absl::StrCat("is over ", kMaxTokenizerJsonBytes, " bytes"));
  }
  if (const auto offset = FirstInvalidUtf8(json)) {
    return invalid(absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  // The parser takes a NUL for the end of its input and would not see what follows.
  if (json.find('\0') != std::string_view::npos) return invalid("holds a NUL byte");
  Reader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return invalid(reader.error());
  return reader.Finish();
}

}  // namespace eta
