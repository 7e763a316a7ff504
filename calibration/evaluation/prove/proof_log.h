// What a proof has measured so far, on disk: a line for every finished unit, so that a proof that
// was stopped goes on. The first line says what is measured; a log of something else is refused.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/descriptor.h"

namespace eta {

// What decides the numbers, by name: the model, the way of attending, settings, texts, the seed...
using ProofKey = std::vector<std::pair<std::string, std::string>>;

struct ProofUnit {
  std::map<std::string, double> numbers;  // finite, below 1e15
  std::map<std::string, std::string> texts;
};

// Not thread-safe.
class ProofLog {
 public:
  // Makes the folder if it is not there. Takes the units of FOLDER/units.jsonl; its last line, if
  // it is cut, is dropped. FailedPrecondition, naming `output` and what differs, for the log of
  // another key; InvalidArgument (`output`) for lines of something else and for a folder that
  // cannot be made.
  static absl::StatusOr<std::unique_ptr<ProofLog>> Open(const std::string& folder,
                                                        const ProofKey& key);

  // SHA-256 of the key.
  const std::string& fingerprint() const { return fingerprint_; }

  // Null if the unit is not there, or lacks one of these numbers. Valid until the next Add.
  const ProofUnit* Find(const std::string& name, std::initializer_list<const char*> numbers) const;
  // Writes the unit.
  absl::Status Add(const std::string& name, ProofUnit unit);

 private:
  ProofLog() = default;
  absl::Status Read(const std::string& text, const ProofKey& key);
  absl::Status Write(const std::string& line);

  std::string fingerprint_;
  std::map<std::string, ProofUnit> units_;
  Descriptor file_;
};

}  // namespace eta
