// A backend: one way in which the build can run a call. Every case goes to every backend.
#pragma once

#include "case.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti::conformance {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual Capabilities capabilities() const = 0;
  /// Why nothing of it can run in this build; empty: it can.
  virtual std::string why_not() const { return ""; }
  /// What the environment must be before the library is first used.
  virtual std::vector<std::pair<std::string, std::string>> environment() const { return {}; }
  /// Beyond what the capabilities tell. Empty: it runs the case.
  virtual std::string skip_reason(const Case&) const { return ""; }
  /// What is wrong; empty: nothing.
  virtual std::string run(const Case& c) = 0;
  /// After the last case: the same.
  virtual std::string end() { return ""; }
  /// This process is a rank that the backend had started; its exit status.
  virtual int be_member(const std::string& /*socket_path*/, const std::vector<Case>& /*cases*/) { return 2; }
};

using Backends = std::vector<std::unique_ptr<Backend>>;
void add_host_backends(Backends& all);     ///< the lane interpreter on the Host machine
void add_sim_backends(Backends& all);      ///< ... on the Sim machine
void add_library_backends(Backends& all);  ///< the library, through nccl.h and tutti.h
void add_device_backends(Backends& all);

}  // namespace tutti::conformance
