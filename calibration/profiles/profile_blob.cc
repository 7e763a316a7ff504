// lint: untrusted-input, fuzz-covered
#include "calibration/profiles/profile_blob.h"

#include <bit>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr std::string_view kMagic = "ETAP";
constexpr size_t kChecksumBytes = 64;
constexpr size_t kMaxTextBytes = 255;

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 1, uint8_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    const auto bits = std::bit_cast<BitsOf<T>>(value);
    // cannot wrap: i counts the bytes of a number
    for (size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  void Numbers(const std::vector<float>& values) {
    for (const float value : values) Number(value);
  }
  void Boolean(bool value) { Number(static_cast<uint8_t>(value)); }
  // Of a profile, which has it.
  template <typename T>
  void Setting(const std::optional<T>& value) {
    if constexpr (std::is_same_v<T, bool>) {
      Boolean(*value);
    } else {
      Number(*value);
    }
  }
  template <typename T>
  void Optional(const std::optional<T>& value) {
    Boolean(value.has_value());
    if (value) Number(*value);
  }
  void Optional(const std::optional<PercentInterval>& interval) {
    Boolean(interval.has_value());
    if (!interval) return;
    Number(interval->low);
    Number(interval->high);
  }
  void Optional(const std::optional<NeedleHits>& hits) {
    Boolean(hits.has_value());
    if (!hits) return;
    for (const int64_t count : {hits->asked, hits->full, hits->frozen, hits->kept}) Number(count);
  }
  void Optional(const std::optional<Divergence>& divergence) {
    Boolean(divergence.has_value());
    if (!divergence) return;
    Number(divergence->nats);
    Number(divergence->rows);
  }
  void Raw(std::string_view bytes) { bytes_ += bytes; }

  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// Every read is bounded. After the first read that fails, all fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool failed() const { return failed_; }
  bool AtEnd() const { return rest_.empty(); }

  template <typename T>
  void Number(T& value) {
    const std::string_view raw = Read(sizeof(T));
    BitsOf<T> bits = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      // cannot wrap: i counts the bytes of a number
      bits |= static_cast<BitsOf<T>>(static_cast<BitsOf<T>>(static_cast<unsigned char>(raw[i]))
                                     << (8 * i));
    }
    value = std::bit_cast<T>(bits);
  }
  void Text(std::string& text) {
    uint32_t size = 0;
    Number(size);
    if (size > kMaxTextBytes) failed_ = true;
    text = failed_ ? std::string() : std::string(Read(size));
  }
  void Numbers(size_t count, std::vector<float>& values) {
    if (failed_ || count > rest_.size() / sizeof(float)) {
      failed_ = true;
      return;
    }
    values.resize(count);
    for (float& value : values) Number(value);
  }
  template <typename T>
  void Setting(std::optional<T>& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = Flag();
    } else {
      Number(value.emplace());
    }
  }
  template <typename T>
  void Optional(std::optional<T>& value) {
    if (Flag()) Number(value.emplace());
  }
  void Optional(std::optional<PercentInterval>& interval) {
    if (!Flag()) return;
    Number(interval.emplace().low);
    Number(interval->high);
  }
  void Optional(std::optional<NeedleHits>& hits) {
    if (!Flag()) return;
    NeedleHits& read = hits.emplace();
    for (int64_t* count : {&read.asked, &read.full, &read.frozen, &read.kept}) Number(*count);
  }
  void Optional(std::optional<Divergence>& divergence) {
    if (!Flag()) return;
    Number(divergence.emplace().nats);
    Number(divergence->rows);
  }
  // Reads a byte that must be 0 or 1.
  bool Flag() {
    uint8_t flag = 0;
    Number(flag);
    if (flag > 1) failed_ = true;
    return flag == 1;
  }

 private:
  std::string_view Read(size_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view read = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return read;
  }

  std::string_view rest_;
  bool failed_ = false;
};

