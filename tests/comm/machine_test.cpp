// The machine of a communicator over hosts: one graph, plan and certificate, the same bytes on every rank, whatever the hosts are and
// whatever one of them tells. Hosts are made by NCCL_HOSTID, their machines by files or by a plug-in that sees what a test wants.
#include "crew.h"
#include "tests/temporary_folder.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <sys/mman.h>

namespace {

using crew::fine;
using crew::Member;
using Prepare = std::function<void(int rank)>;

constexpr std::size_t kTextMax = std::size_t{1} << 18;

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

/// This process sees what is in the file.
void see(const std::string& path) {
  set("TUTTI_TOPOLOGY_LIBRARY", TUTTI_LOOKS_SERVICE);
  set("TEST_PLUG_IN", TUTTI_PLUG_IN);
  set("TEST_LOOK", path);
}

template <class Ask>
std::string whole(const Ask& ask) {
  std::size_t needed = 0;
  if (ask(nullptr, std::size_t{0}, &needed) != ncclSuccess)
    return std::string("failed: ") + ncclGetLastError(nullptr) + "\n";
  std::string text(needed, '\0');
  if (ask(text.data(), text.size(), nullptr) != ncclSuccess) return "failed the second time";
  text.pop_back();
  return text;
}

std::string topology(ncclComm_t comm) {
  return whole(
      [&](char* text, std::size_t size, std::size_t* needed) { return tuttiCommTopology(comm, text, size, needed); });
}

std::string certificate(ncclComm_t comm, tuttiCollective_t collective, std::size_t count) {
  return whole([&](char* text, std::size_t size, std::size_t* needed) {
    return tuttiCommCertificate(comm, collective, count, ncclFloat, ncclSum, 0, text, size, needed);
  });
}

/// All that a rank can be asked of its machine.
std::string all_texts(ncclComm_t comm) {
  std::string text = topology(comm);
  for (const tuttiCollective_t collective :
       {tuttiAllReduce, tuttiAllGather, tuttiReduceScatter, tuttiBroadcast, tuttiAlltoAll}) {
    text += whole([&](char* to, std::size_t size, std::size_t* needed) {
      return tuttiCommPlan(comm, collective, ncclFloat, ncclSum, 0, to, size, needed);
    });
    for (const std::size_t count : {std::size_t{1}, std::size_t{1} << 22}) text += certificate(comm, collective, count);
  }
  return text;
}

/// By rank what `tell` says, in processes of their own on the hosts that `host_of` names.
std::vector<std::string> told(const std::vector<std::string>& host_of, const Prepare& prepare,
                              const std::function<std::string(ncclComm_t, int)>& tell) {
  const int ranks = static_cast<int>(host_of.size());
  const std::size_t bytes = host_of.size() * kTextMax;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  crew::check(crew::run(
      ranks,
      [&](const Member& me) -> std::string {
        set("NCCL_HOSTID", host_of[static_cast<std::size_t>(me.rank)]);
        if (prepare) prepare(me.rank);
        ncclComm_t comm = nullptr;
        std::string text;
        if (ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank) == ncclSuccess) {
          text = tell(comm, me.rank);
          CREW_TRY(crew::usable(comm));
          CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
        } else {
          text = std::string("no communicator: ") + ncclGetLastError(nullptr);
        }
        if (text.size() >= kTextMax) return "the text has " + std::to_string(text.size()) + " bytes";
        std::memcpy(static_cast<char*>(memory) + static_cast<std::size_t>(me.rank) * kTextMax, text.data(),
                    text.size());
        return "";
      },
      60, 1));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank)
    texts.emplace_back(static_cast<char*>(memory) + rank * kTextMax);
  munmap(memory, bytes);
  return texts;
}

/// What all ranks say alike.
std::string agreed(const std::vector<std::string>& host_of, const Prepare& prepare) {
  const std::vector<std::string> texts = told(host_of, prepare, [](ncclComm_t comm, int) { return all_texts(comm); });
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(texts[rank] == texts[0]);
  }
  return texts[0];
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string machine(const std::string& name, double nic_gbps, const std::string& more = "") {
  return "tutti-topology 1\nhost " + name +
         "\nnetwork net\nnuma numa0 numa=0 cores=8 memory=100\nnuma numa1 numa=1 cores=8 memory=100\n" +
         "nic mlx5_0 in=numa0\nlink numa0 <-> numa1 cpu 40\nlink numa0 <-> mlx5_0 pci 200\nlink mlx5_0 <-> net "
         "network " +
         std::to_string(nic_gbps) + "\n" + more;
}

