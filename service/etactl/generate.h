// `etactl generate`: sends one prompt and shows the answer as it arrives.
#pragma once

#include <string>

#include "eta/v1/generate.pb.h"
#include "service/etactl/request.h"

namespace eta::ctl {

// The statistics line of an answer: "12 tokens, 81.3 tok/s, first after 9.20 s, ...".
std::string DescribeStatistics(const v1::Started& started, const v1::Finished& finished);

// Returns the exit code of the process.
int RunGenerate(const GenerateFlags& flags);

}  // namespace eta::ctl
