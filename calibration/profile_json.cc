#include "calibration/profile_json.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/json_fields.h"
#include "calibration/profile_blob.h"
#include "engine/error.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "eta-profile";
constexpr size_t kMaxDepth = 3;
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
constexpr int32_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr std::array<std::string_view, 2> kFloors = {"none", "uniform"};
constexpr std::array<std::string_view, 4> kTargets = {"match_dynamic", "head_density",
                                                      "union_density", "max_perplexity_increase"};

OrderedJson Rows(const std::vector<float>& values, const ProfileGeometry& geometry) {
  OrderedJson rows = OrderedJson::array();
  for (size_t begin = 0; begin < values.size(); begin += size_t(geometry.query_heads)) {
    const auto first = values.begin() + static_cast<ptrdiff_t>(begin);
    rows.push_back(std::vector<double>(first, first + geometry.query_heads));
  }
  return rows;
}

OrderedJson OrNull(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

std::optional<double> NumberOrNull(JsonFields& fields, const std::string& field) {
  if (fields.IsNull(field)) return std::nullopt;
  return fields.Number(field);
}

template <size_t N>
size_t Choice(JsonFields& fields, const std::string& field,
              const std::array<std::string_view, N>& names) {
  const std::string text = fields.Text(field);
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return i;
  }
  std::string list;
  for (const std::string_view name : names) list.append(list.empty() ? "" : ", ").append(name);
  fields.Fail(field, "must be one of " + list);
  return 0;
}

// Shape and range are CheckProfileContent's; here only the type and the width of each row.
std::vector<float> ReadRows(JsonFields& fields, const std::string& field, size_t width) {
  std::vector<float> values;
  for (const Json& row : fields.Array(field)) {
    if (!row.is_array() || row.size() != width) {
      fields.Fail(field, absl::StrCat("must be lists of geometry.query_heads = ", width));
      return {};
    }
    for (const Json& value : row) {
      if (!value.is_number()) {
        fields.Fail(field, "must hold numbers only");
        return {};
      }
      values.push_back(static_cast<float>(value.get<double>()));
    }
  }
  return values;
}

absl::Status ReadGeometry(const Json& object, ProfileGeometry& geometry) {
  JsonFields fields(object, "geometry.");
  geometry.layers = static_cast<int32_t>(fields.Integer("layers", 1, kMaxSize));
  geometry.query_heads = static_cast<int32_t>(fields.Integer("query_heads", 1, kMaxSize));
  geometry.block_size = static_cast<int32_t>(fields.Integer("block_size", 1, kMaxSize));
  geometry.sub_block = static_cast<int32_t>(fields.Integer("sub_block", 0, kMaxSize));
  return fields.Finish();
}

absl::Status ReadTarget(const Json& object, ProfileTarget& target) {
  JsonFields fields(object, "target.");
  target.kind = static_cast<ProfileTargetKind>(Choice(fields, "kind", kTargets));
  target.value = fields.Number("value");
  return fields.Finish();
}

absl::Status ReadReached(const Json& object, ReachedDensities& reached) {
  JsonFields fields(object, "reached.");
  reached.soft_density = fields.Number("soft_density");
  reached.head_density = fields.Number("head_density");
  reached.union_density = fields.Number("union_density");
  return fields.Finish();
}

absl::Status ReadEvidence(const Json& object, ProfileEvidence& evidence) {
  JsonFields fields(object, "evidence.");
  evidence.perplexity_full = fields.Number("perplexity_full");
  evidence.perplexity_dynamic = NumberOrNull(fields, "perplexity_dynamic");
  evidence.perplexity_frozen = fields.Number("perplexity_frozen");
  evidence.head_density = fields.Number("head_density");
  evidence.union_density = fields.Number("union_density");
  evidence.recall = fields.Number("recall");
  evidence.dynamic_head_density = NumberOrNull(fields, "dynamic_head_density");
  evidence.dynamic_union_density = NumberOrNull(fields, "dynamic_union_density");
  evidence.dynamic_recall = NumberOrNull(fields, "dynamic_recall");
  evidence.calibration_sequences = fields.Integer("calibration_sequences", 1, kMaxInteger);
  evidence.calibration_tokens = fields.Integer("calibration_tokens", 1, kMaxInteger);
  evidence.held_out_sequences = fields.Integer("held_out_sequences", 0, kMaxInteger);
  evidence.held_out_tokens = fields.Integer("held_out_tokens", 0, kMaxInteger);
  return fields.Finish();
}

