// The models that a coordinator knows: the presets that ship with xfer, and what its users add.
#ifndef XFER_COORDINATOR_REGISTRY_MODELS_H_
#define XFER_COORDINATOR_REGISTRY_MODELS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/model/model.h"
#include "coordinator/store/store.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// Thread-safe. A model that was added is in the store before Add() returns. Jobs have a copy of
// their model, so that replacing one changes no job.
class Models {
 public:
  // `store` is borrowed.
  explicit Models(Store* store);
  // Takes what the store has; before anything else. DataLoss names a model that cannot be read.
  absl::Status Restore() ABSL_LOCKS_EXCLUDED(mu_);

  // Checks `spec_json` (the presets' form) and adds the model, or puts it in place of the one of
  // that name where `replace` is set. A model that is there already as it is given is returned.
  // InvalidArgument: the document, or a rule that its numbers break, with the values.
  // AlreadyExists: another model has the name; says where they differ first. ResourceExhausted:
  // too many models, or the store's disk is full.
  absl::StatusOr<v1::Model> Add(absl::string_view spec_json, bool replace) ABSL_LOCKS_EXCLUDED(mu_);
  // NotFound names the known models.
  absl::StatusOr<v1::Model> Get(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Sorted by name.
  std::vector<v1::Model> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Store* const store_;
  mutable absl::Mutex mu_;
  std::map<std::string, v1::Model> models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_REGISTRY_MODELS_H_
