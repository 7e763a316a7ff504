// The measured constants of the rule of relative thresholds (eta-semantics.md, "Relative
// thresholds"). Code of hosts and devices includes this file.
#pragma once

namespace eta {

// The envelope of sub-blocks squared, over the variance: measured on calibration text.
inline constexpr float kEnvelopeRatio = 2.68f;
// The deviation over the envelope: kEnvelopeRatio^-1/2.
inline constexpr float kOfEnvelope = 0.61084722f;
static_assert(kEnvelopeRatio * kOfEnvelope * kOfEnvelope > 0.999999f &&
              kEnvelopeRatio * kOfEnvelope * kOfEnvelope < 1.000001f);

}  // namespace eta