std::vector<std::string> hosts(std::initializer_list<int> counts) {
  std::vector<std::string> host_of;
  for (const int count : counts)
    host_of.insert(host_of.end(), static_cast<std::size_t>(count), "host-" + std::to_string(host_of.size()));
  return host_of;
}

}  // namespace

TEST_CASE("ranks on two hosts tell one graph, plan and certificate of this machine twice") {
  const std::string text = agreed(hosts({2, 1}), nullptr);
  INFO(text);
  CHECK(text.rfind("tutti-topology 1\nhost ", 0) == 0);
  CHECK(count_of(text, "\nhost ") == 2);
  for (int rank = 0; rank < 3; ++rank) CHECK(has(text, "\n# rank " + std::to_string(rank) + ": "));
  CHECK(has(text, "\nnuma h1.numa0 host=1"));
  CHECK(has(text, " network "));
  // They share a machine, whose loopback is no wire with a speed.
  CHECK(has(text, "is on the same machine as others"));
  CHECK(has(text, "plan of all_reduce of float32 on 3 ranks"));
  CHECK(has(text, "certificate of all_reduce of 4194304 float32 (16 MiB) on 3 ranks"));
}

TEST_CASE("seven ranks on one machine and eight on another, each with its own NIC and memory", "[many]") {
  const TemporaryFolder folder;
  const std::string files[] = {folder.write("a", machine("alpha", 25)), folder.write("b", machine("beta", 50))};
  const std::string text = agreed(hosts({7, 8}), [&](int rank) { set("NCCL_TOPO_FILE", files[rank < 7 ? 0 : 1]); });
  INFO(text);
  CHECK(has(text, "\nhost alpha\nhost beta\n"));
  CHECK(has(text, "\nlink h1.mlx5_0 <-> net network 50\n"));
  CHECK(has(text, "\n# rank 6: alpha, "));
  CHECK(has(text, "\n# rank 7: beta, "));
  CHECK(has(text, "{ranks 0-6} | {ranks 7-14}: mlx5_0 -> net 25, net -> mlx5_0 25 allow 25 GB/s"));
  // 16 MiB at 25 GB/s; 8 inputs and outputs of that at the memory of whichever node they sit on.
  CHECK(has(text, "     671.1 us  links of the hosts: {ranks 0-6}"));
  CHECK(has(text, "us  memory of beta: 256 MiB read and written"));
  CHECK(has(text, "% of the bound"));
  // 56 blocks of 16 MiB each way.
  CHECK(has(text, "links of the hosts: alpha has to send 896 MiB, and has 25 GB/s"));
}

TEST_CASE(
    "a host that tells nothing that can be read is represented, with the reason, and nobody is kept from working") {
  const TemporaryFolder folder;
  const std::string good = folder.write("good", machine("alpha", 25));
  const auto with = [&](const std::string& bad) {
    return agreed(hosts({1, 2}), [&](int rank) { see(rank == 0 ? good : bad); });
  };
  std::string noise = "\x01\xff\"\\\n# rank 9: nowhere\n";
  for (int i = 0; i < 60000; ++i) noise += static_cast<char>(i * 7919 >> 3);
  std::string circle = "tutti-topology 1\npci a in=b\npci b in=a\nnuma numa0 numa=0\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {noise, R"(what rank 1 sees of host \"host-1\" is left out: line 1)"},
      {"tutti-topology 1\nnuma a\nlunk a b\n", "is left out: line 3"},
      {circle, "is left out: "},
      {"tutti-topology 1\n" + std::string(3 << 20, '#') + "\n", "is left out: its description is too long to be told"}};
  for (const auto& [bad, reason] : cases) {
    const std::string text = with(folder.write("bad", bad));
    INFO(text);
    CHECK(has(text, reason));
    CHECK(has(text, "no rank of host \\\"host-1\\\" has looked at it"));
    CHECK(has(text, "\nhost alpha\nhost host-1\n"));
    CHECK(has(text, "\nnuma h1.numa0 host=1"));
    CHECK(has(text, "\n# rank 2: host-1, "));
    CHECK(!has(text, "\n# rank 9"));
  }
  const std::string nothing = with((folder / "missing").string());
  CHECK(has(nothing, "is left out: it could not look"));
}

