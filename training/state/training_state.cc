// lint: untrusted-input, fuzz-covered
#include "training/state/training_state.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/json/json_writer.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

constexpr char kWhat[] = "checkpoint";
constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 4;
constexpr size_t kMaxDifferences = 10;
constexpr int64_t kMaxCount = int64_t{1} << 53;

// Null: there is none of that name.
const std::string* Find(const std::map<std::string, std::string>& settings,
                        const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? nullptr : &found->second;
}

std::string Shown(const std::string* value) {
  return value == nullptr ? "absent" : Quoted(*value);
}

}  // namespace

absl::StatusOr<std::string> WriteTrainingState(const TrainingState& state) {
  JsonWriter writer;
  writer.BeginObject();
  writer.Key("step").Value(state.step);
  writer.Key("sequences").Value(state.sequences);
  writer.Key("skipped_steps").Value(state.skipped_steps);
  writer.Key("seconds").Value(state.seconds);
  writer.Key("schedule").BeginObject();
  for (const auto& [name, value] : state.schedule) {
    if (!std::isfinite(value)) {
      return absl::InternalError(absl::StrCat("schedule: ", name, " is not finite"));
    }
    writer.Key(name).Value(value);
  }
  writer.End();
  writer.Key("settings").BeginObject();
  for (const auto& [name, value] : state.settings) writer.Key(name).Value(value);
  writer.End();
  writer.End();
  return writer.Release();
}

absl::StatusOr<TrainingState> ParseTrainingState(std::string_view json) {
  ASSIGN_OR_RETURN(const JsonTree tree, ParseStrictJson(kWhat, json, kMaxBytes, kMaxDepth));
  JsonFields fields(tree.root(), "checkpoint: ");
  TrainingState state;
  state.step = fields.Integer("step", 0, kMaxCount);
  state.sequences = fields.Integer("sequences", 0, kMaxCount);
  state.skipped_steps = fields.Integer("skipped_steps", 0, kMaxCount);
  state.seconds = fields.Number("seconds");
  if (!std::isfinite(state.seconds) || state.seconds < 0.0) {
    fields.Fail("seconds", "must be at least 0");
  }
  for (const auto& [name, value] : fields.Object("schedule").items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fields.Fail("schedule", absl::StrCat("has no number ", Quoted(name)));
      break;
    }
    state.schedule[name] = value.get<double>();
  }
  for (const auto& [name, value] : fields.Object("settings").items()) {
    if (!value.is_string()) {
      fields.Fail("settings", absl::StrCat("has no text ", Quoted(name)));
      break;
    }
    state.settings[name] = value.get<std::string>();
  }
  RETURN_IF_ERROR(fields.Finish());
  return state;
}

absl::Status CheckSettings(const std::map<std::string, std::string>& checkpoint,
                           const std::map<std::string, std::string>& run) {
  std::map<std::string, std::string> all = checkpoint;
  all.insert(run.begin(), run.end());
  std::string differences;
  size_t count = 0;
  for (const auto& [name, ignored] : all) {
    const std::string* there = Find(checkpoint, name);
    const std::string* here = Find(run, name);
    const bool same = there != nullptr && here != nullptr && *there == *here;
    if (same || ++count > kMaxDifferences) continue;
    absl::StrAppend(&differences, differences.empty() ? "" : "; ", name, " is ", Shown(there),
                    " in the checkpoint and ", Shown(here), " here");
  }
  if (count == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint: it is of another run: ", differences,
      count > kMaxDifferences ? absl::StrCat("; and ", count - kMaxDifferences, " more") : ""));
}

}  // namespace eta::training
