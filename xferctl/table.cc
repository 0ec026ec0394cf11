#include "xferctl/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace xfer {

std::string Paint(absl::string_view text, Colour colour, bool on) {
  if (!on || colour == Colour::kNone || text.empty()) return std::string(text);
  const char* code = colour == Colour::kGood ? "32" : colour == Colour::kBad ? "31" : "2";
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

std::string Table::ToString(bool colours) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].text.size());
    }
  }
  std::string out;
  const auto add_line = [&](const std::vector<Cell>& row) {
    size_t owed = 0;  // spaces, written only once something follows them
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      const size_t pad = widths[i] - row[i].text.size();
      const bool right = columns_[i].align == Align::kRight;
      if (right) owed += pad;
      if (!row[i].text.empty()) {
        out.append(owed, ' ');
        owed = 0;
        out += Paint(row[i].text, row[i].colour, colours);
      }
      owed += (right ? 0 : pad) + 2;
    }
    out += '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title, Colour::kDim);
  add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1'000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB"}) {
    value /= 1'000;
    unit = next;
    if (value < 999.5) break;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, value, unit);
}

std::string Millis(int64_t nanoseconds) { return absl::StrFormat("%.2f", nanoseconds / 1e6); }

std::string GigabytesPerSecond(uint64_t bytes, int64_t nanoseconds) {
  if (bytes == 0 || nanoseconds <= 0) return "-";
  return absl::StrFormat("%.2f", static_cast<double>(bytes) / static_cast<double>(nanoseconds));
}

}  // namespace xfer
