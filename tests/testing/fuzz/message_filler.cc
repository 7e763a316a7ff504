#include "tests/testing/fuzz/message_filler.h"

#include <limits>
#include <string>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/stubs/logging.h"

namespace eta::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 8;
constexpr int kMaxRepeats = 300;

template <typename T>
T Number(InputReader& reader) {
  switch (reader.Byte() % 4) {
    case 0:
      return reader.Pick<T>({T{0}, T{1}, static_cast<T>(-1), T{2}, T{64}, T{100},
                             std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()});
    case 1:
      return reader.Raw<T>();
    default:
      return static_cast<T>(reader.Byte());
  }
}

template <typename T>
T Real(InputReader& reader) {
  switch (reader.Byte() % 4) {
    case 0:
      return reader.Pick<T>(
          {T{0}, T{1}, T{-1}, T{2}, T{0.5}, T{100}, T{-0.0}, std::numeric_limits<T>::quiet_NaN(),
           std::numeric_limits<T>::infinity(), std::numeric_limits<T>::denorm_min()});
    case 1:
      return reader.Raw<T>();
    default:
      return static_cast<T>(reader.Byte()) / T{64};
  }
}

std::string Text(InputReader& reader) {
  switch (reader.Byte() % 8) {
    case 0:
      return std::string(reader.Byte() * size_t{16}, 'a');
    case 1:
      return std::string(reader.rest());
    default:
      return std::string(reader.Text());
  }
}

class Setter {
 public:
  Setter(InputReader& reader, Message& message, const FieldDescriptor* field, int depth)
      : reader_(reader),
        message_(message),
        reflection_(*message.GetReflection()),
        field_(field),
        depth_(depth) {}

  void Set() {
    if (field_->is_repeated()) {
      const int count = reader_.Byte() % 8 == 0 ? reader_.Int(0, kMaxRepeats) : 1;
      for (int i = 0; i < count; ++i) One();
    } else {
      One();
    }
  }

 private:
  void One() {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(&Reflection::SetInt32, &Reflection::AddInt32, Number<int32_t>(reader_));
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(&Reflection::SetInt64, &Reflection::AddInt64, Number<int64_t>(reader_));
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(&Reflection::SetUInt32, &Reflection::AddUInt32, Number<uint32_t>(reader_));
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(&Reflection::SetUInt64, &Reflection::AddUInt64, Number<uint64_t>(reader_));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Put(&Reflection::SetDouble, &Reflection::AddDouble, Real<double>(reader_));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(&Reflection::SetFloat, &Reflection::AddFloat, Real<float>(reader_));
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(&Reflection::SetBool, &Reflection::AddBool, reader_.Bool());
      case FieldDescriptor::CPPTYPE_ENUM:
        return Put(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
                   static_cast<int>(Number<int32_t>(reader_)));
      case FieldDescriptor::CPPTYPE_STRING:
        return Put(&Reflection::SetString, &Reflection::AddString, Text(reader_));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth_ == kMaxDepth) return;
        Message* const child = field_->is_repeated()
                                   ? reflection_.AddMessage(&message_, field_)
                                   : reflection_.MutableMessage(&message_, field_);
        const std::string_view bytes = reader_.Text();
        InputReader part(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
        return FillMessage(part, *child, depth_ + 1);
    }
  }

  template <typename SetValue, typename AddValue, typename Value>
  void Put(SetValue set, AddValue add, Value value) {
    if (field_->is_repeated()) {
      (reflection_.*add)(&message_, field_, std::move(value));
    } else {
      (reflection_.*set)(&message_, field_, std::move(value));
    }
  }

  InputReader& reader_;
  Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor* const field_;
  const int depth_;
};

}  // namespace

void FillMessage(InputReader& reader, Message& message, int depth) {
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  if (descriptor.field_count() == 0) return;
  while (!reader.empty()) {
    const int index = reader.Byte() % descriptor.field_count();
    Setter(reader, message, descriptor.field(index), depth).Set();
  }
}

bool ReadMessage(InputReader& reader, Message& message) {
  // Silences protobuf, which logs a line for each text that is not UTF-8.
  static google::protobuf::LogHandler* const before = google::protobuf::SetLogHandler(nullptr);
  (void)before;
  if (reader.Bool()) {
    const std::string_view bytes = reader.rest();
    return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }
  FillMessage(reader, message);
  // The wire does not accept a text that is not UTF-8.
  std::string bytes;
  return message.SerializeToString(&bytes) && message.ParseFromString(bytes);
}

}  // namespace eta::fuzz
