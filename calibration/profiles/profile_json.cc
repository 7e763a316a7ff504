// lint: untrusted-input, fuzz-covered
#include "calibration/profiles/profile_json.h"

#include <array>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_blob.h"
#include "engine/base/error.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/json/json_writer.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_config.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "eta-profile";
constexpr size_t kMaxDepth = 3;
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
constexpr int32_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr std::array<std::string_view, 2> kIndexes = {Name(IndexKind::kMoment),
                                                      Name(IndexKind::kOutlier)};
constexpr std::array<DType, 4> kKvDtypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                            DType::kFloat8E4M3};
constexpr std::array<std::string_view, 4> kKvDtypeNames = {"float16", "bfloat16", "float32",
                                                           "float8_e4m3"};
constexpr std::array<std::string_view, 4> kWeights = {
    Name(WeightFormat::kNative), Name(WeightFormat::kInt8), Name(WeightFormat::kInt4),
    Name(WeightFormat::kUnpacked)};
constexpr std::array<std::string_view, 6> kTargets = {
    "match_dynamic",           "head_density",          "union_density",
    "max_perplexity_increase", "dynamic_union_density", "retained_mass"};

void Write(const std::vector<float>& values, const ProfileGeometry& geometry, JsonWriter& json) {
  json.BeginArray();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % size_t(geometry.query_heads) == 0) json.BeginArray();
    json.Value(values[i]);
    if ((i + 1) % size_t(geometry.query_heads) == 0) json.End();
  }
  json.End();
}

void Write(std::string_view key, const std::optional<NeedleHits>& hits, JsonWriter& json) {
  json.Key(key);
  if (!hits) {
    json.Value(nullptr);
    return;
  }
  json.BeginObject();
  json.Key("asked").Value(hits->asked);
  json.Key("full").Value(hits->full);
  json.Key("frozen").Value(hits->frozen);
  json.Key("kept").Value(hits->kept);
  json.End();
}

void Write(std::string_view key, const std::optional<float>& value, JsonWriter& json) {
  json.Key(key);
  if (value) {
    json.Value(*value);
  } else {
    json.Value(nullptr);
  }
}

template <typename T>
void Write(const AttentionField& field, const std::optional<T>& value, JsonWriter& json) {
  json.Key(field.name);
  if (!value) {
    json.Value(nullptr);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (field.IsYesOrNo()) {
      json.Value(*value);
    } else {
      json.Value(field.Word(*value));
    }
  } else {
    json.Value(*value);
  }
}

void Write(const std::optional<Divergence>& divergence, JsonWriter& json) {
  if (!divergence) {
    json.Value(nullptr);
    return;
  }
  json.BeginObject();
  json.Key("nats").Value(divergence->nats);
  json.Key("rows").Value(divergence->rows);
  json.End();
}