// Visits the numbers between labels and thresholds in their order, for reading and for writing.
template <typename Stream, typename Content>
void VisitNumbers(Stream& stream, Content& content) {
  stream.Number(content.geometry.layers);
  stream.Number(content.geometry.query_heads);
  stream.Number(content.geometry.block_size);
  stream.Number(content.geometry.sub_block);
  stream.Number(content.formats.index);
  stream.Number(content.formats.kv_dtype);
  stream.Number(content.formats.weights);
  stream.Setting(content.settings.offset);
  stream.Setting(content.settings.z);
  stream.Setting(content.settings.uniform_floor);
  stream.Number(content.target.kind);
  stream.Number(content.target.value);
  stream.Number(content.reached.soft_density);
  stream.Number(content.reached.head_density);
  stream.Number(content.reached.union_density);
  stream.Number(content.evidence.perplexity_full);
  stream.Number(content.evidence.perplexity_frozen);
  stream.Number(content.evidence.head_density);
  stream.Number(content.evidence.union_density);
  stream.Number(content.evidence.recall);
  stream.Number(content.evidence.calibration_sequences);
  stream.Number(content.evidence.calibration_tokens);
  stream.Number(content.evidence.held_out_sequences);
  stream.Number(content.evidence.held_out_tokens);
  stream.Optional(content.evidence.perplexity_dynamic);
  stream.Optional(content.evidence.dynamic_head_density);
  stream.Optional(content.evidence.dynamic_union_density);
  stream.Optional(content.evidence.dynamic_recall);
  stream.Optional(content.evidence.increase_over_full);
  stream.Optional(content.evidence.increase_over_dynamic);
  stream.Number(content.evidence.choice_sequences);
  stream.Number(content.evidence.choice_tokens);
  stream.Number(content.evidence.calibration_documents);
  stream.Number(content.evidence.choice_documents);
  stream.Number(content.evidence.held_out_documents);
  stream.Number(content.evidence.equal_documents);
  stream.Optional(content.evidence.retained_mass);
  stream.Optional(content.evidence.retained_mass_p1);
  stream.Optional(content.evidence.single_needles);
  stream.Optional(content.evidence.multi_needles);
  stream.Setting(content.settings.sink_blocks);
  stream.Setting(content.settings.shared_reads);
  stream.Setting(content.settings.temper_special);
  stream.Optional(content.settings.min_mass);
  stream.Optional(content.relative_c);
  if (content.relative_c) stream.Optional(content.evidence.divergence);
  stream.Setting(content.settings.confirm);
  stream.Setting(content.settings.sparse_prefill);
}

void WriteContent(const ProfileContent& content, Writer& out) {
  out.Number(static_cast<uint32_t>(content.labels.size()));
  for (const auto& [key, value] : content.labels) {
    out.Text(key);
    out.Text(value);
  }
  out.Text(content.model_fingerprint);
  out.Text(content.tokenizer_fingerprint);
  VisitNumbers(out, content);
  out.Numbers(content.thresholds);
  out.Boolean(!content.z_per_head.empty());
  out.Numbers(content.z_per_head);
}

// False if labels are too many or out of order. CheckProfileContent checks the numbers.
bool ReadContent(Reader& in, ProfileContent& content) {
  uint32_t labels = 0;
  in.Number(labels);
  if (!CheckProfileLabelCount(labels).ok()) return false;
  for (uint32_t i = 0; i < labels && !in.failed(); ++i) {
    std::string key, value;
    in.Text(key);
    in.Text(value);
    if (!content.labels.empty() && key <= content.labels.rbegin()->first) return false;
    content.labels.emplace_hint(content.labels.end(), std::move(key), std::move(value));
  }
  in.Text(content.model_fingerprint);
  in.Text(content.tokenizer_fingerprint);
  VisitNumbers(in, content);
  const ProfileGeometry& geometry = content.geometry;
  if (in.failed() || geometry.layers < 1 || geometry.query_heads < 1) return false;
  // cannot wrap: both were found to be 1 or more, and have 31 bits
  const uint64_t heads = uint64_t(geometry.layers) * uint64_t(geometry.query_heads);
  if (heads > kMaxProfileThresholds) return false;
  in.Numbers(content.relative_c ? 0 : heads, content.thresholds);
  if (in.Flag()) in.Numbers(heads, content.z_per_head);
  return !in.failed();
}

