// The rows as files: JSON, and a picture.
#pragma once

#include "row.h"

#include "base/result.h"

#include <string>
#include <vector>

namespace tutti::bench {

/// An array of objects, one per row and form: collective dtype redop root ranks bytes in_place iterations time_us p50_us p99_us
/// algbw_gbps busbw_gbps wrong (null: not checked); with --against against_time_us, against_ratio (its time over this library's), against_wrong.
/// `path` "-": to standard output.
Status write_json(const std::string& path, const std::vector<Row>& rows);

/// Bus bandwidth and time over size, a line per collective, type, operation, root and form.
Status write_plot(const std::string& path, const std::vector<Row>& rows, const std::string& subtitle);

}  // namespace tutti::bench
