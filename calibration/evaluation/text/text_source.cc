#include "calibration/evaluation/text/text_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

class PlainText : public TextSource {
 public:
  explicit PlainText(LineReader reader) : reader_(std::move(reader)) {}

 private:
  absl::StatusOr<std::optional<std::string>> Read() override { return reader_.Rest(); }

  LineReader reader_;
};

class JsonLines : public TextSource {
 public:
  explicit JsonLines(LineReader reader) : reader_(std::move(reader)) {}

 private:
  absl::StatusOr<std::optional<std::string>> Read() override {
    absl::StatusOr<std::optional<std::string>> line = reader_.Next();
    if (!line.ok() || !line->has_value()) return line;
    nlohmann::json json = nlohmann::json::parse(**line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "text: line ", reader_.number(), " is not a JSON object with a string field 'text'"));
    }
    return std::move(json["text"].get_ref<std::string&>());
  }

  LineReader reader_;
};

}  // namespace

absl::StatusOr<std::optional<std::string>> TextSource::Next() {
  auto document = Read();
  if (document.ok() && document->has_value()) ++documents_;
  return document;
}

absl::Status TextSource::InDocument(const absl::Status& status) const {
  const std::string place = absl::StrCat("document ", documents_);
  const absl::Status named = InField(place, status);
  if (GetErrorDetail(named).field != place) return status;
  return InvalidField("text", std::string(named.message()));
}

absl::Status CheckTextTokens(size_t tokens, size_t limit) {
  if (tokens <= limit) return absl::OkStatus();
  return InvalidField("text", absl::StrCat("more than ", limit, " tokens of it would be held"));
}

absl::StatusOr<std::unique_ptr<TextSource>> TextSource::Open(const std::string& path,
                                                             const TextLimits& limits) {
  const std::string name = path.ends_with(".xz") ? path.substr(0, path.size() - 3) : path;
  const bool lines = name.ends_with(".jsonl");
  if (!lines && !name.ends_with(".txt")) {
    return absl::InvalidArgumentError(
        "text: the file's name must end in .txt, .jsonl, .txt.xz or .jsonl.xz");
  }
  ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path, limits));
  if (lines) return std::make_unique<JsonLines>(std::move(reader));
  return std::make_unique<PlainText>(std::move(reader));
}

}  // namespace eta
