// Any values as a profile: refused with the same error as bytes and as JSON, or the same again
// after both. The fields come from the input one by one, so that every limit is met.
#include <cstdint>
#include <string>

#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/profile_json.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::Require;

std::string Digest(InputReader& reader) {
  return reader.Byte() % 16 == 0 ? std::string(reader.Text()) : std::string(64, 'a');
}

double Number(InputReader& reader) {
  switch (reader.Byte() % 8) {
    case 0:
      return reader.Raw<double>();
    case 1:
      return reader.Int(-3, 2000);
    default:
      return reader.Byte() / 256.0;
  }
}

int32_t Dimension(InputReader& reader) {
  return reader.Byte() % 16 == 0 ? reader.Int(-2, 1100) : reader.Int(1, 4);
}

std::optional<eta::NeedleHits> Needles(InputReader& reader) {
  if (!reader.Bool()) return std::nullopt;
  const int64_t asked = reader.Int(-1, 20);
  const int64_t full = reader.Int(-1, 20);
  const int64_t frozen = reader.Int(-1, 20);
  return eta::NeedleHits{asked, full, frozen, reader.Int(-1, 20)};
}

// Last, so that older inputs mean what they meant.
void Schema3(InputReader& reader, eta::ProfileContent& content) {
  const uint8_t there = reader.Byte();
  eta::ProfileEvidence& evidence = content.evidence;
  if ((there & 1) != 0) evidence.retained_mass = Number(reader);
  if ((there & 2) != 0) evidence.retained_mass_p1 = Number(reader);
  if ((there & 4) != 0) evidence.single_needles = Needles(reader);
  if ((there & 8) != 0) evidence.multi_needles = Needles(reader);
  if ((there & 16) != 0) content.settings.min_mass = static_cast<float>(Number(reader));
  content.settings.sink_blocks = (there & 32) != 0 ? static_cast<int32_t>(reader.Int(-1, 1100)) : 0;
  content.settings.shared_reads = (there & 64) != 0;
  content.settings.temper_special = (there & 128) != 0;
  const uint8_t kind = reader.Byte();
  content.settings.confirm = (kind & 128) != 0;
  content.settings.sparse_prefill = (kind & 64) != 0;
  if ((kind & 32) != 0) content.formats.kv_dtype = static_cast<eta::DType>(reader.Byte());
  if ((kind & 16) != 0) content.formats.weights = static_cast<eta::WeightFormat>(reader.Byte() % 4);
  content.formats.index = static_cast<eta::IndexKind>(kind % 2);
  if (kind % 2 == 0) return;
  content.relative_c = static_cast<float>((kind & 2) != 0 ? Number(reader) : -3.9);
  // Sound more often than not: what a relative profile must not have is left out.
  if ((kind & 4) != 0) return;
  content.thresholds.clear();
  content.z_per_head.clear();
  content.settings.z = 0.0f;
  content.settings.uniform_floor = false;
  content.settings.temper_special = false;
  content.target = {eta::ProfileTargetKind::kRetainedMass, (kind & 8) != 0 ? Number(reader) : 0.9};
  if (reader.Bool()) evidence.divergence = eta::Divergence{Number(reader), reader.Int(-1, 40)};
}