void Write(const ProfileEvidence& evidence, bool relative, JsonWriter& json) {
  const auto or_null = [&json](std::string_view key, const std::optional<double>& value) {
    json.Key(key);
    if (value) return json.Value(*value);
    json.Value(nullptr);
  };
  json.BeginObject();
  json.Key("perplexity_full").Value(evidence.perplexity_full);
  or_null("perplexity_dynamic", evidence.perplexity_dynamic);
  json.Key("perplexity_frozen").Value(evidence.perplexity_frozen);
  json.Key("head_density").Value(evidence.head_density);
  json.Key("union_density").Value(evidence.union_density);
  json.Key("recall").Value(evidence.recall);
  or_null("dynamic_head_density", evidence.dynamic_head_density);
  or_null("dynamic_union_density", evidence.dynamic_union_density);
  or_null("dynamic_recall", evidence.dynamic_recall);
  json.Key("calibration_sequences").Value(evidence.calibration_sequences);
  json.Key("calibration_tokens").Value(evidence.calibration_tokens);
  json.Key("held_out_sequences").Value(evidence.held_out_sequences);
  json.Key("held_out_tokens").Value(evidence.held_out_tokens);
  const auto interval = [&json](std::string_view key, const std::optional<PercentInterval>& value) {
    json.Key(key);
    if (!value) return json.Value(nullptr);
    json.BeginObject();
    json.Key("low").Value(value->low);
    json.Key("high").Value(value->high);
    return json.End();
  };
  interval("increase_over_full", evidence.increase_over_full);
  interval("increase_over_dynamic", evidence.increase_over_dynamic);
  json.Key("choice_sequences").Value(evidence.choice_sequences);
  json.Key("choice_tokens").Value(evidence.choice_tokens);
  json.Key("calibration_documents").Value(evidence.calibration_documents);
  json.Key("choice_documents").Value(evidence.choice_documents);
  json.Key("held_out_documents").Value(evidence.held_out_documents);
  json.Key("equal_documents").Value(evidence.equal_documents);
  or_null("retained_mass", evidence.retained_mass);
  or_null("retained_mass_p1", evidence.retained_mass_p1);
  Write("single_needles", evidence.single_needles, json);
  Write("multi_needles", evidence.multi_needles, json);
  if (relative) Write(evidence.divergence, json.Key("divergence"));
  json.End();
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

// Reads type and row width only. CheckProfileContent checks shape and range.
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

absl::Status ReadInterval(JsonFields& fields, const std::string& field,
                          std::optional<PercentInterval>& interval) {
  if (fields.IsNull(field)) return absl::OkStatus();
  JsonFields ends(fields.Object(field), "evidence." + field + ".");
  interval = PercentInterval{.low = ends.Number("low"), .high = ends.Number("high")};
  return ends.Finish();
}

absl::Status ReadNeedles(JsonFields& fields, const std::string& field,
                         std::optional<NeedleHits>& hits) {
  if (fields.IsNull(field)) return absl::OkStatus();
  JsonFields counts(fields.Object(field), "evidence." + field + ".");
  NeedleHits& read = hits.emplace();
  read.asked = counts.Integer("asked", 0, kMaxInteger);
  read.full = counts.Integer("full", 0, kMaxInteger);
  read.frozen = counts.Integer("frozen", 0, kMaxInteger);
  read.kept = counts.Integer("kept", 0, kMaxInteger);
  return counts.Finish();
}

absl::Status ReadDivergence(JsonFields& fields, std::optional<Divergence>& divergence) {
  if (fields.IsNull("divergence")) return absl::OkStatus();
  JsonFields numbers(fields.Object("divergence"), "evidence.divergence.");
  Divergence& read = divergence.emplace();
  read.nats = numbers.Number("nats");
  read.rows = numbers.Integer("rows", 1, kMaxInteger);
  return numbers.Finish();
}

absl::Status ReadEvidence(const Json& object, bool relative, ProfileEvidence& evidence) {
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
  const absl::Status over_full =
      ReadInterval(fields, "increase_over_full", evidence.increase_over_full);
  const absl::Status over_dynamic =
      ReadInterval(fields, "increase_over_dynamic", evidence.increase_over_dynamic);
  evidence.choice_sequences = fields.Integer("choice_sequences", 0, kMaxInteger);
  evidence.choice_tokens = fields.Integer("choice_tokens", 0, kMaxInteger);
  evidence.calibration_documents = fields.Integer("calibration_documents", 0, kMaxInteger);
  evidence.choice_documents = fields.Integer("choice_documents", 0, kMaxInteger);
  evidence.held_out_documents = fields.Integer("held_out_documents", 0, kMaxInteger);
  evidence.equal_documents = fields.Integer("equal_documents", 0, kMaxInteger);
  evidence.retained_mass = NumberOrNull(fields, "retained_mass");
  evidence.retained_mass_p1 = NumberOrNull(fields, "retained_mass_p1");
  const absl::Status single = ReadNeedles(fields, "single_needles", evidence.single_needles);
  const absl::Status multi = ReadNeedles(fields, "multi_needles", evidence.multi_needles);
  const absl::Status divergence =
      relative ? ReadDivergence(fields, evidence.divergence) : absl::OkStatus();
  for (const absl::Status& status :
       {fields.Finish(), over_full, over_dynamic, single, multi, divergence}) {
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

std::optional<float> FloatOrNull(JsonFields& fields, const std::string& field) {
  const std::optional<double> value = NumberOrNull(fields, field);
  return value ? std::optional<float>(static_cast<float>(*value)) : std::nullopt;
}

void ReadFormats(JsonFields& fields, ProfileFormats& formats) {
  formats.index = static_cast<IndexKind>(Choice(fields, "index", kIndexes));
  formats.kv_dtype = kKvDtypes[Choice(fields, "kv_dtype", kKvDtypeNames)];
  formats.weights = static_cast<WeightFormat>(Choice(fields, "weights", kWeights));
}

void Read(JsonFields& fields, const AttentionField& field, std::optional<float>& value) {
  const std::string name = field.name;
  if (field.optional && fields.IsNull(name)) return;
  value = static_cast<float>(fields.Number(name));
}
void Read(JsonFields& fields, const AttentionField& field, std::optional<int32_t>& value) {
  value = static_cast<int32_t>(fields.Integer(field.name, 0, kMaxSize));
}
void Read(JsonFields& fields, const AttentionField& field, std::optional<bool>& value) {
  const std::string name = field.name;
  value = field.IsYesOrNo()
              ? fields.Boolean(name)
              : Choice(fields, name, std::array<std::string_view, 2>{field.no, field.yes}) == 1;
}

// A profile's defaults, and its kind.
void ReadOperatingPoint(JsonFields& fields, ProfileContent& content) {
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (field.in_profile) Read(fields, field, content.settings.*member);
  });
  content.relative_c = FloatOrNull(fields, "relative_threshold");
}

absl::Status CheckHeader(const Json& json) {
  const auto schema = json.find("schema_version");
  const auto c = json.find("relative_threshold");
  const bool relative = c != json.end() && c->is_number();
  if (schema == json.end() || !schema->is_number_integer()) return absl::OkStatus();
  if (*schema == ProfileSchemaOf(relative)) return absl::OkStatus();
  return OtherProfileSchema("schema_version: is " + schema->dump(), relative, "schema_version");
}

void ReadHeader(JsonFields& fields, PortableProfile& profile) {
  if (fields.Text("format") != kFormat) fields.Fail("format", absl::StrCat("must be ", kFormat));
  profile.name = fields.Text("name");
  profile.version = fields.Integer("version", 1, kMaxInteger);
  profile.create_time_us = fields.Integer("create_time_us", 0, kMaxInteger);
  profile.content.model_fingerprint = fields.Text("model_fingerprint");
}

}  // namespace

