#include "service/vllm/tokenizer_bundle.h"

#include <zip.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using NamedFiles = std::vector<std::pair<const char*, std::string>>;

constexpr zip_uint16_t kNewYear1980 = 0x21;  // a date as ZIP has them
constexpr zip_uint32_t kCompression = 6;

absl::Status ZipFailed(zip_error_t* error) {
  return absl::InternalError(absl::StrCat("the tokenizer's archive: ", zip_error_strerror(error)));
}

struct FreeSource {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using Source = std::unique_ptr<zip_source_t, FreeSource>;
struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

// A tokenizer_config.json whose template is another one has this one from now on.
std::string WithTemplate(const std::string& config, const std::string& chat_template) {
  auto json = nlohmann::ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("chat_template")) return config;
  if (json["chat_template"] == chat_template) return config;
  json["chat_template"] = chat_template;
  return json.dump(2);
}

NamedFiles FilesOf(const TokenizerFiles& files) {
  NamedFiles named;
  if (files.tokenizer_json) named.emplace_back("tokenizer.json", *files.tokenizer_json);
  if (files.sentencepiece_model) named.emplace_back("tokenizer.model", *files.sentencepiece_model);
  if (files.tokenizer_config_json) {
    const std::string& config = *files.tokenizer_config_json;
    named.emplace_back("tokenizer_config.json",
                       files.chat_template ? WithTemplate(config, *files.chat_template) : config);
  }
  if (files.chat_template) named.emplace_back("chat_template.jinja", *files.chat_template);
  return named;
}

absl::Status AddFile(const char* name, const std::string& content, zip_t* archive) {
  Source part(zip_source_buffer(archive, content.data(), content.size(), 0));
  const zip_int64_t index =
      part ? zip_file_add(archive, name, part.get(), ZIP_FL_ENC_UTF_8) : zip_int64_t{-1};
  if (index < 0) return ZipFailed(zip_get_error(archive));
  (void)part.release();  // the archive's now
  const auto place = static_cast<zip_uint64_t>(index);
  if (zip_set_file_compression(archive, place, ZIP_CM_DEFLATE, kCompression) != 0 ||
      zip_file_set_dostime(archive, place, 0, kNewYear1980, 0) != 0) {
    return ZipFailed(zip_get_error(archive));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadBack(zip_source_t* source) {
  if (zip_source_open(source) != 0) return ZipFailed(zip_source_error(source));
  std::string bytes;
  char piece[1 << 16];
  zip_int64_t count = 0;
  while ((count = zip_source_read(source, piece, sizeof(piece))) > 0) {
    bytes.append(piece, static_cast<size_t>(count));
  }
  zip_source_close(source);
  if (count < 0) return ZipFailed(zip_source_error(source));
  return bytes;
}

absl::StatusOr<std::string> Zip(const NamedFiles& files) {
  zip_error_t error;
  zip_error_init(&error);
  const Source result(zip_source_buffer_create(nullptr, 0, 0, &error));
  if (!result) return ZipFailed(&error);
  Archive archive(zip_open_from_source(result.get(), ZIP_TRUNCATE, &error));
  if (!archive) return ZipFailed(&error);
  zip_source_keep(result.get());  // beside the archive, which lets go of it when it closes
  for (const auto& [name, content] : files) {
    RETURN_IF_ERROR(AddFile(name, content, archive.get()));
  }
  if (zip_close(archive.get()) != 0) return ZipFailed(zip_get_error(archive.get()));
  (void)archive.release();
  return ReadBack(result.get());
}

}  // namespace

absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const TokenizerFiles& files) {
  if (!files.tokenizer_json && !files.sentencepiece_model) {
    return UnsupportedByModel("tokenizer", "this model came without one");
  }
  TokenizerBundle bundle;
  ASSIGN_OR_RETURN(bundle.zip, Zip(FilesOf(files)));
  ASSIGN_OR_RETURN(bundle.sha256, Sha256Hex(bundle.zip));
  return bundle;
}

}  // namespace eta
