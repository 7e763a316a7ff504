#include "service/wire/attention_message.h"

namespace eta {

v1::AttentionStats ToMessage(const AttentionSums& sums) {
  v1::AttentionStats message;
  message.set_decode_steps(sums.decode_rows);
  if (sums.decode_rows > 0) {
    message.set_head_density(sums.head_density());
    message.set_union_density(sums.union_density());
  }
  message.set_kv_bytes_read(sums.kv_bytes_read);
  message.set_kv_bytes_dense(sums.kv_bytes_dense);
  message.set_index_bytes_read(sums.index_bytes_read);
  message.set_keys_attended(sums.keys_attended);
  message.set_keys_eligible(sums.keys_eligible);
  message.set_keys_read(sums.keys_read);
  message.set_keys_cached(sums.keys_cached);
  message.set_values_read(sums.values_read);
  message.set_prefill_steps(sums.prefill_rows);
  if (sums.prefill_rows > 0) message.set_prefill_density(sums.prefill_density());
  message.set_prefill_keys_attended(sums.prefill_keys_attended);
  message.set_prefill_keys_eligible(sums.prefill_keys_eligible);
  message.set_fallback_steps(sums.fallback_rows);
  message.set_fallback_kv_bytes_read(sums.fallback_kv_bytes_read);
  message.set_shadow_row_layers(sums.shadow_row_layers);
  if (sums.shadow_row_layers > 0) {
    message.set_mass_kept(sums.mass_kept());
    message.set_output_error(sums.output_error());
  }
  return message;
}

}  // namespace eta
