// The text of models that come with a tokenizer.json, as Hugging Face's tokenizers reads it: added
// tokens, normalizer, pre-tokenizer, byte-pair encoding, post-processor, decoder.
//
// A file's part that is not known here is refused by name. Its own truncation and padding are not
// applied: the server has limits of its own, and pads nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/text_codec.h"

namespace eta {

// Control tokens are the added tokens that are special, and those of `source`. INVALID_ARGUMENT
// naming the field of a damaged file; UNIMPLEMENTED naming the part for what is not known;
// FAILED_PRECONDITION for an id that is not below `vocab_size`.
absl::StatusOr<std::unique_ptr<const TextCodec>> LoadJsonCodec(std::string_view json,
                                                               const ControlSource& source,
                                                               int32_t vocab_size);

}  // namespace eta
