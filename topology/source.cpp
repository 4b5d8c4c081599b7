#include "topology/source.h"

#include "topology/hwloc_xml.h"
#include "topology/nccl_graph_xml.h"
#include "topology/nccl_xml.h"
#include "topology/smi_matrix.h"
#include "topology/synthetic.h"
#include "topology/text_form.h"

#include "base/descriptor.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace tutti::topology {

namespace {

constexpr std::string_view kForms =
    "Tutti's own text (its first line is \"tutti-topology 1\"), NCCL topology XML (<system>), NCCL graph XML "
    "(<graphs>), "
    "hwloc XML (<topology>), the output of nvidia-smi topo -m, and a synthetic machine (host:1 switch:1 gpu:8 "
    "nvlink:450)";

constexpr std::array<std::pair<std::string_view, SourceForm>, 11> kElements = {{{"system", SourceForm::kNcclXml},
                                                                                {"cpu", SourceForm::kNcclXml},
                                                                                {"pci", SourceForm::kNcclXml},
                                                                                {"gpu", SourceForm::kNcclXml},
                                                                                {"apu", SourceForm::kNcclXml},
                                                                                {"nic", SourceForm::kNcclXml},
                                                                                {"graphs", SourceForm::kNcclGraphXml},
                                                                                {"graph", SourceForm::kNcclGraphXml},
                                                                                {"topology", SourceForm::kHwlocXml},
                                                                                {"object", SourceForm::kHwlocXml},
                                                                                {"root", SourceForm::kHwlocXml}}};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The form whose element is the first in the text that any form has.
SourceForm form_of_xml(std::string_view content) {
  for (std::size_t at = content.find('<'); at != std::string_view::npos; at = content.find('<', at + 1)) {
    if (content.substr(at).starts_with("<!--")) {
      at = std::min(content.find("-->", at), content.size());
      continue;
    }
    std::size_t end = at + 1;
    while (end < content.size() && is_letter(content[end])) ++end;
    const std::string_view name = content.substr(at + 1, end - at - 1);
    const auto* found = std::ranges::find(kElements, name, &std::pair<std::string_view, SourceForm>::first);
    if (found != kElements.end()) return found->second;
  }
  return SourceForm::kUnknown;
}

/// Without what a terminal takes for itself: ESC [ parameters letter.
std::string_view without_leading_codes(std::string_view line) {
  while (!line.empty()) {
    if (line.starts_with("\x1b[")) {
      const std::size_t end = line.find_first_not_of("0123456789;", 2);
      line.remove_prefix(std::min(end == std::string_view::npos ? line.size() : end + 1, line.size()));
    } else if (line.front() == ' ' || line.front() == '\t' || line.front() == '\r') {
      line.remove_prefix(1);
    } else {
      break;
    }
  }
  return line;
}

bool begins_with_gpu(std::string_view line) { return line.size() > 3 && line.starts_with("GPU") && is_digit(line[3]); }

/// Every word KEY:VALUE, the key of letters.
bool is_synthetic_line(std::string_view line) {
  while (!line.empty()) {
    const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    const std::string_view word = line.substr(0, end);
    const std::size_t colon = word.find(':');
    if (colon == 0 || colon == std::string_view::npos || colon + 1 == word.size()) return false;
    if (!std::ranges::all_of(word.substr(0, colon), is_letter)) return false;
    line.remove_prefix(end);
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
  }
  return true;
}

SourceForm form_of_lines(std::string_view content) {
  bool is_first = true;
  while (!content.empty()) {
    const std::size_t end = content.find('\n');
    const std::string_view line = without_leading_codes(content.substr(0, end));
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    if (begins_with_gpu(line)) return SourceForm::kSmiMatrix;
    if (is_first && line.starts_with("tutti-topology")) return SourceForm::kText;
    if (is_first && is_synthetic_line(line) && content.find_first_not_of(" \t\r\n") == content.npos)
      return SourceForm::kSynthetic;
    is_first = false;
  }
  return SourceForm::kUnknown;
}

/// What a person would say it is.
std::string looks_like(std::string_view content) {
  constexpr std::size_t kShown = 40;
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "it is empty";
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kBeginnings = {
      {{"\x1f\x8b", "a gzip file; unpack it first"},
       {"BZh", "a bzip2 file; unpack it first"},
       {"\xfd"
        "7zXZ",
        "an xz file; unpack it first"},
       {"PK\x03\x04", "a zip file; unpack it first"},
       {"\x7f"
        "ELF",
        "a program"},
       {"{", "JSON"},
       {"[", "JSON"},
       {"%PDF", "a PDF"},
       {"\xff\xfe", "UTF-16 text; save it as UTF-8"},
       {"\xfe\xff", "UTF-16 text; save it as UTF-8"}}};
  for (const auto& [beginning, name] : kBeginnings) {
    if (content.starts_with(beginning)) return fmt::format("it looks like {}", name);
  }
  if (content.find('\0') != std::string_view::npos) return "it is binary";
  if (content.find("NCCL INFO") != std::string_view::npos)
    return "it looks like NCCL's log, which has no whole machine in it";
  if (content[first] == '<') return "it is XML without an element of a topology";
  std::string shown(content.substr(first, std::min(content.find('\n', first) - first, kShown)));
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c >= 0x7F; }, '?');
  return fmt::format("it begins with \"{}\"", shown);
}

