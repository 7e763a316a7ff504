// The flags that both commands have: texts, the schedule, where the run goes and what it tells.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "training/backend.h"
#include "training/backends/make_backends.h"
#include "training/data/training_data.h"
#include "training/evaluation/held_out.h"
#include "training/trainer/trainer.h"

namespace CLI {
class App;
}

namespace eta::training {

// Parsing the command line writes these flags. The object must not move until then.
struct RunFlags {
  std::vector<std::string> texts;
  std::vector<std::string> held_out;
  std::vector<std::string> test;
  std::string output;
  bool resume = false;
  TrainingBackendOptions backend;

  int32_t sequence_tokens = 2048;
  int32_t batch = 16;       // sequences of a step, over all ranks
  int32_t micro_batch = 1;  // of them at a time on a rank
  int64_t steps = 1000;
  uint64_t seed = 1;
  double retrieval = 0.12;
  double learning_rate = 4e-4;
  double final_rate = 0.1;  // share of learning_rate
  double warm_up = 0.03;    // share of the steps
  double weight_decay = 0.1;
  double clip = 1.0;
  double block_share = 0.8;
  double beta = 5.0;
  bool recompute = true;

  double minutes = 10.0;  // between checkpoints
  std::string log;        // empty: OUTPUT/log.jsonl
  std::string cache;      // empty: OUTPUT/tokens
  int64_t evaluate_every = 0;
  int32_t evaluation_context = 0;  // 0: sequence_tokens
  int32_t evaluation_windows = 2;
  int32_t needles = 12;

  void Register(CLI::App& command);
  // INVALID_ARGUMENT for combinations that make no sense.
  absl::Status Check() const;

  // What these flags say of the parts of a run.
  TrainerOptions Trainer() const;  // without what the commands add
  DataOptions Data() const;
  HeldOutOptions HeldOutData() const { return Measured(held_out, "held_out"); }
  HeldOutOptions TestData() const { return Measured(test, "test"); }
  // Those that a run which goes on must not change, as text.
  std::map<std::string, std::string> Settings() const;

  std::string checkpoint_path() const { return output + "/checkpoint.safetensors"; }
  std::string log_path() const { return log.empty() ? output + "/log.jsonl" : log; }
  std::string curves_path() const { return output + "/curves.svg"; }
  std::string model_path() const { return output + "/model"; }

 private:
  HeldOutOptions Measured(const std::vector<std::string>& measured, const char* flag) const;
};

// A real number as text from which it comes back to the bit.
std::string NumberText(double number);
// Shares of the steps as steps.
int64_t StepsOf(double share, int64_t steps);

}  // namespace eta::training
