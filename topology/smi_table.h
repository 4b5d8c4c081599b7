// The cells of the text that `nvidia-smi topo -m` prints, before anything is made of them (smi_matrix.h does that).
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

/// The path between two devices, nearest first; SOC, in old texts, is SYS.
enum class SmiPath : std::uint8_t { kUnknown, kSelf, kPix, kPxb, kPhb, kNode, kSys, kNvLink };

struct SmiCell {
  SmiPath path = SmiPath::kUnknown;
  int nvlinks = 0;  ///< of kNvLink

  friend bool operator==(const SmiCell&, const SmiCell&) = default;
};
std::string text_of(const SmiCell& cell);  ///< "PIX", "NV12"

struct SmiDevice {
  std::string label;  ///< "GPU3", "mlx5_0"
  bool is_gpu = false;
  int line = 0;      ///< of its row; 0: it has none
  std::string name;  ///< of a NIC, from the legend; of a GPU, from lines like "GPU 0: NVIDIA A100"
  std::string cpus;  ///< CPU affinity, as written
  std::string numa;  ///< NUMA affinity, as written
};

struct SmiTable {
  std::vector<SmiDevice> devices;
  std::vector<SmiCell> cells;  ///< a row after the other
  std::vector<std::string> warnings;

  std::size_t count() const { return devices.size(); }
  const SmiCell& cell(std::size_t row, std::size_t column) const { return cells[row * count() + column]; }
};

inline constexpr std::size_t kSmiBytesMax = std::size_t{4} << 20;
inline constexpr std::size_t kSmiDevicesMax = 512;

/// Tabs or spaces; terminal codes, rows that a terminal wrapped, a missing header, missing rows and short rows are
/// repaired or left unknown, with a warning each. kInvalidArgument with line and reason if there is no such matrix.
Result<SmiTable> read_smi_table(std::string_view content);

}  // namespace tutti::topology
