// The conformance suite over the verbs transport; see verbs_harness.h.
#include "tests/unit/agent/transport/conformance.h"
#include "tests/unit/agent/transport/verbs/verbs_harness.h"

namespace xfer {
namespace {

INSTANTIATE_TEST_SUITE_P(Verbs, TransportConformance,
                         ::testing::Values(HarnessFactory{
                             "Verbs", [] { return std::make_unique<VerbsHarness>(); }}),
                         HarnessName);

}  // namespace
}  // namespace xfer