absl::Status CheckHeader(const Json& json) {
  const auto schema = json.find("schema_version");
  if (schema != json.end() && schema->is_number_integer() && *schema > kProfileSchemaVersion) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("schema_version: is newer than ", kProfileSchemaVersion,
                                  ", which this build reads"),
                     {.reason = "PROFILE_SCHEMA_TOO_NEW", .field = "schema_version"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ProfileToJson(const PortableProfile& profile) {
  const ProfileContent& content = profile.content;
  const absl::StatusOr<std::string> digest = ProfileContentDigest(content);
  if (!digest.ok()) return digest.status();
  if (absl::Status s = CheckProfileName("name", profile.name); !s.ok()) return s;
  if (profile.version < 1) return InvalidField("version", "must be at least 1");
  if (profile.create_time_us < 0) return InvalidField("create_time_us", "must not be negative");
  OrderedJson json;
  json["format"] = kFormat;
  json["schema_version"] = kProfileSchemaVersion;
  json["name"] = profile.name;
  json["version"] = profile.version;
  json["create_time_us"] = profile.create_time_us;
  json["labels"] = content.labels;
  json["model_fingerprint"] = content.model_fingerprint;
  json["tokenizer_fingerprint"] = content.tokenizer_fingerprint;
  json["geometry"] = {{"layers", content.geometry.layers},
                      {"query_heads", content.geometry.query_heads},
                      {"block_size", content.geometry.block_size},
                      {"sub_block", content.geometry.sub_block}};
  json["offset"] = content.offset;
  json["z"] = content.z;
  json["floor"] = kFloors[static_cast<size_t>(content.floor)];
  json["target"] = {{"kind", kTargets[static_cast<size_t>(content.target.kind)]},
                    {"value", content.target.value}};
  json["reached"] = {{"soft_density", content.reached.soft_density},
                     {"head_density", content.reached.head_density},
                     {"union_density", content.reached.union_density}};
  const ProfileEvidence& evidence = content.evidence;
  json["evidence"] = {{"perplexity_full", evidence.perplexity_full},
                      {"perplexity_dynamic", OrNull(evidence.perplexity_dynamic)},
                      {"perplexity_frozen", evidence.perplexity_frozen},
                      {"head_density", evidence.head_density},
                      {"union_density", evidence.union_density},
                      {"recall", evidence.recall},
                      {"dynamic_head_density", OrNull(evidence.dynamic_head_density)},
                      {"dynamic_union_density", OrNull(evidence.dynamic_union_density)},
                      {"dynamic_recall", OrNull(evidence.dynamic_recall)},
                      {"calibration_sequences", evidence.calibration_sequences},
                      {"calibration_tokens", evidence.calibration_tokens},
                      {"held_out_sequences", evidence.held_out_sequences},
                      {"held_out_tokens", evidence.held_out_tokens}};
  json["thresholds"] = Rows(content.thresholds, content.geometry);
  json["z_per_head"] = nullptr;
  if (!content.z_per_head.empty()) json["z_per_head"] = Rows(content.z_per_head, content.geometry);
  json["content_sha256"] = *digest;
  return json.dump(1) + "\n";
}

absl::StatusOr<PortableProfile> ProfileFromJson(std::string_view text) {
  const auto tree = ParseStrictJson("profile", text, kMaxProfileJsonBytes, kMaxDepth);
  if (!tree.ok()) return tree.status();
  const Json& json = tree->root();
  if (absl::Status s = CheckHeader(json); !s.ok()) return s;
  JsonFields fields(json, "");
  PortableProfile profile;
  ProfileContent& content = profile.content;
  if (fields.Text("format") != kFormat) fields.Fail("format", absl::StrCat("must be ", kFormat));
  fields.Integer("schema_version", 1, kProfileSchemaVersion);
  profile.name = fields.Text("name");
  profile.version = fields.Integer("version", 1, kMaxInteger);
  profile.create_time_us = fields.Integer("create_time_us", 0, kMaxInteger);
  for (const auto& [key, value] : fields.Object("labels").items()) {
    if (!value.is_string()) {
      fields.Fail("labels", "must be texts");
      continue;
    }
    content.labels[key] = value.get<std::string>();
  }
  content.model_fingerprint = fields.Text("model_fingerprint");
  content.tokenizer_fingerprint = fields.Text("tokenizer_fingerprint");
  const absl::Status geometry = ReadGeometry(fields.Object("geometry"), content.geometry);
  if (!geometry.ok()) return fields.status().ok() ? geometry : fields.status();
  content.offset = static_cast<float>(fields.Number("offset"));
  content.z = static_cast<float>(fields.Number("z"));
  content.floor = static_cast<ProfileFloor>(Choice(fields, "floor", kFloors));
  const absl::Status target = ReadTarget(fields.Object("target"), content.target);
  const absl::Status reached = ReadReached(fields.Object("reached"), content.reached);
  const absl::Status evidence = ReadEvidence(fields.Object("evidence"), content.evidence);
  const size_t width = static_cast<size_t>(content.geometry.query_heads);
  content.thresholds = ReadRows(fields, "thresholds", width);
  if (!fields.IsNull("z_per_head")) {
    content.z_per_head = ReadRows(fields, "z_per_head", width);
    if (content.z_per_head.empty()) fields.Fail("z_per_head", "must be null or as thresholds");
  }
  const std::string wanted = fields.Text("content_sha256");

  for (const absl::Status& status : {fields.Finish(), target, reached, evidence}) {
    if (!status.ok()) return status;
  }
  if (absl::Status s = CheckProfileName("name", profile.name); !s.ok()) return s;
  const absl::StatusOr<std::string> digest = ProfileContentDigest(content);
  if (!digest.ok()) return digest.status();
  if (*digest != wanted) return InvalidField("content_sha256", "does not match the contents");
  return profile;
}

}  // namespace eta
