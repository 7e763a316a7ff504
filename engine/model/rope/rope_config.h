// The rotation that config.json asks for.
#pragma once

#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/model_family.h"

namespace eta {

// Reads rope_theta, which `family` has where the file names none, and the scaling. These stand at
// the top (rope_theta, rope_scaling) or, as newer files have them, in rope_parameters; a scaling's
// type is called rope_type or, by older files, type. Both objects may be there if they say the
// same. A family whose layers with a window turn in their own way has rope_local_base_freq, or
// rope_parameters by kind of layer. Sets `config`'s rope_theta, rope_scaling and max_context from
// its head_dim and the file's max_position_embeddings. Errors go to `fields`: other types of
// scaling, and fields of a scaling that are not known, are refused by name.
void ReadRope(ConfigFields& fields, const ModelFamily& family, ModelConfig& config);

}  // namespace eta
