// lint: untrusted-input
#include "training/state/training_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/files/input_file.h"
#include "engine/base/files/output_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

absl::Status CheckFinite(const std::string& name, std::span<const float> values) {
  const auto bad =
      std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("checkpoint: tensor ", Quoted(name), ": element ",
                                          bad - values.begin(), " is not finite"));
}

// Gives the file its tensors one by one, and at last the digest of all of them.
class DigestedTensors {
 public:
  DigestedTensors(const TensorShapes& shapes, const TensorFiller& read)
      : shapes_(shapes), read_(read) {}

  absl::StatusOr<std::span<const std::byte>> operator()(const std::string& name) {
    if (name == kCheckpointDigest) {
      ASSIGN_OR_RETURN(hex_, digest_.Hex());
      return std::as_bytes(std::span(hex_));
    }
    const auto count = CheckedBytes(shapes_.at(name), 1);
    if (!count) return absl::InvalidArgumentError("checkpoint: a tensor is too large");
    values_.resize(*count);
    RETURN_IF_ERROR(read_(name, values_));
    RETURN_IF_ERROR(CheckFinite(name, values_));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values_));
    digest_.Update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return bytes;
  }

 private:
  const TensorShapes& shapes_;
  const TensorFiller& read_;
  Sha256 digest_;
  std::vector<float> values_;
  std::string hex_;
};

}  // namespace

absl::Status WriteTrainingCheckpoint(const std::string& path, const TrainingState& state,
                                     const TensorShapes& shapes, const TensorFiller& read) {
  ASSIGN_OR_RETURN(const std::string text, WriteTrainingState(state));
  std::map<std::string, TensorShape> written;
  for (const auto& [name, shape] : shapes) written[name] = {DType::kFloat32, shape};
  // Narrower elements come after wider ones: the digest is the last that is asked for.
  written[kCheckpointDigest] = {DType::kUInt8, {kCheckpointDigestCharacters}};
  DigestedTensors tensors(shapes, read);
  RETURN_IF_ERROR(StreamSafetensors(
      path, {{kCheckpointFormatKey, kCheckpointFormat}, {kCheckpointStateKey, text}}, written,
      [&](const std::string& name, std::vector<std::byte>& /*storage*/) { return tensors(name); }));
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

absl::StatusOr<TrainingCheckpoint> TrainingCheckpoint::Open(const std::string& path) {
  ASSIGN_OR_RETURN(SafetensorsFile file,
                   SafetensorsFile::Open(path, {.allow_writable_by_others = true}));
  ASSIGN_OR_RETURN(TrainingState state, ReadTrainingState(file.metadata(), file.tensors()));
  TrainingCheckpoint checkpoint(std::move(file), std::move(state));
  RETURN_IF_ERROR(checkpoint.CheckDigest());
  return checkpoint;
}

absl::Status TrainingCheckpoint::CheckDigest() const {
  std::vector<std::pair<uint64_t, std::string>> order;  // offset, name
  for (const auto& [name, info] : file_.tensors()) {
    if (name != kCheckpointDigest) order.emplace_back(info.begin, name);
  }
  std::ranges::sort(order);
  Sha256 digest;
  for (const auto& [begin, name] : order) {
    ASSIGN_OR_RETURN(const std::vector<std::byte> data, file_.Read(name));
    digest.Update({reinterpret_cast<const char*>(data.data()), data.size()});
  }
  ASSIGN_OR_RETURN(const std::string hex, digest.Hex());
  ASSIGN_OR_RETURN(const std::vector<std::byte> expected, file_.Read(kCheckpointDigest));
  const std::span<const std::byte> computed = std::as_bytes(std::span(hex));
  if (std::ranges::equal(computed, expected)) return absl::OkStatus();
  return absl::DataLossError("checkpoint: the file is damaged: its tensors are not as written");
}

absl::Status TrainingCheckpoint::Read(const std::string& name, std::span<float> out) const {
  ASSIGN_OR_RETURN(const std::vector<std::byte> data, file_.Read(name));
  const std::span<std::byte> bytes = std::as_writable_bytes(out);
  if (data.size() != bytes.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint: tensor ", Quoted(name), " has another size"));
  }
  std::ranges::copy(data, bytes.begin());
  return CheckFinite(name, out);
}

}  // namespace eta::training
