// Tables for people, and the numbers in them.
#ifndef XFER_XFERCTL_TABLE_H_
#define XFER_XFERCTL_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace xfer {

enum class Align : uint8_t { kLeft, kRight };
enum class Colour : uint8_t { kNone, kGood, kBad, kDim };

// `text` in terminal colours where `on`.
std::string Paint(absl::string_view text, Colour colour, bool on);

struct Cell {
  Cell(std::string text, Colour colour = Colour::kNone)  // NOLINT(google-explicit-constructor)
      : text(std::move(text)), colour(colour) {}
  Cell(const char* text) : text(text) {}  // NOLINT(google-explicit-constructor)
  std::string text;
  Colour colour = Colour::kNone;
};

// Columns two spaces apart, each as wide as its widest cell; no space at a line's end. ASCII only.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A row may be shorter than the table is wide.
  void AddRow(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // With a line of titles on top, each line ended.
  std::string ToString(bool colours) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// "512 B", "1.23 kB", "45.6 MB", "789 GB": decimal units, three digits.
std::string HumanBytes(uint64_t bytes);
// Milliseconds with two decimals: "0.05", "123.40".
std::string Millis(int64_t nanoseconds);
// GB/s with two decimals; "-" where there is nothing to divide.
std::string GigabytesPerSecond(uint64_t bytes, int64_t nanoseconds);

}  // namespace xfer

#endif  // XFER_XFERCTL_TABLE_H_
