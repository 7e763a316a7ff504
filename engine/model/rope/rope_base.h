// The RoPE base of a request (eta-semantics.md, "Defaults", NTK-aware scaling).
//
// Past the trained length it grows in steps, so that requests about one text have one base whatever
// their questions and longest answers, and share the text's keys and values.
#pragma once

#include <cstdint>

#include "engine/model/model_config.h"

namespace eta {

// f of a request whose prompt and answer together may reach `context` tokens: `context` over the
// trained length, rounded up to 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16 ...
float RopeFactor(const ModelConfig& config, int64_t context);

// The base that goes with it: the checkpoint's own where the factor is 1. With dynamic scaling it
// is transformers' base for a sequence of f times the trained length. Other scalings apply to the
// frequencies of whichever base this is.
float RopeTheta(const ModelConfig& config, int64_t context);

}  // namespace eta
