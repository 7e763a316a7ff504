// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_parts.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"

namespace eta {
namespace {

constexpr uint64_t kFirstHeaderBytes = uint64_t{4} << 20;
constexpr std::string_view kGgufEnding = ".gguf";
constexpr std::string_view kFirstOf = "-00001-of-";
constexpr size_t kPartDigits = 5;  // of a part's number, and of their count

// Keys that speak of one file, and not of the model.
constexpr std::string_view kOfOneFile[] = {gguf_key::kAlignment, gguf_key::kSplitNumber};

struct Split {
  int64_t number = 0;  // of the part, from 0
  int64_t count = 1;
  int64_t tensors = 0;  // of all parts
};

absl::Status PartError(const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF file: ", sentence));
}

absl::StatusOr<Split> ReadSplit(const GgufHeader& header) {
  GgufMetadata metadata(header);
  Split split;
  split.count = metadata.OptionalInteger(gguf_key::kSplitCount, 0, kGgufMaxParts).value_or(1);
  if (split.count > 1) {
    split.number = metadata.Integer(gguf_key::kSplitNumber, 0, split.count - 1);
    split.tensors = metadata.Integer(gguf_key::kSplitTensors, 1, int64_t{kGgufMaxTensors});
  }
  RETURN_IF_ERROR(metadata.status());
  return split;
}

// Behind the model's name; `number` counts from 0.
std::string PartEnding(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

// The head, read in pieces that double until it is whole; `bytes` hold what the header looks at.
absl::StatusOr<GgufHeader> ReadHeader(const InputFile& file, std::string& bytes) {
  for (uint64_t want = kFirstHeaderBytes;; want <<= 1) {
    bytes.resize(std::min({want, file.size(), kGgufMaxHeaderBytes}));
    RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
    auto header = ParseGgufHeader(bytes, file.size());
    if (header.status().code() != absl::StatusCode::kOutOfRange) return header;
  }
}

absl::Status InFile(const InputFile& file, const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(),
          absl::StrCat("file ", Quoted(file.name()), ": ", std::string(status.message()))};
}

// What a part says must be what the first one says.
absl::Status CheckPart(const GgufHeader& first, const Split& split, int64_t number,
                       const GgufHeader& part) {
  if (part.version != first.version) {
    return PartError(
        absl::StrCat("version ", part.version, ", but the first part has version ", first.version));
  }
  ASSIGN_OR_RETURN(const Split own, ReadSplit(part));
  if (own.count != split.count) {
    return PartError(
        absl::StrCat("'split.count' is ", own.count, ", but ", split.count, " in the first part"));
  }
  if (own.number != number) {
    return PartError(absl::StrCat("'split.no' is ", own.number, ", but ", number, " by its name"));
  }
  for (const auto& [key, value] : part.metadata) {
    if (std::ranges::find(kOfOneFile, key) != std::end(kOfOneFile)) continue;
    const auto same = first.metadata.find(key);
    if (same == first.metadata.end() || same->second != value) {
      return PartError(absl::StrCat(Quoted(key), " is not what the first part says"));
    }
  }
  return absl::OkStatus();
}

// Moves the tensors of part `number` to those of the parts before it.
absl::Status TakeTensors(int64_t number, GgufHeader& part, GgufParts& parts) {
  if (parts.header.tensors.size() + part.tensors.size() > kGgufMaxTensors) {
    return PartError(absl::StrCat("brings the model over ", kGgufMaxTensors, " tensors"));
  }
  for (auto& [name, tensor] : part.tensors) {
    tensor.part = static_cast<size_t>(number);
    const auto [entry, is_new] = parts.header.tensors.emplace(name, std::move(tensor));
    if (is_new) continue;
    return PartError(absl::StrCat("tensor ", Quoted(name), " is in file ",
                                  Quoted(parts.files[entry->second.part].name()), " too"));
  }
  return absl::OkStatus();
}

absl::Status AddPart(const std::string& path, const Split& split, int64_t number,
                     const InputFileOptions& options, GgufParts& parts) {
  ASSIGN_OR_RETURN(auto opened, InputFile::Open(path, options));
  parts.files.push_back(std::move(opened));
  const InputFile& file = parts.files.back();
  std::string bytes;
  auto header = ReadHeader(file, bytes);
  if (!header.ok()) return InFile(file, header.status());
  RETURN_IF_ERROR(InFile(file, CheckPart(parts.header, split, number, *header)));
  return InFile(file, TakeTensors(number, *header, parts));
}

// The path of the first part without what makes it that.
absl::StatusOr<std::string> PathOfModel(const std::string& path, const Split& split) {
  if (split.number != 0) {
    return PartError(absl::StrCat("'split.no' is ", split.number,
                                  ": a model is given by its first part, of number 0"));
  }
  const std::string ending = PartEnding(0, split.count);
  if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  return PartError(absl::StrCat("'split.count' is ", split.count,
                                ": the name of the first part must end with ", ending));
}

}  // namespace

absl::StatusOr<GgufParts> OpenGgufParts(const std::string& path, const InputFileOptions& options) {
  GgufParts parts;
  ASSIGN_OR_RETURN(auto first, InputFile::Open(path, options));
  parts.files.push_back(std::move(first));
  auto bytes = std::make_unique<std::string>();
  auto header = ReadHeader(parts.files.front(), *bytes);
  if (!header.ok()) return InFile(parts.files.front(), header.status());
  parts.header = *std::move(header);
  parts.bytes = std::move(bytes);
  const auto split = ReadSplit(parts.header);
  if (!split.ok()) return InFile(parts.files.front(), split.status());
  if (split->count <= 1) return parts;

  const auto model = PathOfModel(path, *split);
  if (!model.ok()) return InFile(parts.files.front(), model.status());
  for (int64_t number = 1; number < split->count; ++number) {
    const std::string of_part = absl::StrCat(*model, PartEnding(number, split->count));
    RETURN_IF_ERROR(AddPart(of_part, *split, number, options, parts));
  }
  if (parts.header.tensors.size() == static_cast<uint64_t>(split->tensors)) return parts;
  return InFile(parts.files.front(),
                PartError(absl::StrCat("'split.tensors.count' is ", split->tensors, ", but the ",
                                       split->count, " parts have ", parts.header.tensors.size())));
}

std::string GgufModelName(std::string_view file_name) {
  if (!file_name.ends_with(kGgufEnding)) return std::string(file_name);
  file_name.remove_suffix(kGgufEnding.size());
  if (file_name.size() <= kFirstOf.size() + kPartDigits) return std::string(file_name);
  const std::string_view count = file_name.substr(file_name.size() - kPartDigits);
  std::string_view name = file_name.substr(0, file_name.size() - kPartDigits);
  const bool digits = std::ranges::all_of(
      count, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
  if (!digits || !name.ends_with(kFirstOf)) return std::string(file_name);
  name.remove_suffix(kFirstOf.size());
  return std::string(name);
}

}  // namespace eta
