// The canonical blob and the JSON form of a profile.
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProfileRecord MakeRecord(uint32_t seed) {
  return {.tenant = TenantOf("acme"),
          .name = "legal",
          .version = 7,
          .create_time_us = 1'700'000'000'000'000,
          .request_id = "request-1",
          .payload_digest = std::string(64, 'c'),
          .content = MakeContent(seed),
          .checksum = ""};
}

// As of a model without a predictor.
void DropDynamic(ProfileEvidence& evidence) {
  evidence.perplexity_dynamic.reset();
  evidence.dynamic_head_density.reset();
  evidence.dynamic_union_density.reset();
  evidence.dynamic_recall.reset();
  evidence.increase_over_dynamic.reset();
}

// Every finite kind of float: zeros, denormals, limits, neighbours.
std::vector<float> HardFloats() {
  using Limits = std::numeric_limits<float>;
  return {0.0f,          -0.0f,         Limits::denorm_min(), -Limits::denorm_min(),
          Limits::min(), Limits::max(), Limits::lowest(),     std::nextafter(1.0f, 2.0f),
          0.1f,          1.0f / 3.0f,   16777216.0f,          -8.25f};
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
  }
}

TEST(ProfileBlob, RoundTripKeepsEveryBit) {
  ProfileRecord record = MakeRecord(1);
  record.content.geometry = {.layers = 3, .query_heads = 4, .block_size = 64, .sub_block = 0};
  record.content.thresholds = HardFloats();
  record.content.z_per_head = std::vector<float>(12, std::nextafter(2.0f, 0.0f));
  DropDynamic(record.content.evidence);
  const auto blob = EncodeProfile(record).value();
  const auto read = DecodeProfile(blob).value();
  EXPECT_EQ(read, record);
  ExpectSameBits(read.content.thresholds, record.content.thresholds);
  EXPECT_EQ(read.checksum.size(), 64u);
}

// bad input: Profiles | stored, its checksum fails | DATA_LOSS, PROFILE_CORRUPT; marked in lists
//   and health, no other is used in its place |
//   StoreProcessTest.ADamagedProfileIsDataLossAndHurtsNoOther
TEST(ProfileBlob, EveryFlippedBitAndEveryCutIsDataLoss) {
  ProfileRecord record = MakeRecord(2);
  const std::string blob = EncodeProfile(record).value();
  for (size_t i = 0; i < blob.size(); ++i) {
    std::string bad = blob;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    EXPECT_EQ(DecodeProfile(bad).status().code(), StatusCode::kDataLoss) << i;
    EXPECT_EQ(DecodeProfile(blob.substr(0, i)).status().code(), StatusCode::kDataLoss) << i;
  }
  EXPECT_EQ(DecodeProfile(blob + "x").status().code(), StatusCode::kDataLoss);
}

// The blob with other bytes under a checksum that is right.
std::string Resealed(std::string blob) {
  blob.resize(blob.size() - 64);
  return blob + Sha256Hex(blob).value();
}

// Digests that the schemas had when they came: stored profiles load to the same bits.
TEST(ProfileBlob, TheBytesOfASchemaStay) {
  ProfileContent content = MakeContent(2);
  content.settings.sink_blocks = 3;
  content.settings.confirm = true;
  content.settings.min_mass = 0.75f;
  EXPECT_EQ(*ProfileContentDigest(content),
            "1ac0a0f01686dcfbc45ef4cfe9199b2d4440a9564140f770006d1406859200cf");
  MakeRelative(content);
  content.settings.sparse_prefill = true;
  content.settings.offset = 0.5f;
  EXPECT_EQ(*ProfileContentDigest(content),
            "ce3742252392b4e8644a0dedc58d7b7c4f7a4d644054aed23934db16a3201144");
  EXPECT_EQ(kProfileSchemaVersion, 6);
  EXPECT_EQ(kRelativeSchemaVersion, 8);
}

