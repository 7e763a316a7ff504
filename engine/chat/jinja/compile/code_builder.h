// Code of a template while it is compiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/program.h"

namespace eta::jinja {

class CodeBuilder {
 public:
  CodeBuilder() : program_(std::make_unique<Program>()) {}

  size_t size() const { return program_->code.size(); }
  Program& program() { return *program_; }
  const Program& program() const { return *program_; }

  size_t Emit(Op op, uint32_t line, size_t a = 0, size_t b = 0) {
    program_->code.push_back({op, static_cast<uint32_t>(a), static_cast<int32_t>(b), line});
    return size() - 1;
  }
  // The jump at `from` goes to `to`; both move together.
  void Aim(size_t from, size_t to) {
    program_->code[from].b =
        static_cast<int32_t>(static_cast<int64_t>(to) - static_cast<int64_t>(from));
  }
  void AimHere(size_t from) { Aim(from, size()); }

  // Takes the code from `begin` on out; Paste puts it elsewhere. No jump crosses its edges.
  std::vector<Instruction> Cut(size_t begin) {
    const auto first = program_->code.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<Instruction> piece(first, program_->code.end());
    program_->code.erase(first, program_->code.end());
    return piece;
  }
  void Paste(const std::vector<Instruction>& piece) {
    program_->code.insert(program_->code.end(), piece.begin(), piece.end());
  }

  uint32_t Name(std::string_view name) {
    const auto [entry, is_new] = names_.try_emplace(std::string(name), program_->names.size());
    if (is_new) program_->names.emplace_back(name);
    return static_cast<uint32_t>(entry->second);
  }
  uint32_t Constant(Value value) {
    program_->constants.push_back(std::move(value));
    return static_cast<uint32_t>(program_->constants.size() - 1);
  }
  // A text of the template's.
  uint32_t TextConstant(std::string bytes) {
    const auto [entry, is_new] = texts_.try_emplace(bytes, program_->constants.size());
    if (!is_new) return static_cast<uint32_t>(entry->second);
    auto text = std::make_shared<Text>();
    if (!bytes.empty()) text->control.push_back({0, bytes.size()});
    text->bytes = std::move(bytes);
    return Constant(Value(Kind::kText, std::move(text)));
  }
  size_t Call(CallShape shape) {
    program_->calls.push_back(std::move(shape));
    return program_->calls.size() - 1;
  }

  std::unique_ptr<Program> Release() { return std::move(program_); }

 private:
  std::unique_ptr<Program> program_;
  std::map<std::string, size_t, std::less<>> names_;
  std::map<std::string, size_t, std::less<>> texts_;
};

}  // namespace eta::jinja
