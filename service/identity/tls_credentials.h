// TLS of the server's listener and of its own probe, in gRPC's terms.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "service/identity/own_certificate.h"
#include "service/identity/tls_files.h"

namespace eta {

// Of a listener: TLS 1.2 or 1.3 with what `files` hold when a connection comes in, and certificates
// demanded of clients if there are roots for them; plaintext without `files`. They must outlive
// every server that uses the credentials.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const TlsFiles* files);

// Of a client that reaches that listener from inside the process, and shows `own` where it must. It
// looks whether it is answered, not by whom.
std::shared_ptr<grpc::ChannelCredentials> ProbeCredentials(const TlsFiles* files,
                                                           const OwnCertificate& own);

}  // namespace eta