// bad input: Profiles | of another schema | FAILED_PRECONDITION, PROFILE_SCHEMA_MISMATCH |
//   BadProfileTest.AProfileOfAnotherSchemaWaitsForItsBuild
TEST(ProfileBlob, AnotherSchemaIsFailedPrecondition) {
  ProfileRecord record = MakeRecord(3);
  std::string blob = EncodeProfile(record).value();
  for (const int schema : {1, kProfileSchemaVersion - 1, kProfileSchemaVersion + 1,
                           kRelativeSchemaVersion, kRelativeSchemaVersion + 1}) {
    blob[4] = static_cast<char>(schema);
    const absl::Status status = DecodeProfile(Resealed(blob)).status();
    EXPECT_THAT(status, FailsFor(StatusCode::kFailedPrecondition, "PROFILE_SCHEMA_MISMATCH"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("version ", schema)));
  }
}

// bad input: Profiles | a relative threshold that was chosen for an earlier estimate of masses |
//   FAILED_PRECONDITION, PROFILE_SCHEMA_MISMATCH; it says to calibrate again |
//   BadProfileTest.FilesOfRelativeProfilesThatMakeNoSenseAreRefused
TEST(ProfileBlob, ARelativeThresholdOfAnotherEstimateIsFailedPrecondition) {
  ProfileRecord record = MakeRecord(3);
  EXPECT_EQ(EncodeProfile(record).value()[4], kProfileSchemaVersion);
  MakeRelative(record.content);
  std::string blob = EncodeProfile(record).value();
  EXPECT_EQ(blob[4], kRelativeSchemaVersion);
  for (const int schema : {kProfileSchemaVersion, kRelativeSchemaVersion + 1}) {
    blob[4] = static_cast<char>(schema);
    const absl::Status status = DecodeProfile(Resealed(blob)).status();
    EXPECT_THAT(status, FailsFor(StatusCode::kFailedPrecondition, "PROFILE_SCHEMA_MISMATCH"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("version ", schema)));
  }
  blob[4] = static_cast<char>(kProfileSchemaVersion);
  EXPECT_THAT(std::string(DecodeProfile(Resealed(blob)).status().message()),
              AllOf(HasSubstr("estimate of masses"), HasSubstr("calibrate it again")));
}

TEST(ProfileBlob, ARelativeProfileKeepsEveryBit) {
  ProfileRecord record = MakeRecord(6);
  MakeRelative(record.content);
  record.content.relative_c = std::nextafter(-3.9f, 0.0f);
  const auto blob = EncodeProfile(record).value();
  EXPECT_EQ(DecodeProfile(blob).value(), record);
  for (size_t i = 0; i + 64 < blob.size(); ++i) {
    std::string changed = blob;
    changed[i] = static_cast<char>(0xff);
    changed = Resealed(changed);
    auto other = DecodeProfile(changed);
    if (!other.ok()) continue;
    EXPECT_EQ(EncodeProfile(*other).value(), changed) << i;
  }
}

// bad input: Profiles | stored thresholds that are no numbers | DATA_LOSS, PROFILE_CORRUPT |
//   BadProfileTest.StoredThresholdsThatAreNoNumbersAreDataLoss
TEST(ProfileBlob, BadValuesUnderAGoodChecksumAreDataLoss) {
  ProfileRecord record = MakeRecord(4);
  const std::string blob = EncodeProfile(record).value();
  // The last threshold stands before the flag of z per head and the checksum.
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::string changed = blob;
    const auto bits = std::bit_cast<uint32_t>(bad);
    for (size_t i = 0; i < 4; ++i) {
      changed[blob.size() - 64 - 1 - 4 + i] = static_cast<char>(bits >> (8 * i));
    }
    const absl::Status status = DecodeProfile(Resealed(changed)).status();
    EXPECT_THAT(status, FailsSaying(StatusCode::kDataLoss, "thresholds[1][2]"));
  }
  // Every other byte, resealed: refused or a record that is sound and encodes to these very bytes.
  for (size_t i = 0; i + 64 < blob.size(); ++i) {
    std::string changed = blob;
    changed[i] = static_cast<char>(0xff);
    changed = Resealed(changed);
    auto read = DecodeProfile(changed);
    if (!read.ok()) continue;
    EXPECT_EQ(EncodeProfile(*read).value(), changed) << i;
  }
}