eta::ProfileContent Content(InputReader& reader) {
  eta::ProfileContent content;
  content.model_fingerprint = Digest(reader);
  content.tokenizer_fingerprint = Digest(reader);
  eta::ProfileGeometry& geometry = content.geometry;
  geometry.layers = Dimension(reader);
  geometry.query_heads = Dimension(reader);
  geometry.block_size = Dimension(reader) * 4;
  geometry.sub_block = reader.Pick({0, 4, 3, -1});
  const int64_t heads = int64_t{geometry.layers} * geometry.query_heads;
  const int64_t size = reader.Byte() % 16 == 0 ? reader.Int(0, 20) : heads;
  if (size >= 0 && size <= 4096) content.thresholds.resize(static_cast<size_t>(size), 1.5f);
  for (int i = 0; i < 3 && !content.thresholds.empty(); ++i) {
    content.thresholds[reader.Byte() % content.thresholds.size()] =
        reader.Bool() ? reader.Raw<float>() : static_cast<float>(reader.Byte());
  }
  if (reader.Bool()) {
    content.z_per_head.resize(content.thresholds.size() + (reader.Byte() % 16 == 0 ? 1 : 0), 1.0f);
    if (!content.z_per_head.empty()) content.z_per_head[0] = static_cast<float>(Number(reader));
  }
  content.settings.offset = static_cast<float>(Number(reader));
  content.settings.z = static_cast<float>(Number(reader));
  content.settings.uniform_floor = reader.Byte() % 16 != 0;
  content.target.kind = static_cast<eta::ProfileTargetKind>(
      reader.Byte() % 16 == 0 ? reader.Byte() : reader.Byte() % 5);
  content.target.value = reader.Bool() ? 0.0 : Number(reader);
  content.reached = {Number(reader), Number(reader), Number(reader)};
  eta::ProfileEvidence& evidence = content.evidence;
  evidence.perplexity_full = Number(reader);
  evidence.perplexity_frozen = Number(reader);
  evidence.head_density = Number(reader);
  evidence.union_density = Number(reader);
  evidence.recall = Number(reader);
  const uint8_t there = reader.Byte();
  if ((there & 1) != 0) evidence.perplexity_dynamic = Number(reader);
  if ((there & 2) != 0) evidence.dynamic_head_density = Number(reader);
  if ((there & 4) != 0) evidence.dynamic_union_density = Number(reader);
  if ((there & 8) != 0) evidence.dynamic_recall = Number(reader);
  evidence.calibration_sequences = reader.Int(-1, 40);
  evidence.calibration_tokens = reader.Int(-1, 40);
  evidence.held_out_sequences = reader.Int(-1, 40);
  evidence.held_out_tokens = reader.Int(-1, 40);
  for (int n = reader.Byte() % 19; n > 0 && !reader.empty(); --n) {
    const std::string key =
        reader.Byte() % 8 == 0 ? std::string(reader.Text()) : "k" + std::to_string(n);
    content.labels[key] = std::string(reader.Text());
  }
  const uint8_t known = reader.Byte();
  if ((known & 1) != 0)
    evidence.increase_over_full = eta::PercentInterval{Number(reader), Number(reader)};
  if ((known & 2) != 0)
    evidence.increase_over_dynamic = eta::PercentInterval{Number(reader), Number(reader)};
  for (int64_t* count :
       {&evidence.choice_sequences, &evidence.choice_tokens, &evidence.calibration_documents,
        &evidence.choice_documents, &evidence.held_out_documents, &evidence.equal_documents}) {
    if ((known & 4) != 0) *count = reader.Int(-1, 40);
  }
  Schema3(reader, content);
  return content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputReader reader(data, size);
  eta::ProfileRecord record{.tenant = *eta::Tenant::Parse("acme"),
                            .name = reader.Byte() % 16 == 0 ? std::string(reader.Text()) : "legal",
                            .version = reader.Byte() % 16 == 0 ? reader.Raw<int64_t>() : 3,
                            .create_time_us = reader.Byte() % 16 == 0 ? reader.Raw<int64_t>() : 1,
                            .request_id = {},
                            .payload_digest = {},
                            .content = {},
                            .checksum = {}};
  if (reader.Bool()) record.request_id = std::string(reader.Text());
  if (!record.request_id.empty()) record.payload_digest = Digest(reader);
  record.content = Content(reader);

  const absl::Status sound = eta::CheckProfileContent(record.content);
  if (!sound.ok()) eta::fuzz::RequireReadable(sound);
  const auto blob = eta::EncodeProfile(record);
  if (blob.ok()) {
    Require(sound.ok());
    Require(eta::MeasuredContext(record.content.evidence) >= 0);
    const auto decoded = eta::DecodeProfile(*blob);
    Require(decoded.ok() && *decoded == record);
  } else {
    eta::fuzz::RequireReadable(blob.status());
  }
  const eta::PortableProfile portable{.name = record.name,
                                      .version = record.version,
                                      .create_time_us = record.create_time_us,
                                      .content = record.content};
  const auto text = eta::ProfileToJson(portable);
  if (!text.ok()) {
    eta::fuzz::RequireReadable(text.status());
    return 0;
  }
  Require(sound.ok());
  const auto parsed = eta::ProfileFromJson(*text);
  Require(parsed.ok() && *parsed == portable);
  return 0;
}
