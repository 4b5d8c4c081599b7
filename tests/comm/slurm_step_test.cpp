#include "comm/slurm_step.h"

#include <catch2/catch.hpp>

namespace tutti::comm {
namespace {

TEST_CASE("the first node of Slurm's lists", "[comm]") {
  CHECK(first_node("box-7") == "box-7");
  CHECK(first_node("box-7,box-9") == "box-7");
  CHECK(first_node("box-[1-4]") == "box-1");
  CHECK(first_node("box-[01-04,7],other") == "box-01");
  CHECK(first_node("box-[7,9-12]") == "box-7");
  CHECK(first_node("box-[3].domain,box-4") == "box-3.domain");
  CHECK(first_node("rack[2-3]n[05-06]") == "rack2n05");
  CHECK(first_node("10.0.0.[1-2]") == "10.0.0.1");
  CHECK(first_node("").empty());
  CHECK(first_node("box-[1-4").empty());
}

TEST_CASE("a node's tasks in Slurm's lists", "[comm]") {
  CHECK(tasks_of_node("3", 0) == 3);
  CHECK_FALSE(tasks_of_node("3", 1));
  for (const int node : {0, 1, 2}) CHECK(tasks_of_node("4(x3),2,1(x2)", node) == 4);
  CHECK(tasks_of_node("4(x3),2,1(x2)", 3) == 2);
  for (const int node : {4, 5}) CHECK(tasks_of_node("4(x3),2,1(x2)", node) == 1);
  CHECK_FALSE(tasks_of_node("4(x3),2,1(x2)", 6));
  for (const char* const none : {"", "x", "0", "-1", "4(x", "4(x)", "4(y2)", "4(x0)", ",4"})
    CHECK_FALSE(tasks_of_node(none, 0));
}

}  // namespace
}  // namespace tutti::comm