TEST(ProfileBlob, RefusesContentOutsideItsLimits) {
  const auto field = [](auto change) {
    ProfileRecord record = MakeRecord(5);
    change(record);
    const absl::Status status = EncodeProfile(record).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return GetErrorDetail(status).field;
  };
  using R = ProfileRecord;
  EXPECT_EQ(field([](R& r) { r.name = ".x"; }), "name");
  EXPECT_EQ(field([](R& r) { r.version = 0; }), "version");
  EXPECT_EQ(field([](R& r) { r.request_id = std::string(65, 'x'); }), "request_id");
  EXPECT_EQ(field([](R& r) { r.request_id = "a b"; }), "request_id");
  EXPECT_EQ(field([](R& r) { r.payload_digest = "x"; }), "payload_digest");
  EXPECT_EQ(field([](R& r) { r.content.model_fingerprint = "A"; }), "model_fingerprint");
  EXPECT_EQ(field([](R& r) { r.content.tokenizer_fingerprint = ""; }), "tokenizer_fingerprint");
  EXPECT_EQ(field([](R& r) { r.content.geometry.sub_block = 5; }), "geometry.sub_block");
  EXPECT_EQ(field([](R& r) { r.content.geometry.layers = 1 << 30; }), "geometry.layers");
  EXPECT_EQ(field([](R& r) { r.content.formats.index = IndexKind{2}; }), "index");
  EXPECT_EQ(field([](R& r) { r.content.formats.kv_dtype = DType::kInt64; }), "kv_dtype");
  EXPECT_EQ(field([](R& r) { r.content.formats.kv_dtype = DType{99}; }), "kv_dtype");
  EXPECT_EQ(field([](R& r) { r.content.formats.weights = WeightFormat{3}; }), "weights");
  EXPECT_EQ(field([](R& r) { r.content.thresholds.pop_back(); }), "thresholds");
  EXPECT_EQ(field([](R& r) { r.content.thresholds[4] = NAN; }), "thresholds[1][1]");
  EXPECT_EQ(field([](R& r) { r.content.z_per_head = {1.0f}; }), "z_per_head");
  EXPECT_EQ(field([](R& r) { r.content.z_per_head.assign(6, 17.0f); }), "z_per_head");
  EXPECT_EQ(field([](R& r) { r.content.settings.offset = 101.0f; }), "offset");
  EXPECT_EQ(field([](R& r) { r.content.settings.z = -1.0f; }), "z");
  EXPECT_EQ(field([](R& r) { r.content.target.value = 0.0; }), "target.value");
  EXPECT_EQ(field([](R& r) { r.content.reached.soft_density = 1.1; }), "reached.soft_density");
  EXPECT_EQ(field([](R& r) { r.content.evidence.recall = NAN; }), "evidence.recall");
  EXPECT_EQ(field([](R& r) { r.content.evidence.dynamic_recall = 1.5; }),
            "evidence.dynamic_recall");
  EXPECT_EQ(field([](R& r) { r.content.evidence.perplexity_dynamic.reset(); }),
            "evidence.dynamic_head_density");
  EXPECT_EQ(field([](R& r) {
              r.content.evidence.increase_over_full = PercentInterval{2.0, 1.0};
            }),
            "evidence.increase_over_full");
  EXPECT_EQ(field([](R& r) {
              r.content.evidence.increase_over_full = PercentInterval{-101.0, 1.0};
            }),
            "evidence.increase_over_full");
  EXPECT_EQ(field([](R& r) {
              r.content.evidence.increase_over_dynamic = PercentInterval{0.0, INFINITY};
            }),
            "evidence.increase_over_dynamic");
  EXPECT_EQ(field([](R& r) {
              DropDynamic(r.content.evidence);
              r.content.evidence.increase_over_dynamic = PercentInterval{0.0, 1.0};
            }),
            "evidence.increase_over_dynamic");
  EXPECT_EQ(field([](R& r) { r.content.evidence.equal_documents = -1; }),
            "evidence.equal_documents");
  EXPECT_EQ(field([](R& r) {
              r.content.target = {ProfileTargetKind::kDynamicUnionDensity, 1001.0};
            }),
            "target.value");
  EXPECT_EQ(field([](R& r) { r.content.settings.sink_blocks = 1025; }), "sink_blocks");
  EXPECT_EQ(field([](R& r) { r.content.settings.sink_blocks = -1; }), "sink_blocks");
  EXPECT_EQ(field([](R& r) { r.content.settings.min_mass = 0.0f; }), "min_mass");
  EXPECT_EQ(field([](R& r) { r.content.settings.min_mass = NAN; }), "min_mass");
  EXPECT_EQ(field([](R& r) { r.content.evidence.retained_mass = 1.5; }), "evidence.retained_mass");
  EXPECT_EQ(field([](R& r) { r.content.evidence.retained_mass_p1.reset(); }),
            "evidence.retained_mass_p1");
  EXPECT_EQ(field([](R& r) { r.content.evidence.single_needles->kept = 6; }),
            "evidence.single_needles");
  EXPECT_EQ(field([](R& r) { r.content.evidence.multi_needles->asked = 4; }),
            "evidence.multi_needles");
  EXPECT_EQ(field([](R& r) { r.content.evidence.multi_needles->kept = -1; }),
            "evidence.multi_needles");
  EXPECT_EQ(field([](R& r) { r.content.target.kind = ProfileTargetKind::kRetainedMass; }),
            "target.kind");
  EXPECT_EQ(field([](R& r) { r.content.evidence.divergence = {.nats = 0.1, .rows = 5}; }),
            "evidence.divergence")
      << "of constants";
  for (const Divergence& bad :
       {Divergence{.nats = -0.1, .rows = 5}, Divergence{.nats = NAN, .rows = 5},
        Divergence{.nats = INFINITY, .rows = 5}, Divergence{.nats = 0.1, .rows = 0}}) {
    const auto spoil = [&bad](R& r) {
      MakeRelative(r.content);
      r.content.evidence.divergence = bad;
    };
    EXPECT_EQ(field(spoil), "evidence.divergence");
  }
  EXPECT_EQ(field([](R& r) { r.content.evidence.perplexity_full = INFINITY; }),
            "evidence.perplexity_full");
  EXPECT_EQ(field([](R& r) { r.content.evidence.calibration_tokens = 0; }),
            "evidence.calibration_tokens");
  EXPECT_EQ(field([](R& r) { r.content.labels["k"] = "a\nb"; }), "labels.k");
  EXPECT_EQ(field([](R& r) { r.content.labels["k"] = "\xff"; }), "labels.k");
  EXPECT_EQ(field([](R& r) { r.content.labels["K"] = "a"; }), "labels");
  EXPECT_EQ(field([](R& r) {
              for (int i = 0; i < 17; ++i) r.content.labels["k" + std::to_string(i)] = "";
            }),
            "labels");
}

