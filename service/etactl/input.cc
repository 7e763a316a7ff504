#include "service/etactl/input.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

namespace fs = std::filesystem;

// Reads to the end. `false` if a read failed.
bool ReadStream(std::istream& in, std::string* text) {
  char buffer[64 * 1024];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text->append(buffer, static_cast<size_t>(in.gcount()));
  }
  return in.eof() && !in.bad();
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  fs::directory_iterator entries(path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& entry = entries->path();
    const bool wanted = entry.extension() == ".txt" || entry.extension() == ".jsonl";
    if (wanted && fs::is_regular_file(entry, error)) files.push_back(entry.string());
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no *.txt or *.jsonl files in ", path));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<Sample> SampleOfLine(const std::string& line, const std::string& place) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", why));
  };
  if (!json.is_object()) return refuse("not a JSON object");
  const bool text = json.contains("text");
  if (text == json.contains("token_ids")) return refuse("needs either text or token_ids");
  Sample sample;
  sample.origin = place;
  if (json.contains("document")) {
    if (!json["document"].is_string()) return refuse("document is not a string");
    sample.document = json["document"].get<std::string>();
  }
  if (text) {
    if (!json["text"].is_string()) return refuse("text is not a string");
    sample.text = json["text"].get<std::string>();
    return sample;
  }
  if (!json["token_ids"].is_array()) return refuse("token_ids is not a list");
  for (const auto& id : json["token_ids"]) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return refuse("token_ids holds something that is no token id");
    }
    sample.token_ids.push_back(id.get<int32_t>());
  }
  return sample;
}

absl::Status AddSamples(const std::string& file, std::string content, std::vector<Sample>* added) {
  if (fs::path(file).extension() != ".jsonl") {
    added->push_back({.text = std::move(content), .token_ids = {}, .origin = file});
    return absl::OkStatus();
  }
  std::istringstream lines(content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ASSIGN_OR_RETURN(Sample sample, SampleOfLine(line, absl::StrCat(file, ":", number)));
    added->push_back(std::move(sample));
  }
  return absl::OkStatus();
}

// `echo` and editors end what they write with a line end that is no part of the prompt.
std::string WithoutLineEnd(std::string text) {
  if (text.empty() || text.back() != '\n') return text;
  text.pop_back();
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadAll(const std::string& file) {
  std::string text;
  if (file == kStandardInput) {
    if (ReadStream(std::cin, &text)) return text;
    return absl::InvalidArgumentError("cannot read standard input");
  }
  std::ifstream in(file, std::ios::binary);
  if (in && ReadStream(in, &text)) return text;
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", file));
}

absl::StatusOr<std::string> ReadText(const std::string& name, const std::string& argument,
                                     const std::string& file) {
  if (!file.empty()) return ReadAll(file);
  if (!argument.empty() && argument != kStandardInput) return argument;
  if (argument.empty() && IsTerminal(STDIN_FILENO)) {
    return absl::InvalidArgumentError(
        absl::StrCat("nothing given: give ", name, ", --file FILE, or - to read one here"));
  }
  ASSIGN_OR_RETURN(std::string text, ReadAll(kStandardInput));
  return WithoutLineEnd(std::move(text));
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& name,
                                                  const std::string& list_or_file) {
  std::string list = list_or_file;
  if (list.find_first_not_of("0123456789-+, \t\r\n") != std::string::npos ||
      list == kStandardInput) {
    ASSIGN_OR_RETURN(list, ReadAll(list_or_file));
  }
  std::vector<int32_t> ids;
  for (const auto word : absl::StrSplit(list, absl::ByAnyChar(", \t\r\n[]"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": not a token id: ", word));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::vector<Sample>> ReadSamples(const std::vector<std::string>& paths,
                                                int64_t max_bytes) {
  std::vector<Sample> samples;
  int64_t bytes = 0;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(path));
    for (const std::string& file : files) {
      std::error_code error;
      const auto size = fs::file_size(file, error);
      if (!error) bytes += static_cast<int64_t>(size);
      if (bytes > max_bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("--samples: more than ", ReadableBytes(max_bytes), " up to ", file));
      }
      ASSIGN_OR_RETURN(std::string content, ReadAll(file));
      RETURN_IF_ERROR(AddSamples(file, std::move(content), &samples));
    }
  }
  return samples;
}

}  // namespace eta::ctl
