// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/import_record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/json/json_writer.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr char kImportFormat[] = "eta-import";
constexpr size_t kMaxImportRecordBytes = size_t{1} << 20;

bool IsDigest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

void WriteDigests(std::string_view key, const WeightsDigests& digests, JsonWriter& json) {
  json.Key(key).BeginObject();
  json.Key("weights").BeginArray();
  for (const std::string& digest : digests.weights) json.Value(digest);
  json.End();
  json.Key("index_metric").Value(digests.index_metric);
  json.End();
}

absl::Status ReadDigests(const nlohmann::json& object, const std::string& prefix,
                         WeightsDigests& digests) {
  JsonFields fields(object, prefix);
  for (const nlohmann::json& digest : fields.Array("weights")) {
    const auto* text = digest.get_ptr<const std::string*>();
    if (text == nullptr || !IsDigest(*text)) {
      fields.Fail("weights", "must be digests of 64 lower-case hexadecimal digits");
      break;
    }
    digests.weights.push_back(*text);
  }
  if (digests.weights.empty()) fields.Fail("weights", "must be at least one");
  if (!std::is_sorted(digests.weights.begin(), digests.weights.end())) {
    fields.Fail("weights", "must be sorted");
  }
  digests.index_metric = fields.Text("index_metric");
  if (!digests.index_metric.empty() && !IsDigest(digests.index_metric)) {
    fields.Fail("index_metric", "must be empty or 64 lower-case hexadecimal digits");
  }
  return fields.Finish();
}

}  // namespace

std::string ImportRecordToJson(const ImportRecord& record) {
  JsonWriter json;
  json.BeginObject();
  json.Key("format").Value(kImportFormat);
  WriteDigests("read", record.read, json);
  WriteDigests("written", record.written, json);
  json.End();
  return json.Release() + "\n";
}

absl::StatusOr<ImportRecord> ParseImportRecord(std::string_view text) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson(kImportRecordFile, text, kMaxImportRecordBytes, 3));
  const std::string file = std::string(kImportRecordFile) + ": ";
  JsonFields fields(tree.root(), file);
  ImportRecord record;
  if (fields.Text("format") != kImportFormat) {
    fields.Fail("format", std::string("must be ") + kImportFormat);
  }
  const absl::Status read = ReadDigests(fields.Object("read"), file + "read.", record.read);
  const absl::Status written =
      ReadDigests(fields.Object("written"), file + "written.", record.written);
  for (const absl::Status& status : {fields.Finish(), read, written}) {
    if (!status.ok()) return status;
  }
  return record;
}

}  // namespace eta