// bad input: Profiles | ImportProfile: `relative_threshold` outside [-100, 100] or beside what it
//   does not read; needles that contradict | INVALID_ARGUMENT, named |
//   BadProfileTest.FilesOfRelativeProfilesThatMakeNoSenseAreRefused
TEST(ProfileBlob, ARelativeProfileHasNothingThatItsRuleDoesNotRead) {
  const auto field = [](auto change) {
    ProfileRecord record = MakeRecord(7);
    MakeRelative(record.content);
    change(record.content);
    return GetErrorDetail(EncodeProfile(record).status()).field;
  };
  using C = ProfileContent;
  EXPECT_EQ(field([](C&) {}), "");
  EXPECT_EQ(field([](C& c) { c.relative_c = NAN; }), "relative_threshold");
  EXPECT_EQ(field([](C& c) { c.relative_c = -100.5f; }), "relative_threshold");
  EXPECT_EQ(field([](C& c) { c.thresholds.assign(6, 0.0f); }), "thresholds");
  EXPECT_EQ(field([](C& c) { c.z_per_head.assign(6, 0.0f); }), "z_per_head");
  EXPECT_EQ(field([](C& c) { c.settings.z = 1.5f; }), "z");
  EXPECT_EQ(field([](C& c) { c.settings.uniform_floor = true; }), "floor");
  EXPECT_EQ(field([](C& c) { c.settings.temper_special = true; }), "special_keys");
  EXPECT_EQ(field([](C& c) { c.formats.index = IndexKind::kMoment; }), "index");
  EXPECT_EQ(field([](C& c) {
              c.target = {ProfileTargetKind::kDynamicUnionDensity, 0.5};
            }),
            "target.kind");
  EXPECT_EQ(field([](C& c) { c.target = {}; }), "target.kind");
  EXPECT_EQ(field([](C& c) { c.relative_c.reset(); }), "thresholds");
}

