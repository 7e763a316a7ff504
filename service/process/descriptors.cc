#include "service/process/descriptors.h"

#include "eta/v1/admin.pb.h"
#include "eta/v1/calibrate.pb.h"
#include "eta/v1/generate.pb.h"
#include "eta/v1/profiles.pb.h"
#include "eta/v1/stats.pb.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"
#include "opentelemetry/proto/common/v1/common.pb.h"
#include "opentelemetry/proto/resource/v1/resource.pb.h"
#include "opentelemetry/proto/trace/v1/trace.pb.h"

namespace eta {

void BuildDescriptors() {
  // One of each file, which is built whole.
  const google::protobuf::Message* const messages[] = {
      &v1::SetLogLevelRequest::default_instance(),
      &v1::CalibrateRequest::default_instance(),
      &v1::GenerateRequest::default_instance(),
      &v1::Profile::default_instance(),
      &v1::StatsRequest::default_instance(),
      &google::rpc::ErrorInfo::default_instance(),
      &google::rpc::Status::default_instance(),
      &grpc::health::v1::HealthCheckRequest::default_instance(),
      &opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest::default_instance(),
      &opentelemetry::proto::common::v1::KeyValue::default_instance(),
      &opentelemetry::proto::resource::v1::Resource::default_instance(),
      &opentelemetry::proto::trace::v1::Span::default_instance(),
  };
  for (const google::protobuf::Message* message : messages) (void)message->GetReflection();
}

}  // namespace eta
