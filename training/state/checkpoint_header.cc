// lint: untrusted-input, fuzz-covered
#include "training/state/checkpoint_header.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"

namespace eta::training {
namespace {

constexpr size_t kMaxShownFields = 10;

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::StatusOr<TrainingState> ReadTrainingState(const std::map<std::string, std::string>& metadata,
                                                const std::map<std::string, TensorInfo>& tensors) {
  const auto format = metadata.find(kCheckpointFormatKey);
  if (format == metadata.end() || format->second != kCheckpointFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: the file's format is ",
                     format == metadata.end() ? "not named" : Quoted(format->second), ", not '",
                     kCheckpointFormat, "'"));
  }
  const auto state = metadata.find(kCheckpointStateKey);
  const auto digest = tensors.find(kCheckpointDigest);
  if (state == metadata.end() || digest == tensors.end() || digest->second.dtype != DType::kUInt8 ||
      digest->second.bytes() != kCheckpointDigestCharacters) {
    return absl::InvalidArgumentError("checkpoint: the file has no state or no digest");
  }
  for (const auto& [name, info] : tensors) {
    if (name == kCheckpointDigest || info.dtype == DType::kFloat32) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: tensor ", Quoted(name), " is not of float32"));
  }
  return ParseTrainingState(state->second);
}

absl::Status CheckCheckpointTensors(const std::map<std::string, TensorInfo>& tensors,
                                    const TensorShapes& expected) {
  std::vector<std::string> differences;
  for (const auto& [name, shape] : expected) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      differences.push_back(absl::StrCat(Quoted(name), " is missing"));
    } else if (found->second.shape != shape) {
      differences.push_back(absl::StrCat(Quoted(name), " is ", ShapeText(found->second.shape),
                                         " in the checkpoint and ", ShapeText(shape), " here"));
    }
  }
  for (const auto& [name, info] : tensors) {
    if (name != kCheckpointDigest && !expected.contains(name)) {
      differences.push_back(absl::StrCat(Quoted(name), " is not of this model"));
    }
  }
  if (differences.empty()) return absl::OkStatus();
  const size_t count = differences.size();
  differences.resize(std::min(count, kMaxShownFields));
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint: ", count, " tensors differ: ", absl::StrJoin(differences, "; ")));
}

}  // namespace eta::training