TEST(ThresholdProfileOf, HasWhatItsKindHas) {
  ProfileContent content = MakeContent(2);
  content.settings.sink_blocks = 3;
  content.settings.temper_special = true;
  const auto constants = ThresholdProfileOf(content, "legal", 1);
  EXPECT_EQ(constants->thresholds, content.thresholds);
  EXPECT_EQ(constants->relative_c, std::nullopt);
  EXPECT_EQ(constants->settings.z, 1.5f);
  EXPECT_EQ(constants->settings.uniform_floor, true);
  EXPECT_EQ(constants->settings.sink_blocks, 3);
  EXPECT_EQ(constants->index, IndexKind::kMoment);
  EXPECT_EQ(constants->kv_dtype, DType::kFloat16);
  EXPECT_EQ(constants->weights, WeightFormat::kNative);
  EXPECT_EQ(constants->settings.shared_reads, false);
  EXPECT_EQ(constants->settings.temper_special, true);
  EXPECT_EQ(constants->settings.min_mass, std::nullopt);
  MakeRelative(content);
  const auto relative = ThresholdProfileOf(content, "legal", 1);
  EXPECT_TRUE(relative->thresholds.empty());
  EXPECT_EQ(relative->relative_c, -3.9f);
  EXPECT_EQ(relative->settings.z, std::nullopt);
  EXPECT_EQ(relative->settings.uniform_floor, std::nullopt);
  EXPECT_EQ(relative->settings.temper_special, std::nullopt);
  EXPECT_EQ(relative->settings.sink_blocks, 1);
  EXPECT_EQ(relative->settings.shared_reads, true);
  EXPECT_EQ(relative->settings.min_mass, 0.9f);
}

TEST(MeasuredContext, IsTheSecondHalfOfTheHeldOutSequences) {
  ProfileContent content = MakeContent(1);
  content.evidence.held_out_sequences = 4;
  content.evidence.held_out_tokens = 4 * 2048 - 3;
  const auto profile = ThresholdProfileOf(content, "legal", 1);
  EXPECT_EQ(profile->measured_context, 2047);
  EXPECT_FALSE(profile->MeasuredAt(1023));
  EXPECT_TRUE(profile->MeasuredAt(1024));
  EXPECT_TRUE(profile->MeasuredAt(2047));
  EXPECT_FALSE(profile->MeasuredAt(2048));
  content.evidence.held_out_sequences = 0;
  EXPECT_EQ(MeasuredContext(content.evidence), 0) << "nothing was verified";
  EXPECT_FALSE(ThresholdProfileOf(content, "legal", 1)->MeasuredAt(1));
}

