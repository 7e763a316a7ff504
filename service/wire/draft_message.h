// What became of drafts, as a message.
#pragma once

#include "engine/request/draft_counts.h"
#include "eta/v1/generate.pb.h"

namespace eta {

inline v1::DraftStats ToMessage(const DraftCounts& counts) {
  v1::DraftStats message;
  message.set_drafted(counts.drafted);
  message.set_accepted(counts.accepted);
  message.set_steps_saved(counts.steps_saved);
  message.set_kv_bytes_rejected(counts.kv_bytes_rejected);
  message.set_made(counts.made);
  message.set_kv_bytes_made(counts.kv_bytes_made);
  return message;
}

}  // namespace eta
