// The digest of a transfer's bytes: taken in pieces, in any order, on any side, and still one
// number.
//
// A transfer's bytes form a stream (the order of its Hugging Face tensor's box). The stream is cut
// into leaves of kDigestLeafBytes; each leaf is hashed alone with XXH3-64 and mixed with its index;
// the digest is the sum of the mixed leaves modulo 2^64. So chunks that start on a leaf boundary
// can be digested by different threads, in any order, as they arrive, and a GPU can do all leaves
// at once, with the same result. It finds accidental damage; it is not a defence against a forger.
#ifndef XFER_COMMON_BASE_DIGEST_H_
#define XFER_COMMON_BASE_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace xfer {

inline constexpr uint64_t kDigestLeafBytes = 4096;

// The part of a digest that leaf number `leaf` contributes. `bytes` is at most kDigestLeafBytes
// long; only the last leaf of a stream is shorter.
uint64_t DigestLeaf(uint64_t leaf, absl::Span<const std::byte> bytes);

// The part of a digest that contiguous stream bytes [begin, begin + bytes.size()) contribute.
// `begin` must be a multiple of kDigestLeafBytes.
uint64_t DigestRange(uint64_t begin, absl::Span<const std::byte> bytes);

}  // namespace xfer

#endif  // XFER_COMMON_BASE_DIGEST_H_