// bad input: Profiles | names with "..", slash, NUL, leading dot, SQL, over 63 characters,
//   look-alikes | INVALID_ARGUMENT naming the field, in every field of every call |
//   BadProfileTest.NamesOutsideTheAllowListAreInvalidEverywhere
TEST(ProfileNames, OneAllowList) {
  for (const std::string& good :
       {std::string("a"), std::string("legal-2024_v1.2"), std::string("0"), std::string(63, 'z')}) {
    EXPECT_TRUE(CheckProfileName("name", good).ok()) << good;
  }
  using std::string_literals::operator""s;
  for (const std::string& bad : {""s,
                                 "."s,
                                 ".."s,
                                 ".hidden"s,
                                 "../../etc/passwd"s,
                                 "a/b"s,
                                 "a\\b"s,
                                 "a\0b"s,
                                 "A"s,
                                 "Legal"s,
                                 "\xd0\xb0"s,
                                 "l\xd0\xb5gal"s,
                                 "legal\xef\xbc\x8e"s,
                                 "a b"s,
                                 "a\nb"s,
                                 "%"s,
                                 "a*"s,
                                 "'; DROP TABLE eta_profiles; --"s,
                                 "a\" OR \"1\"=\"1"s,
                                 "a@1"s,
                                 std::string(64, 'z')}) {
    EXPECT_EQ(CheckProfileName("name", bad).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(CheckProfileAlias("alias", "3").ok());
  EXPECT_TRUE(CheckProfileAlias("alias", "stable").ok());
  EXPECT_FALSE(Tenant::Parse("").ok());
  EXPECT_FALSE(Tenant::Parse("a b").ok());
  EXPECT_FALSE(Tenant::Parse(std::string(256, 'a')).ok());
}

TEST(ProfileNames, References) {
  EXPECT_EQ(ParseProfileReference("profile", "legal")->selector, ProfileSelector(Newest()));
  EXPECT_EQ(ParseProfileReference("profile", "legal@12")->selector, ProfileSelector(int64_t{12}));
  EXPECT_EQ(ParseProfileReference("profile", "legal@stable")->selector,
            ProfileSelector(std::string("stable")));
  for (const char* bad : {"", "@", "@1", "legal@", "legal@0", "legal@01", "legal@-1", "legal@1a",
                          "legal@a@b", "legal@99999999999999999999"}) {
    EXPECT_EQ(ParseProfileReference("profile", bad).status().code(), StatusCode::kInvalidArgument)
        << bad;
  }
}

PortableProfile MakePortable() {
  PortableProfile profile{.name = "legal", .version = 3, .create_time_us = 17, .content = {}};
  profile.content = MakeContent(6, 3, 4);
  profile.content.thresholds = HardFloats();
  return profile;
}

TEST(ProfileJson, RoundTripKeepsEveryBit) {
  PortableProfile profile = MakePortable();
  for (const bool more : {false, true}) {
    if (more) {
      profile.content.z_per_head = std::vector<float>(12, std::nextafter(0.7f, 1.0f));
      DropDynamic(profile.content.evidence);
      profile.content.evidence.increase_over_full.reset();
      profile.content.target = {ProfileTargetKind::kDynamicUnionDensity, 0.5};
      profile.content.settings.uniform_floor = false;
      profile.content.labels.clear();
      profile.content.settings.sink_blocks = 7;
      profile.content.settings.shared_reads = profile.content.settings.temper_special = true;
      profile.content.settings.confirm = true;
      profile.content.formats = {.index = IndexKind::kOutlier,
                                 .kv_dtype = DType::kFloat8E4M3,
                                 .weights = WeightFormat::kInt4};
      profile.content.settings.sparse_prefill = true;
      profile.content.settings.min_mass = std::nextafter(0.3f, 0.0f);
      profile.content.evidence.multi_needles.reset();
    }
    const auto text = ProfileToJson(profile).value();
    EXPECT_EQ(text, nlohmann::ordered_json::parse(text).dump(1) + "\n");
    const auto read = ProfileFromJson(text).value();
    EXPECT_EQ(read, profile);
    ExpectSameBits(read.content.thresholds, profile.content.thresholds);
  }
}

TEST(ProfileJson, ARelativeProfileComesBack) {
  PortableProfile profile = MakePortable();
  MakeRelative(profile.content);
  profile.content.relative_c = std::nextafter(-4.6f, 0.0f);
  const auto text = ProfileToJson(profile).value();
  EXPECT_EQ(ProfileFromJson(text).value(), profile);
  auto json = nlohmann::ordered_json::parse(text);
  EXPECT_TRUE(json["thresholds"].is_null());
  EXPECT_EQ(json["reads"], "shared");
  const auto field = [&json](const char* key, const nlohmann::ordered_json& value) {
    auto changed = json;
    changed[key] = value;
    return GetErrorDetail(ProfileFromJson(changed.dump()).status()).field;
  };
  EXPECT_EQ(field("thresholds", nlohmann::ordered_json::array()), "thresholds");
  EXPECT_EQ(field("relative_threshold", nullptr), "schema_version");
  EXPECT_EQ(field("relative_threshold", 1e39), "relative_threshold");
  EXPECT_EQ(field("relative_threshold", -4.7), "content_sha256");
  EXPECT_EQ(field("reads", "both"), "reads");
  EXPECT_EQ(field("confirm", "yes"), "confirm");
  EXPECT_EQ(field("confirm", false), "content_sha256");
  EXPECT_EQ(field("prefill", "dense"), "prefill");
  EXPECT_EQ(field("prefill", "full"), "content_sha256");
  EXPECT_EQ(field("special_keys", "temper"), "special_keys");
  EXPECT_EQ(field("special_keys", "drop"), "special_keys");
  EXPECT_EQ(field("min_mass", 0), "min_mass");
  EXPECT_EQ(field("sink_blocks", 1e9), "sink_blocks");
  const auto of_evidence = [&json](const nlohmann::ordered_json& divergence) {
    auto changed = json;
    changed["evidence"]["divergence"] = divergence;
    return GetErrorDetail(ProfileFromJson(changed.dump()).status()).field;
  };
  EXPECT_EQ(json["evidence"]["divergence"]["rows"], 512);
  EXPECT_EQ(of_evidence(nullptr), "content_sha256");
  EXPECT_EQ(of_evidence({{"nats", 0.5}}), "evidence.divergence.rows");
  EXPECT_EQ(of_evidence({{"nats", "low"}, {"rows", 5}}), "evidence.divergence.nats");
  EXPECT_EQ(of_evidence({{"nats", 0.5}, {"rows", 0}}), "evidence.divergence.rows");
  profile.content.evidence.divergence.reset();
  EXPECT_EQ(ProfileFromJson(ProfileToJson(profile).value()).value(), profile);
}

TEST(ProfileJson, ARelativeThresholdOfAnotherEstimateIsFailedPrecondition) {
  PortableProfile profile = MakePortable();
  EXPECT_EQ(nlohmann::json::parse(ProfileToJson(profile).value())["schema_version"],
            kProfileSchemaVersion);
  MakeRelative(profile.content);
  auto json = nlohmann::ordered_json::parse(ProfileToJson(profile).value());
  EXPECT_EQ(json["schema_version"], kRelativeSchemaVersion);
  for (const int schema : {kProfileSchemaVersion, kRelativeSchemaVersion + 1}) {
    json["schema_version"] = schema;
    const absl::Status status = ProfileFromJson(json.dump()).status();
    EXPECT_THAT(status, FailsFor(StatusCode::kFailedPrecondition, "PROFILE_SCHEMA_MISMATCH"));
    EXPECT_EQ(GetErrorDetail(status).field, "schema_version");
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("estimate of masses"), HasSubstr("calibrate it again")));
  }
}

