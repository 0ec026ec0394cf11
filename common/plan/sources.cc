// The index of source pieces: see SourceIndex.
#include <numeric>

#include "absl/strings/string_view.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {

bool Convertible(DType from, DType to) {
  const auto narrow = [](DType t) { return t == DType::kBF16 || t == DType::kF16; };
  return from == to || (narrow(from) && to == DType::kF32) || (from == DType::kF32 && narrow(to));
}

uint32_t HolderSets::Intern(absl::Span<const Holder> holders) {
  const absl::string_view key(reinterpret_cast<const char*>(holders.data()),
                              holders.size() * sizeof(Holder));
  auto it = ids_.find(key);
  if (it != ids_.end()) return it->second;
  const uint32_t id = size();
  ids_.emplace(std::string(key), id);
  flat_.insert(flat_.end(), holders.begin(), holders.end());
  begin_.push_back(flat_.size());
  return id;
}

int32_t HolderSets::Usable(uint32_t set, DType to) {
  const uint64_t key = uint64_t{set} << 8 | static_cast<uint8_t>(to);
  auto it = usable_.find(key);
  if (it != usable_.end()) return it->second;
  std::vector<Holder> equal;
  std::vector<Holder> convertible;
  for (const Holder& holder : (*this)[set]) {
    if (holder.type() == to) equal.push_back(holder);
    if (Convertible(holder.type(), to)) convertible.push_back(holder);
  }
  const std::vector<Holder>& best = equal.empty() ? convertible : equal;
  const int32_t answer = best.empty() ? -1 : static_cast<int32_t>(Intern(best));
  usable_.emplace(key, answer);
  return answer;
}

// A source piece of the tensor in hand.
struct SourceIndex::Held {
  const Piece* piece = nullptr;
  Holder holder;
};

namespace {

// Boxes of overlapping sources are cut no further than this; beyond it a part that has a holder
// keeps those it has. That costs balance, never coverage.
constexpr size_t kMaxAtoms = 4096;

struct Atom {
  Box box;
  std::vector<uint32_t> members;  // distinct boxes that contain it
};

// Disjoint boxes with the same union, each inside or outside of every given box.
std::vector<Atom> Cut(absl::Span<const Box* const> boxes) {
  std::vector<Atom> atoms;
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    std::vector<Box> rest = {*boxes[i]};  // of this box, outside of all atoms so far
    std::vector<Atom> next;
    next.reserve(atoms.size() + 1);
    const bool full = atoms.size() >= kMaxAtoms;
    for (Atom& atom : atoms) {
      if (SharedElements(atom.box, *boxes[i]) == 0) {
        next.push_back(std::move(atom));
        continue;
      }
      Remove(atom.box, rest);
      const Box common = SharedBox(atom.box, *boxes[i]);
      if (full && common != atom.box) {
        next.push_back(std::move(atom));
        continue;
      }
      for (Box& box : Subtract(atom.box, common)) next.push_back({std::move(box), atom.members});
      next.push_back({common, std::move(atom.members)});
      next.back().members.push_back(i);
    }
    for (Box& box : rest) next.push_back({std::move(box), {i}});
    atoms = std::move(next);
  }
  std::sort(atoms.begin(), atoms.end(),
            [](const Atom& a, const Atom& b) { return CompareBoxes(a.box, b.box) < 0; });
  return atoms;
}

}  // namespace

// `held` are the pieces that contain `box`; reordered.
void SourceIndex::AddBox(const Box& box, std::vector<Held>& held) {
  const auto by_holder = [](const Held& a, const Held& b) {
    if (a.holder != b.holder) return a.holder < b.holder;
    return a.piece->offset < b.piece->offset;
  };
  if (!std::is_sorted(held.begin(), held.end(), by_holder)) {
    std::sort(held.begin(), held.end(), by_holder);
  }
  SourceBox out;
  out.box = box;
  out.first_piece = static_cast<uint32_t>(pieces_.size());
  std::vector<Holder> holders;
  holders.reserve(held.size());
  for (const Held& h : held) {
    // A rank that holds the box twice in one region is one holder.
    if (!holders.empty() && holders.back() == h.holder) continue;
    holders.push_back(h.holder);
    pieces_.push_back(h.piece);
  }
  out.holders = sets_.Intern(holders);
  reach_.push_back(boxes_.size() > begin_.back() ? std::max(reach_.back(), EndRow(box))
                                                 : EndRow(box));
  boxes_.push_back(std::move(out));
}

void SourceIndex::AddTensor(absl::Span<Held> held) {
  const auto by_box = [](const Held& a, const Held& b) {
    return CompareBoxes(a.piece->box, b.piece->box) < 0;
  };
  if (!std::is_sorted(held.begin(), held.end(), by_box)) {
    std::stable_sort(held.begin(), held.end(), by_box);
  }
  std::vector<const Box*> boxes;
  std::vector<size_t> first;  // of each distinct box, in `held`; one more at the end
  for (size_t i = 0; i < held.size(); ++i) {
    if (i == 0 || held[i].piece->box != held[i - 1].piece->box) {
      boxes.push_back(&held[i].piece->box);
      first.push_back(i);
    }
  }
  first.push_back(held.size());
  std::vector<Held> members;
  if (Disjoint(boxes)) {
    for (size_t b = 0; b < boxes.size(); ++b) {
      members.assign(held.begin() + first[b], held.begin() + first[b + 1]);
      AddBox(*boxes[b], members);
    }
    return;
  }
  for (const Atom& atom : Cut(boxes)) {
    members.clear();
    for (uint32_t b : atom.members) {
      members.insert(members.end(), held.begin() + first[b], held.begin() + first[b + 1]);
    }
    AddBox(atom.box, members);
  }
}

SourceIndex SourceIndex::Build(const TensorTable& tensors, const Ranks& ranks) {
  // Sort all pieces by tensor, by counting.
  std::vector<uint32_t> end(tensors.size() + 1, 0);
  for (int32_t r = 0; r < ranks.sources; ++r) {
    for (const Piece& piece : ranks.manifests[r]->pieces) ++end[piece.tensor + 1];
  }
  std::partial_sum(end.begin(), end.end(), end.begin());
  std::vector<Held> held(end.back());
  for (int32_t r = 0; r < ranks.sources; ++r) {
    for (const Piece& piece : ranks.manifests[r]->pieces) {
      held[end[piece.tensor]++] = {&piece, {r, piece.region, static_cast<int32_t>(piece.dtype)}};
    }
  }
  SourceIndex out;
  out.boxes_.reserve(tensors.size());
  out.reach_.reserve(tensors.size());
  out.pieces_.reserve(held.size());
  out.begin_.reserve(tensors.size() + 1);
  out.begin_.push_back(0);
  uint32_t first = 0;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    out.AddTensor(absl::MakeSpan(held).subspan(first, end[t] - first));
    first = end[t];
    out.begin_.push_back(static_cast<uint32_t>(out.boxes_.size()));
  }
  return out;
}

const Piece& SourceIndex::PieceOf(const SourceBox& box, const Holder& holder) const {
  const absl::Span<const Holder> holders = sets_[box.holders];
  const size_t at = std::lower_bound(holders.begin(), holders.end(), holder) - holders.begin();
  return *pieces_[box.first_piece + at];
}

}  // namespace xfer::plan_internal