TEST_CASE("nobody looks at the machine while others measure the network on its cores") {
  const TemporaryFolder folder;
  const std::string look = folder.write("look", machine("one", 10));
  const std::string log = (folder / "log").string();
  told(
      hosts({1, 1, 1, 1}),
      [&](int) {
        see(look);
        set("TEST_LOOK_LOG", log);
        set("NCCL_DEBUG", "INFO");
        set("NCCL_DEBUG_FILE", log);
      },
      [](ncclComm_t, int) { return std::string(); });
  std::ifstream file(log, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  INFO(text);
  CHECK(count_of(text, "measured from rank") == 4);
  CHECK(count_of(text, "looks at the machine") == 4);
  CHECK(text.rfind("measured from rank") < text.find("looks at the machine"));
}

TEST_CASE("a look that does not go with the others' is left out, and theirs stand") {
  const TemporaryFolder folder;
  // Each is a machine; together their bridges are deeper in each other than graphs may be.
  std::string upper = "tutti-topology 1\nhost box\nnuma numa0 numa=0 cores=2\npci u0 bus=0000:00:00.0\n";
  std::string lower = "tutti-topology 1\nhost box\nnuma numa0 numa=0 cores=2\npci u99 bus=0000:63:00.0\n";
  const auto chain = [](std::string& text, const char* name, int first, int domain) {
    for (int i = first; i < 100; ++i) {
      char line[80];
      std::snprintf(line, sizeof line, "pci %s%d in=%s%d bus=%04x:%02x:00.0\n", name, i, i == 0 ? "u" : name,
                    i == 0 ? 99 : i - 1, static_cast<unsigned>(domain), static_cast<unsigned>(i));
      text += line;
    }
  };
  chain(upper, "u", 1, 0);
  chain(lower, "l", 0, 1);
  const std::string seen[] = {folder.write("a", upper), folder.write("b", lower)};
  folder.write("root0/dev/nvidia0", "");
  folder.write("root1/dev/nvidia1", "");
  const std::string text = agreed({"host-0", "host-0", "host-1"}, [&](int rank) {
    set("HWLOC_FSROOT", (folder / (rank == 1 ? "root1" : "root0")).string());
    see(seen[rank % 2]);
  });
  INFO(text);
  CHECK(has(text, "\npci u99 in=u98 bus=0000:63:00.0\n"));
  CHECK(!has(text, "pci l0"));
  CHECK(has(text, "what rank 1 sees of host \\\"box\\\" is left out"));
}

TEST_CASE("a host without the plug-in is represented; only its ranks cannot be asked") {
  const TemporaryFolder folder;
  const std::string good = folder.write("good", machine("alpha", 25));
  const std::vector<std::string> texts = told(
      hosts({2, 1}),
      [&](int rank) {
        if (rank == 2) set("TUTTI_TOPOLOGY_LIBRARY", "none");
        set("NCCL_TOPO_FILE", good);
      },
      [](ncclComm_t comm, int) { return topology(comm); });
  CHECK(texts[1] == texts[0]);
  INFO(texts[0]);
  CHECK(
      has(texts[0], "what rank 2 sees of host \\\"host-2\\\" is left out: libtutti-topology.so cannot be used there"));
  CHECK(has(texts[2], "failed: "));
  CHECK(has(texts[2], "TUTTI_TOPOLOGY_LIBRARY=none"));
}

TEST_CASE("containers of one host that see different GPUs add up to it, beside another host") {
  const TemporaryFolder folder;
  const auto gpu = [](const std::string& bus) {
    return machine("alpha", 25, "gpu gpu0 device=0 bus=" + bus + "\nlink gpu0 <-> numa0 pci 24\n");
  };
  const std::string seen[] = {folder.write("a", gpu("0000:c1:00.0")), folder.write("b", gpu("0000:c2:00.0")),
                              folder.write("c", machine("beta", 50))};
  folder.write("root0/dev/nvidia0", "");
  folder.write("root1/dev/nvidia1", "");
  const std::string text = agreed({"host-0", "host-0", "host-2"}, [&](int rank) {
    set("HWLOC_FSROOT", (folder / (rank == 1 ? "root1" : "root0")).string());
    see(seen[rank]);
  });
  INFO(text);
  CHECK(count_of(text, "\ngpu ") == 2);
  CHECK(has(text, "bus=0000:c1:00.0"));
  CHECK(has(text, "bus=0000:c2:00.0"));
  CHECK(count_of(text, "\nnic ") == 2);
  CHECK(has(text, "{ranks 0-1} | {rank 2}: mlx5_0 -> net 25, net -> mlx5_0 25 allow 25 GB/s"));
}

TEST_CASE("parts of a communicator over hosts know the part of the machine that they are on") {
  const TemporaryFolder folder;
  const std::string files[] = {folder.write("a", machine("alpha", 25)), folder.write("b", machine("beta", 50))};
  for (const bool by_host : {true, false}) {
    const std::vector<std::string> texts = told(
        hosts({2, 2}), [&](int rank) { set("NCCL_TOPO_FILE", files[rank / 2]); },
        [&](ncclComm_t comm, int rank) -> std::string {
          ncclComm_t part = nullptr;
          if (ncclCommSplit(comm, by_host ? rank / 2 : rank % 2, rank, &part, nullptr) != ncclSuccess)
            return ncclGetLastError(comm);
          std::string text = topology(part) + certificate(part, tuttiAllReduce, std::size_t{1} << 22);
          static_cast<void>(ncclCommDestroy(part));
          return text;
        });
    INFO(texts[0] << texts[3]);
    for (int rank = 0; rank < 4; ++rank) CHECK(!has(texts[static_cast<std::size_t>(rank)], "# rank 2"));
    if (by_host) {
      CHECK(texts[0] == texts[1]);
      CHECK(texts[2] == texts[3]);
      CHECK(has(texts[0], "tutti-topology 1\nhost alpha\nn"));
      CHECK(has(texts[2], "tutti-topology 1\nhost beta\nn"));
    } else {
      CHECK(texts[0] == texts[2]);
      CHECK(texts[1] == texts[3]);
      CHECK(has(texts[1], "{rank 0} | {rank 1}: mlx5_0 -> net 25, net -> mlx5_0 25 allow 25 GB/s"));
    }
  }
}

TEST_CASE("the merged machine is written as NCCL's XML, and read back by each host as its part") {
  const TemporaryFolder folder;
  const std::string files[] = {folder.write("a", machine("alpha", 25)), folder.write("b", machine("beta", 50))};
  const std::string dump = (folder / "dump.xml").string();
  agreed(hosts({1, 2}), [&](int rank) {
    set("NCCL_TOPO_FILE", files[rank == 0 ? 0 : 1]);
    set("NCCL_TOPO_DUMP_FILE", dump);
  });
  REQUIRE(std::filesystem::exists(dump));
  const std::string text = agreed(hosts({1, 2}), [&](int) { set("NCCL_TOPO_FILE", dump); });
  INFO(text);
  CHECK(has(text, "{rank 0} | {ranks 1-2}: "));
  CHECK(has(text, "allow 25 GB/s"));
}

TEST_CASE("a host whose file is wrong fails every rank, with the file and the line") {
  const TemporaryFolder folder;
  const std::string good = folder.write("good", machine("alpha", 25));
  const std::string wrong = folder.write("wrong", "tutti-topology 1\nnuma a\nlunk a b\n");
  const std::vector<std::string> texts = told(
      hosts({2, 1}), [&](int rank) { set("NCCL_TOPO_FILE", rank == 2 ? wrong : good); },
      [](ncclComm_t, int) { return std::string(); });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::Contains("no communicator: ") && Catch::Contains("NCCL_TOPO_FILE: " + wrong) &&
                         Catch::Contains("line 3"));
  }
}