// bad input: Profiles | a file with `confirm`, `prefill`, `index`, `kv_dtype`, `weights` missing,
//   of another type, changed without its digest | INVALID_ARGUMENT, the field named; nothing is
//   stored | BadProfileTest.FilesOfRelativeProfilesThatMakeNoSenseAreRefused
TEST(ProfileJson, EveryFieldIsNeededAndNoOtherIsTaken) {
  PortableProfile portable = MakePortable();
  portable.content.settings.min_mass = 0.5f;
  const auto whole = nlohmann::ordered_json::parse(ProfileToJson(portable).value());
  for (const auto& [key, value] : whole.items()) {
    auto missing = whole;
    missing.erase(key);
    EXPECT_EQ(GetErrorDetail(ProfileFromJson(missing.dump()).status()).field, key);
    auto wrong = whole;
    wrong[key] = value.is_boolean() ? nlohmann::ordered_json(1) : nlohmann::ordered_json(true);
    const absl::Status status = ProfileFromJson(wrong.dump()).status();
    EXPECT_THAT(status, FailsOn(StatusCode::kInvalidArgument, key)) << key;
    std::string twice = whole.dump();
    twice.insert(1, "\"" + key + "\":0,");
    EXPECT_THAT(std::string(ProfileFromJson(twice).status().message()), HasSubstr(key));
    if (!value.is_object() || key == "labels") continue;
    for (const auto& [inner, unused] : value.items()) {
      auto less = whole;
      less[key].erase(inner);
      EXPECT_EQ(GetErrorDetail(ProfileFromJson(less.dump()).status()).field,
                absl::StrCat(key, ".", inner));
    }
    auto more = whole;
    more[key]["extra"] = 1;
    EXPECT_THAT(std::string(ProfileFromJson(more.dump()).status().message()), HasSubstr("extra"));
  }
  auto more = whole;
  more["tenant"] = "acme";
  EXPECT_THAT(std::string(ProfileFromJson(more.dump()).status().message()), HasSubstr("tenant"));
}