Result<std::string> contents_of(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_error("open " + path);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return system_error("stat " + path);
  if (S_ISDIR(status.st_mode))
    return error(Code::kInvalidArgument, fmt::format("{} is a folder; name a file in it", path));
  std::string content;
  std::array<char, 1 << 16> piece{};
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read " + path);
    if (got == 0) return content;
    content.append(piece.data(), static_cast<std::size_t>(got));
    if (content.size() > kSourceBytesMax)
      return error(Code::kInvalidArgument,
                   fmt::format("{}: larger than {} MiB, which no topology is", path, kSourceBytesMax >> 20));
  }
}

/// What Windows' programs put before UTF-8.
std::string_view without_byte_order_mark(std::string_view content) {
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);
  return content;
}

}  // namespace

SourceForm form_of(std::string_view content) {
  content = without_byte_order_mark(content);
  const SourceForm by_lines = form_of_lines(content);
  return by_lines != SourceForm::kUnknown ? by_lines : form_of_xml(content);
}

namespace {

Result<Graph> read_form(std::string_view content, const ReadOptions& options) {
  const SourceForm form = form_of(content);
  if (options.nvlink_gbps != 0 && form != SourceForm::kSmiMatrix && form != SourceForm::kUnknown)
    return error(
        Code::kInvalidArgument,
        fmt::format("--nvlink-gbps {}: only for the output of nvidia-smi topo -m; leave it out, as forms like this "
                    "one say what their NVLinks are",
                    options.nvlink_gbps));
  switch (form) {
    case SourceForm::kText: return parse_text(content);
    case SourceForm::kNcclXml: return read_nccl_xml(content);
    case SourceForm::kNcclGraphXml: return read_nccl_graph_xml(content);
    case SourceForm::kHwlocXml: return read_hwloc_xml(content);
    case SourceForm::kSmiMatrix: return read_smi_matrix(content, {.nvlink_gbps = options.nvlink_gbps});
    case SourceForm::kSynthetic: return parse_synthetic(content);
    case SourceForm::kUnknown: break;
  }
  return error(Code::kInvalidArgument,
               fmt::format("no form of a topology that is known: {}. Known are {}", looks_like(content), kForms));
}

}  // namespace

Result<Graph> read_text(std::string_view content, const ReadOptions& options) {
  Result<Graph> graph = read_form(without_byte_order_mark(content), options);
  if (graph.ok()) return graph;
  return error(graph.error().code, printable_sentence(graph.error().message), graph.error().where);
}

Result<Graph> read_file(const std::string& path, const ReadOptions& options) {
  TUTTI_TRY_ASSIGN(const std::string content, contents_of(path));
  Result<Graph> graph = read_text(content, options);
  if (graph.ok()) return graph;
  return error(graph.error().code, fmt::format("{}: {}", path, graph.error().message), graph.error().where);
}

}  // namespace tutti::topology
