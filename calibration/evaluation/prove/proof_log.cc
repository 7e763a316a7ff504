#include "calibration/evaluation/prove/proof_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_check.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using LogJson = nlohmann::ordered_json;

constexpr const char* kLogName = "/units.jsonl";
constexpr uint64_t kMostLogBytes = uint64_t{256} << 20;
constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr double kMostNumber = 1e15;
// Names of a line's own fields; units and keys have others.
constexpr const char* kUnitField = "unit";
constexpr const char* kProofField = "proof";

std::string LineOf(const LogJson& json) {
  return json.dump(-1, ' ', false, LogJson::error_handler_t::replace) + "\n";
}

LogJson HeaderOf(const std::string& fingerprint, const ProofKey& key) {
  LogJson header = {{kProofField, fingerprint}};
  for (const auto& [name, value] : key) header[name] = value;
  return header;
}

absl::StatusOr<LogJson> LogLine(const std::string& line, size_t number) {
  const absl::Status status =
      CheckJson("output", line, {.max_bytes = kMostLineBytes, .max_depth = 1});
  LogJson json = LogJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (status.ok() && json.is_object()) return json;
  return InvalidField("output",
                      absl::StrCat("line ", number, " of units.jsonl is no line of a proof"));
}

// The first part of the key that the header has otherwise.
absl::Status CheckSameProof(const LogJson& header, const ProofKey& key) {
  for (const auto& [name, value] : key) {
    if (header.contains(name) && header[name] == value) continue;
    const std::string there = header.contains(name) && header[name].is_string()
                                  ? header[name].get<std::string>()
                                  : std::string();
    return absl::FailedPreconditionError(
        absl::StrCat("output: the folder holds a proof of another ", name, " ('", there,
                     "', this is '", value, "'): name another folder"));
  }
  return absl::FailedPreconditionError("output: the folder holds another proof");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProofLog>> ProofLog::Open(const std::string& folder,
                                                         const ProofKey& key) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return InvalidField("output", absl::StrCat("the folder cannot be made: ", folder));
  }
  std::string words;
  for (const auto& [name, value] : key) absl::StrAppend(&words, name, " ", value, "\n");
  std::unique_ptr<ProofLog> log(new ProofLog());
  ASSIGN_OR_RETURN(log->fingerprint_, Sha256Hex(words));

  const std::string path = folder + kLogName;
  log->file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log->file_.valid()) return InvalidField("output", "units.jsonl cannot be opened");
  if (flock(log->file_.get(), LOCK_EX | LOCK_NB) != 0) {
    return InvalidField("output", "another proof writes to this folder");
  }
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, {.allow_writable_by_others = true}));
  ASSIGN_OR_RETURN(std::string text, file.ReadAll(kMostLogBytes));
  const size_t last = text.rfind('\n');
  const size_t whole = last == std::string::npos ? 0 : last + 1;
  const bool cut = whole < text.size();
  text.resize(whole);
  if (whole > 0) RETURN_IF_ERROR(log->Read(text, key));
  if (cut && ftruncate(log->file_.get(), static_cast<off_t>(whole)) != 0) {
    return absl::ErrnoToStatus(errno, "units.jsonl cannot be cut");
  }
  if (whole == 0) RETURN_IF_ERROR(log->Write(LineOf(HeaderOf(log->fingerprint_, key))));
  return log;
}

absl::Status ProofLog::Read(const std::string& text, const ProofKey& key) {
  size_t number = 0;
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.size() - 1), '\n');
  for (const std::string& line : lines) {
    ASSIGN_OR_RETURN(const LogJson json, LogLine(line, ++number));
    if (number == 1) {
      if (!json.contains(kProofField) || json[kProofField] != fingerprint_) {
        return CheckSameProof(json, key);
      }
      continue;
    }
    ProofUnit unit;
    std::string name;
    bool sound = true;
    for (const auto& [field, value] : json.items()) {
      if (field == kUnitField && value.is_string()) {
        name = value.get<std::string>();
      } else if (value.is_string()) {
        unit.texts[field] = value.get<std::string>();
      } else if (value.is_number() && std::abs(value.get<double>()) < kMostNumber) {
        unit.numbers[field] = value.get<double>();
      } else {
        sound = false;
      }
    }
    if (!sound || name.empty()) {
      return InvalidField("output",
                          absl::StrCat("line ", number, " of units.jsonl is no unit of a proof"));
    }
    units_[name] = std::move(unit);
  }
  return absl::OkStatus();
}

const ProofUnit* ProofLog::Find(const std::string& name,
                                std::initializer_list<const char*> numbers) const {
  const auto unit = units_.find(name);
  if (unit == units_.end()) return nullptr;
  for (const char* number : numbers) {
    if (!unit->second.numbers.contains(number)) return nullptr;
  }
  return &unit->second;
}

absl::Status ProofLog::Add(const std::string& name, ProofUnit unit) {
  LogJson json = {{kUnitField, name}};
  for (const auto& [field, value] : unit.numbers) {
    if (!(std::abs(value) < kMostNumber)) {  // NaN too
      return absl::InternalError(absl::StrCat("unit ", name, ": ", field, " is not finite"));
    }
    json[field] = value;
  }
  for (const auto& [field, value] : unit.texts) json[field] = value;
  RETURN_IF_ERROR(Write(LineOf(json)));
  units_[name] = std::move(unit);
  return absl::OkStatus();
}

absl::Status ProofLog::Write(const std::string& line) {
  for (size_t begin = 0; begin < line.size();) {
    const ssize_t wrote = write(file_.get(), line.data() + begin, line.size() - begin);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, "units.jsonl cannot be written");
    begin += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

}  // namespace eta