std::string_view Name(ProfileTargetKind kind) {
  return kTargets[static_cast<size_t>(kind)];
}

absl::StatusOr<std::string> ProfileToJson(const PortableProfile& profile) {
  const ProfileContent& content = profile.content;
  ASSIGN_OR_RETURN(const std::string digest, ProfileContentDigest(content));
  RETURN_IF_ERROR(CheckProfileName("name", profile.name));
  if (profile.version < 1) return InvalidField("version", "must be at least 1");
  if (profile.create_time_us < 0) return InvalidField("create_time_us", "must not be negative");
  JsonWriter json;
  json.BeginObject();
  json.Key("format").Value(kFormat);
  json.Key("schema_version").Value(ProfileSchemaOf(content.relative_c.has_value()));
  json.Key("name").Value(profile.name);
  json.Key("version").Value(profile.version);
  json.Key("create_time_us").Value(profile.create_time_us);
  json.Key("labels").BeginObject();
  for (const auto& [key, value] : content.labels) json.Key(key).Value(value);
  json.End();
  json.Key("model_fingerprint").Value(content.model_fingerprint);
  json.Key("tokenizer_fingerprint").Value(content.tokenizer_fingerprint);
  json.Key("geometry").BeginObject();
  json.Key("layers").Value(content.geometry.layers);
  json.Key("query_heads").Value(content.geometry.query_heads);
  json.Key("block_size").Value(content.geometry.block_size);
  json.Key("sub_block").Value(content.geometry.sub_block);
  json.End();
  json.Key("index").Value(Name(content.formats.index));
  json.Key("kv_dtype").Value(Name(content.formats.kv_dtype));
  json.Key("weights").Value(Name(content.formats.weights));
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (field.in_profile) Write(field, content.settings.*member, json);
  });
  Write("relative_threshold", content.relative_c, json);
  json.Key("target").BeginObject();
  json.Key("kind").Value(Name(content.target.kind));
  json.Key("value").Value(content.target.value);
  json.End();
  json.Key("reached").BeginObject();
  json.Key("soft_density").Value(content.reached.soft_density);
  json.Key("head_density").Value(content.reached.head_density);
  json.Key("union_density").Value(content.reached.union_density);
  json.End();
  Write(content.evidence, content.relative_c.has_value(), json.Key("evidence"));
  json.Key("thresholds");
  if (content.relative_c) {
    json.Value(nullptr);
  } else {
    Write(content.thresholds, content.geometry, json);
  }
  json.Key("z_per_head");
  if (content.z_per_head.empty()) {
    json.Value(nullptr);
  } else {
    Write(content.z_per_head, content.geometry, json);
  }
  json.Key("content_sha256").Value(digest);
  json.End();
  return json.Release() + "\n";
}

