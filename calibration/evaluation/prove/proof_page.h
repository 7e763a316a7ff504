// A proof as a page for people and as JSON for programs.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/evaluation/prove/proof_log.h"
#include "calibration/evaluation/prove/proof_plan.h"
#include "calibration/evaluation/prove/proof_scores.h"
#include "calibration/evaluation/prove/proof_verdict.h"

namespace eta {

struct Proof {
  std::string model;      // as the user named it
  std::string attention;  // likewise
  std::string settings;   // of the way of attending, in words
  std::string command;    // that measured it
  bool quick = false;     // no verdict
  ProofKey key;
  std::string fingerprint;  // of the key
  ProofPlan plan;
  ProofTolerance tolerance;
  ProofScores scores;
  ProofVerdict verdict;
};

// "pass" or "fail"; nothing of a quick proof.
std::optional<std::string> VerdictOf(const Proof& proof);
// One line per rule, and the verdict in front.
std::string ProofText(const Proof& proof);
// One JSON object; the same proof gives the same bytes.
std::string ProofJson(const Proof& proof);
// `json_sha256`: of ProofJson, under which the page names it.
std::string ProofMarkdown(const Proof& proof, const std::string& json_sha256);
// What a profile's label `proof` says: the verdict, under which tolerance, and the proof's digest.
std::string ProofLabel(const Proof& proof, const std::string& json_sha256);

// The page, the JSON and the pictures in a folder. Returns the JSON's digest.
absl::StatusOr<std::string> WriteProof(const Proof& proof, const std::string& folder);

}  // namespace eta
