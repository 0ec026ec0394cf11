#include "agent/transport/verbs/verbs.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "agent/transport/verbs/connection.h"
#include "agent/transport/verbs/endpoint.h"
#include "agent/transport/verbs/memory.h"
#include "agent/transport/verbs/rails.h"
#include "agent/transport/verbs/receiver.h"
#include "common/base/status.h"

namespace xfer {
namespace verbs {
namespace {

class VerbsTransportImpl final : public VerbsTransport {
 public:
  VerbsTransportImpl(const VerbsOptions& options, std::shared_ptr<Rails> rails,
                     std::shared_ptr<MemoryTable> memory, std::unique_ptr<Receiver> receiver)
      : options_(options),
        rails_(std::move(rails)),
        memory_(std::move(memory)),
        receiver_(std::move(receiver)) {}

  absl::string_view name() const override { return "verbs"; }

  std::vector<std::string> ports() const override {
    std::vector<std::string> names;
    for (size_t i = 0; i < rails_->ports(); ++i) names.push_back(rails_->name(i));
    return names;
  }

  absl::StatusOr<v1::VerbsReply> Serve(const v1::VerbsRequest& request) override {
    return receiver_->Serve(request);
  }

  void StopReceiving() override { receiver_->Stop(); }

  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                    absl::Time deadline) override {
    const std::string who = absl::StrCat("verbs to node '", peer.node, "'");
    UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake.valid()) return ErrnoStatus(errno, absl::StrCat(who, ": eventfd"));
    absl::StatusOr<Connection> connection =
        ConnectTo(peer, options_.node, *rails_, options_.tuning, *options_.control, deadline);
    if (!connection.ok()) return Annotate(connection.status(), who);
    return std::make_unique<VerbsEndpoint>(
        peer, VerbsEndpoint::Shared{rails_, memory_, options_.control}, options_.tuning,
        *std::move(connection), std::move(wake));
  }

  absl::Status Register(const Memory& memory) override { return memory_->Add(memory); }

  void Unregister(const Memory& memory) override {
    const std::shared_ptr<RegisteredMemory> gone = memory_->Remove(memory);
    if (gone != nullptr) receiver_->MemoryGone(gone.get());
  }

 private:
  const VerbsOptions options_;
  const std::shared_ptr<Rails> rails_;
  const std::shared_ptr<MemoryTable> memory_;
  const std::unique_ptr<Receiver> receiver_;
};

}  // namespace
}  // namespace verbs

absl::StatusOr<std::unique_ptr<VerbsTransport>> MakeVerbsTransport(const VerbsOptions& options) {
  if (options.table == nullptr)
    return absl::InvalidArgumentError("verbs: no receive table was given");
  if (options.control == nullptr) return absl::InvalidArgumentError("verbs: no control was given");
  XFER_RETURN_IF_ERROR(verbs::CheckTuning(options.tuning));
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<verbs::Rails> rails,
                        verbs::Rails::Open(options.tuning.nics));
  auto memory = std::make_shared<verbs::MemoryTable>(rails, options.tuning.region_bytes,
                                                     options.tuning.relaxed_ordering);
  XFER_ASSIGN_OR_RETURN(
      std::unique_ptr<verbs::Receiver> receiver,
      verbs::Receiver::Start(options.incarnation, options.tuning, options.table, rails, memory));
  return std::make_unique<verbs::VerbsTransportImpl>(options, std::move(rails), std::move(memory),
                                                     std::move(receiver));
}

}  // namespace xfer
