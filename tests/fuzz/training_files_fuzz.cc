// Any bytes as a checkpoint of a run, as its state in text, and as the header of a token cache:
// refused, or read as something that is written again the same.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "engine/checkpoint/safetensors_header.h"
#include "training/data/token_cache_header.h"
#include "training/progress/log_lines.h"
#include "training/state/training_checkpoint.h"

namespace {

void CheckState(const absl::StatusOr<eta::training::TrainingState>& state) {
  if (!state.ok()) return;
  const auto written = eta::training::WriteTrainingState(*state);
  if (!written.ok()) std::abort();
  const auto again = eta::training::ParseTrainingState(*written);
  if (!again.ok() || !(*again == *state)) std::abort();
  if (!eta::training::CheckSettings(state->settings, again->settings).ok()) std::abort();
  auto others = again->settings;
  for (int i = 0; i < 12; ++i) others["another " + std::to_string(i)] = "1";
  if (eta::training::CheckSettings(state->settings, others).ok()) std::abort();
  if (eta::training::CheckSettings(others, state->settings).ok()) std::abort();
  if (state->settings.empty()) return;
  others = state->settings;
  others.begin()->second += "1";
  if (eta::training::CheckSettings(state->settings, others).ok()) std::abort();
}

// Those that are there fit; others are named.
void CheckTensors(const eta::SafetensorsHeader& header) {
  eta::training::TensorShapes shapes;
  for (const auto& [name, info] : header.tensors) {
    if (name != eta::training::kCheckpointDigest) shapes[name] = info.shape;
  }
  if (!eta::training::CheckCheckpointTensors(header.tensors, shapes).ok()) std::abort();
  shapes["another"] = {1};
  if (!shapes.empty()) shapes.begin()->second.push_back(7);
  if (eta::training::CheckCheckpointTensors(header.tensors, shapes).ok()) std::abort();
  if (header.tensors.size() > 1 && eta::training::CheckCheckpointTensors(header.tensors, {}).ok()) {
    std::abort();
  }
}

// What was read is written as lines that are read as the same.
void CheckLog(std::string_view text) {
  constexpr int64_t kAll = int64_t{1} << 53;
  const auto history = eta::training::ParseRunLog(std::string(text), kAll);
  if (!history.ok()) return;
  const std::string written = eta::training::HistoryText(*history);
  const auto again = eta::training::ParseRunLog(written, kAll);
  if (!again.ok() || eta::training::HistoryText(*again) != written) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckState(eta::training::ParseTrainingState(text));
  const auto header = eta::ParseSafetensorsHeader(text, size);
  if (header.ok()) {
    CheckState(eta::training::ReadTrainingState(header->metadata, header->tensors));
    CheckTensors(*header);
  }
  CheckLog(text);

  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto cache = eta::training::ParseTokenCacheHeader(bytes, size);
  if (cache.ok()) {
    const auto written = eta::training::WriteTokenCacheHeader(*cache);
    for (size_t i = 0; i < written.size(); ++i) {
      if (written[i] != bytes[i]) std::abort();
    }
    const uint64_t data_bytes = size - eta::training::kTokenCacheHeaderBytes;
    if (cache->tokens != data_bytes / cache->token_bytes) std::abort();
  }
  return 0;
}