absl::StatusOr<PortableProfile> ProfileFromJson(std::string_view text) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson("profile", text, kMaxProfileJsonBytes, kMaxDepth));
  const Json& json = tree.root();
  RETURN_IF_ERROR(CheckHeader(json));
  JsonFields fields(json, "");
  PortableProfile profile;
  ProfileContent& content = profile.content;
  ReadHeader(fields, profile);
  fields.Integer("schema_version", kProfileSchemaVersion, kRelativeSchemaVersion);
  for (const auto& [key, value] : fields.Object("labels").items()) {
    if (!value.is_string()) {
      fields.Fail("labels", "must be texts");
      continue;
    }
    content.labels[key] = value.get<std::string>();
  }
  content.tokenizer_fingerprint = fields.Text("tokenizer_fingerprint");
  const absl::Status geometry = ReadGeometry(fields.Object("geometry"), content.geometry);
  if (!geometry.ok()) return fields.status().ok() ? geometry : fields.status();
  ReadFormats(fields, content.formats);
  ReadOperatingPoint(fields, content);
  const absl::Status target = ReadTarget(fields.Object("target"), content.target);
  const absl::Status reached = ReadReached(fields.Object("reached"), content.reached);
  const absl::Status evidence =
      ReadEvidence(fields.Object("evidence"), content.relative_c.has_value(), content.evidence);
  const size_t width = static_cast<size_t>(content.geometry.query_heads);
  if (!content.relative_c) {
    content.thresholds = ReadRows(fields, "thresholds", width);
  } else if (!fields.IsNull("thresholds")) {
    fields.Fail("thresholds", "must be null beside relative_threshold");
  }
  if (!fields.IsNull("z_per_head")) {
    content.z_per_head = ReadRows(fields, "z_per_head", width);
    if (content.z_per_head.empty()) fields.Fail("z_per_head", "must be null or as thresholds");
  }
  const std::string wanted = fields.Text("content_sha256");

  for (const absl::Status& status : {fields.Finish(), target, reached, evidence}) {
    RETURN_IF_ERROR(status);
  }
  RETURN_IF_ERROR(CheckProfileName("name", profile.name));
  ASSIGN_OR_RETURN(const std::string digest, ProfileContentDigest(content));
  if (digest != wanted) return InvalidField("content_sha256", "does not match the contents");
  return profile;
}

absl::StatusOr<PortableProfile> HeaderFromJson(std::string_view text) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson("profile", text, kMaxProfileJsonBytes, kMaxDepth));
  JsonFields fields(tree.root(), "");
  PortableProfile profile;
  ReadHeader(fields, profile);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(CheckProfileName("name", profile.name));
  return profile;
}

}  // namespace eta
