// Profiles for tests of the store: random but valid, the same for the same seed.
#pragma once

#include <random>
#include <string>

#include "calibration/profiles/profile_record.h"
#include "calibration/profiles/profile_store.h"

namespace eta {

inline Tenant TenantOf(const std::string& id) {
  return Tenant::Parse(id).value();
}

inline const Tenant kAcme = TenantOf("acme");
inline const Tenant kOther = TenantOf("other");

inline ProfileContent MakeContent(uint32_t seed, int32_t layers = 2, int32_t heads = 3) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-8.0f, 8.0f);
  ProfileContent content;
  content.labels = {{"domain", "legal \xc3\xa9"}, {"seed", std::to_string(seed)}};
  content.model_fingerprint = std::string(64, 'a');
  content.tokenizer_fingerprint = std::string(64, 'b');
  content.geometry = {.layers = layers, .query_heads = heads, .block_size = 64, .sub_block = 4};
  for (int32_t i = 0; i < layers * heads; ++i) content.thresholds.push_back(uniform(random));
  content.settings = {.offset = 0.1f,
                      .z = 1.5f,
                      .uniform_floor = true,
                      .sink_blocks = 0,
                      .shared_reads = false,
                      .confirm = false,
                      .sparse_prefill = false,
                      .temper_special = false};
  content.target = {.kind = ProfileTargetKind::kUnionDensity, .value = 0.35};
  content.reached = {.soft_density = 0.4, .head_density = 0.2, .union_density = 1.0 / 3.0};
  content.evidence = {.perplexity_full = 21.51,
                      .perplexity_dynamic = 21.6,
                      .perplexity_frozen = 21.7,
                      .head_density = 0.21,
                      .union_density = 0.351,
                      .recall = 0.95,
                      .dynamic_head_density = 0.25,
                      .dynamic_union_density = 0.42,
                      .dynamic_recall = 1.0 / 3.0,
                      .calibration_sequences = 12,
                      .calibration_tokens = 24576,
                      .held_out_sequences = 4,
                      .held_out_tokens = 8192,
                      .increase_over_full = PercentInterval{.low = -0.25, .high = 2.1},
                      .increase_over_dynamic = PercentInterval{.low = -0.1, .high = 1.0 / 3.0},
                      .choice_sequences = 3,
                      .choice_tokens = 6144,
                      .calibration_documents = 9,
                      .choice_documents = 2,
                      .held_out_documents = 4,
                      .equal_documents = 1,
                      .retained_mass = 0.957,
                      .retained_mass_p1 = 0.88,
                      .single_needles = NeedleHits{.asked = 6, .full = 6, .frozen = 5, .kept = 5},
                      .multi_needles = NeedleHits{.asked = 6, .full = 4, .frozen = 5, .kept = 3}};
  return content;
}

// As of a model without a predictor.
inline void MakeRelative(ProfileContent& content) {
  content.relative_c = -3.9f;
  content.formats.index = IndexKind::kOutlier;
  content.thresholds.clear();
  content.z_per_head.clear();
  content.settings.z = 0.0f;
  content.settings.uniform_floor = false;
  content.settings.temper_special = false;
  content.settings.sink_blocks = 1;
  content.settings.shared_reads = true;
  content.settings.confirm = true;
  content.settings.sparse_prefill = true;
  content.settings.min_mass = 0.9f;
  content.target = {.kind = ProfileTargetKind::kRetainedMass, .value = 0.95};
  content.reached.soft_density = 0.0;
  content.evidence.perplexity_dynamic.reset();
  content.evidence.dynamic_head_density.reset();
  content.evidence.dynamic_union_density.reset();
  content.evidence.dynamic_recall.reset();
  content.evidence.increase_over_dynamic.reset();
  content.evidence.divergence = Divergence{.nats = 0.0041, .rows = 512};
}

inline PutProfile MakePut(const std::string& name, uint32_t seed,
                          std::optional<int64_t> expected = std::nullopt) {
  return {.name = name,
          .content = MakeContent(seed),
          .expected_version = expected,
          .request_id = "",
          .payload_digest = ""};
}

}  // namespace eta