TEST(ProfileJson, RefusesChangedNumbersAndOtherTrouble) {
  const auto whole = nlohmann::ordered_json::parse(ProfileToJson(MakePortable()).value());
  const auto field = [&](auto change, StatusCode code = StatusCode::kInvalidArgument) {
    auto json = whole;
    change(json);
    const absl::Status status = ProfileFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), code) << status;
    return GetErrorDetail(status).field;
  };
  using J = nlohmann::ordered_json;
  EXPECT_EQ(field([](J& j) { j["thresholds"][0][8 % 4] = 0.25; }), "content_sha256");
  EXPECT_EQ(field([](J& j) { j["thresholds"][1][1] = 1e39; }), "thresholds[1][1]");
  EXPECT_EQ(field([](J& j) { j["thresholds"][1].erase(0); }), "thresholds");
  EXPECT_EQ(field([](J& j) { j["version"] = 0; }), "version");
  EXPECT_EQ(field([](J& j) { j["version"] = 1.5; }), "version");
  EXPECT_EQ(field([](J& j) { j["version"] = UINT64_MAX; }), "version");
  EXPECT_EQ(field([](J& j) { j["floor"] = "UNIFORM"; }), "floor");
  EXPECT_EQ(field([](J& j) { j["geometry"]["layers"] = 1 << 30; }), "geometry.layers");
  EXPECT_EQ(field([](J& j) { j["evidence"]["increase_over_full"]["low"] = "x"; }),
            "evidence.increase_over_full.low");
  for (const int schema : {0, 1, kProfileSchemaVersion - 1, kProfileSchemaVersion + 1}) {
    EXPECT_EQ(
        field([schema](J& j) { j["schema_version"] = schema; }, StatusCode::kFailedPrecondition),
        "schema_version");
  }
  for (const char* formats : {"index", "kv_dtype", "weights"}) {
    EXPECT_EQ(field([formats](J& j) { j[formats] = "int16"; }), formats);
  }
  EXPECT_EQ(field([](J& j) { j["index"] = "outlier"; }), "content_sha256");
  EXPECT_EQ(field([](J& j) { j["kv_dtype"] = "int8"; }), "kv_dtype")
      << "a format of tensors, and of no cache";
  EXPECT_EQ(field([](J& j) { j["name"] = "../x"; }), "name");
  EXPECT_EQ(field([](J& j) { j["name"] = "renamed"; }, StatusCode::kOk), "");
  for (const std::string bad : {"", "[]", "{", "{}x", "nul", "\xff"}) {
    EXPECT_EQ(ProfileFromJson(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(ProfileFromJson(std::string(kMaxProfileJsonBytes + 1, ' ')).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eta
