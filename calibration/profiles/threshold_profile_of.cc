// lint: untrusted-input
#include "calibration/profiles/threshold_profile_of.h"

#include <utility>

namespace eta {

std::shared_ptr<const ThresholdProfile> ThresholdProfileOf(const ProfileContent& content,
                                                           std::string name, int64_t version) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = std::move(name);
  profile->version = version;
  profile->num_layers = content.geometry.layers;
  profile->num_query_heads = content.geometry.query_heads;
  profile->thresholds = content.thresholds;
  profile->head_z = content.z_per_head;
  profile->relative_c = content.relative_c;
  profile->settings = content.relative_c ? ReadByRelative(content.settings) : content.settings;
  profile->model_fingerprint = content.model_fingerprint;
  profile->tokenizer_fingerprint = content.tokenizer_fingerprint;
  profile->block_size = content.geometry.block_size;
  profile->sub_block = content.geometry.sub_block;
  profile->index = content.formats.index;
  profile->kv_dtype = content.formats.kv_dtype;
  profile->weights = content.formats.weights;
  profile->measured_context = MeasuredContext(content.evidence);
  return profile;
}

}  // namespace eta
