// What became of drafts, as text for people.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "eta/v1/generate.pb.h"

namespace eta::ctl {

// "120 of 180 drafted tokens right, 118 steps saved, 180 steps made drafts".
inline std::string DescribeDrafts(const v1::DraftStats& drafts) {
  std::string text = absl::StrCat(drafts.accepted(), " of ", drafts.drafted(),
                                  " drafted tokens right, ", drafts.steps_saved(), " steps saved");
  if (drafts.made() > 0) absl::StrAppend(&text, ", ", drafts.made(), " steps made drafts");
  return text;
}

}  // namespace eta::ctl
