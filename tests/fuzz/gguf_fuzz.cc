// Any bytes as a GGUF file, or as the parts of a model: refused with a readable error, or a model
// whose texts are well formed and whose every tensor can be read.
//
// Input: the form and then the file. Form "r": the bytes as they are; form "p": heads of parts,
// each from one "GGUF" to the next; any other form: a head. Behind a head is put the data that it
// calls for, and nothing where that is too much.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/gguf/gguf_file.h"
#include "engine/checkpoint/gguf/gguf_tensor_names.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/model_config.h"
#include "kernels/weights/block_scales.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/gguf_writer.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;
using eta::fuzz::RequireReadable;

constexpr size_t kMaxDataBytes = size_t{1} << 20;
constexpr size_t kMaxParts = 8;

// The head with as much data behind it as its tensors need, at most so much.
std::string WithData(std::string_view head) {
  size_t low = 0;  // too little, where anything is
  size_t high = kMaxDataBytes;
  while (low + 1 < high) {
    const size_t middle = low + (high - low) / 2;
    const auto header = eta::ParseGgufHeader(head, head.size() + middle);
    (header.status().code() == absl::StatusCode::kDataLoss ? low : high) = middle;
  }
  return std::string(head).append(high < kMaxDataBytes ? high : 0, '\x3C');
}

// Writes the parts that these heads make; the path of the first.
std::string WriteHeads(const eta::TempFolder& folder, std::string_view heads) {
  std::vector<std::string> parts;
  while (parts.size() < kMaxParts) {
    const size_t next = heads.find(eta::kGgufMagic, 1);
    parts.push_back(WithData(heads.substr(0, next)));
    if (next == std::string_view::npos) break;
    heads.remove_prefix(next);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    folder.Write(eta::testing::PartName("fuzzed", i, parts.size()), parts[i]);
  }
  return folder.path() + "/" + eta::testing::PartName("fuzzed", 0, parts.size());
}

// Unpacked, a tensor has the numbers that its blocks hold.
void CheckTensor(const eta::GgufFile& file, const std::string& name, const eta::TensorInfo& info) {
  const auto bytes = file.Read(name);
  Require(bytes.ok() && bytes->size() == info.bytes());
  const auto stored = file.ReadStored(name);
  Require(stored.ok());
  if (!stored->blocks) return Require(stored->bytes == *bytes);
  std::vector<std::byte> unpacked(bytes->size());
  eta::UnpackBlocks(*stored->blocks, stored->bytes, unpacked);
  Require(unpacked == *bytes);
  const auto bad = eta::FirstNonFiniteBlock(*stored->blocks, stored->bytes);
  Require(bad.has_value() == eta::FirstNonFinite(*bytes, info.dtype).has_value());
}

void CheckOpened(const eta::GgufFile& file) {
  for (const auto& [name, info] : file.tensors()) {
    CheckTensor(file, name, info);
    Require(eta::ToGgufName(name, /*post_norms=*/false) ||
            eta::ToGgufName(name, /*post_norms=*/true));
  }
  for (const auto& [name, info] : file.index_metric_tensors()) {
    CheckTensor(file, name, info);
    Require(eta::ToGgufName(name).has_value());
  }
  Require(!file.Read("no such tensor").ok());
  const eta::GgufTexts& texts = file.texts();
  Require(nlohmann::json::accept(texts.config_json));
  const auto config = eta::ParseModelConfig(texts.config_json);
  if (!config.ok()) RequireReadable(config.status());
  const eta::TokenizerFiles& files = texts.tokenizer_files;
  Require(!files.tokenizer_json || nlohmann::json::accept(*files.tokenizer_json));
  Require(!files.tokenizer_config_json || nlohmann::json::accept(*files.tokenizer_config_json));
  Require(!texts.generation_config_json || nlohmann::json::accept(*texts.generation_config_json));
  if (files.sentencepiece_model) {
    const auto table = eta::ParsePieceTable(*files.sentencepiece_model);
    if (!table.ok()) RequireReadable(table.status());
  }
}

void Open(const std::string& path) {
  const auto file = eta::GgufFile::Open(path);
  if (file.ok()) {
    CheckOpened(*file);
  } else {
    RequireReadable(file.status());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eta::TempFolder folder(eta::FastParent());
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'p') {
    Open(WriteHeads(folder, rest));
    return 0;
  }
  const std::string bytes = data[0] == 'r' ? std::string(rest) : WithData(rest);
  const auto header = eta::ParseGgufHeader(bytes, bytes.size());
  // All that there is was at hand: nobody may ask for more.
  Require(header.status().code() != absl::StatusCode::kOutOfRange);
  if (!header.ok()) {
    RequireReadable(header.status());
    return 0;
  }
  Open(folder.Write("fuzzed.gguf", bytes));
  return 0;
}
