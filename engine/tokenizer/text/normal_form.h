// Unicode's normal forms (utf8proc), piece by piece.
#pragma once

#include "engine/tokenizer/text/marked_text.h"
#include "engine/tokenizer/text/normalizer.h"

namespace eta {

// Brings `text`, which is well-formed UTF-8, into the form. What composes with one another is
// rewritten together, and all else on its own. Time n log n at most.
void ApplyNormalForm(NormalForm form, MarkedText& text);

}  // namespace eta