absl::Status Corrupt(const std::string& sentence) {
  return MakeError(absl::StatusCode::kDataLoss, "a stored profile " + sentence,
                   {.reason = "PROFILE_CORRUPT"});
}

}  // namespace

absl::StatusOr<std::string> EncodeProfile(ProfileRecord& record) {
  RETURN_IF_ERROR(CheckProfileName("name", record.name));
  RETURN_IF_ERROR(CheckRequestIdentity(record.request_id, record.payload_digest));
  if (record.version < 1) return InvalidField("version", "must be at least 1");
  RETURN_IF_ERROR(CheckProfileContent(record.content));
  Writer out;
  out.Raw(kMagic);
  out.Number(ProfileSchemaOf(record.content.relative_c.has_value()));
  out.Text(record.tenant.id());
  out.Text(record.name);
  out.Number(record.version);
  out.Number(record.create_time_us);
  out.Text(record.request_id);
  out.Text(record.payload_digest);
  WriteContent(record.content, out);
  ASSIGN_OR_RETURN(record.checksum, Sha256Hex(out.bytes()));
  out.Raw(record.checksum);
  return std::move(out.bytes());
}

absl::StatusOr<ProfileRecord> DecodeProfile(std::string_view bytes) {
  if (bytes.size() < kMagic.size() + sizeof(int32_t) + kChecksumBytes) return Corrupt("is cut off");
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  ASSIGN_OR_RETURN(const std::string checksum, Sha256Hex(body));
  if (body.substr(0, kMagic.size()) != kMagic || bytes.substr(body.size()) != checksum) {
    return Corrupt("fails its checksum");
  }
  Reader in(body.substr(kMagic.size()));
  int32_t schema = 0;
  in.Number(schema);
  if (schema < 1) return Corrupt("has no schema version");
  const auto other_schema = [schema](bool relative) {
    return OtherProfileSchema(absl::StrCat("a stored profile has schema version ", schema),
                              relative, "");
  };
  if (schema != kProfileSchemaVersion && schema != kRelativeSchemaVersion) {
    return other_schema(false);
  }

  std::string tenant_id, name, request_id, payload_digest;
  int64_t version = 0, create_time_us = 0;
  in.Text(tenant_id);
  in.Text(name);
  in.Number(version);
  in.Number(create_time_us);
  in.Text(request_id);
  in.Text(payload_digest);
  const absl::StatusOr<Tenant> tenant = Tenant::Parse(tenant_id);
  if (in.failed() || !tenant.ok()) return Corrupt("is not encoded as it should be");
  ProfileRecord record{.tenant = *tenant,
                       .name = std::move(name),
                       .version = version,
                       .create_time_us = create_time_us,
                       .request_id = std::move(request_id),
                       .payload_digest = std::move(payload_digest),
                       .content = {},
                       .checksum = checksum};
  if (!ReadContent(in, record.content) || !in.AtEnd()) {
    return Corrupt("is not encoded as it should be");
  }
  const bool relative = record.content.relative_c.has_value();
  if (schema != ProfileSchemaOf(relative)) return other_schema(relative);
  if (record.version < 1 || !CheckProfileName("name", record.name).ok() ||
      !CheckRequestIdentity(record.request_id, record.payload_digest).ok()) {
    return Corrupt("has a bad name, version or request id");
  }
  const absl::Status sound = CheckProfileContent(record.content);
  if (!sound.ok()) return Corrupt(absl::StrCat("holds a bad value: ", sound.message()));
  return record;
}

absl::StatusOr<std::string> ProfileContentDigest(const ProfileContent& content) {
  RETURN_IF_ERROR(CheckProfileContent(content));
  Writer out;
  WriteContent(content, out);
  return Sha256Hex(out.bytes());
}

}  // namespace eta
