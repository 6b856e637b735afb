// SPDX-License-Identifier: MIT
#include "agent/store/redis/topology/slot_map.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace allowd::store {
namespace {

// Reads what a server would send, by way of the guarded reader.
Result<SlotMap> read(std::string_view bytes) {
  ReplyReader reader(SlotMap::kCaps);
  REQUIRE_FALSE(reader.feed(bytes));
  auto reply = reader.read();
  REQUIRE(reply);
  REQUIRE(*reply != nullptr);
  return SlotMap::read(**reply, "10.0.0.9");
}

std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}
std::string number(int value) { return ":" + std::to_string(value) + "\r\n"; }
std::string node(std::string_view host, int port) {
  return "*4\r\n" + bulk(host) + number(port) + bulk("09dbe9720cda62f7865eabc5fd8857c5d2678366") + "*0\r\n";
}
std::string range(int first, int last, std::string_view nodes, int count = 1) {
  return "*" + std::to_string(2 + count) + "\r\n" + number(first) + number(last) + std::string(nodes);
}

std::string at(const SlotMap& map, std::uint16_t slot) {
  const NodeAddress* address = map.find(slot);
  return address == nullptr ? "nobody" : address->print();
}

TEST_CASE("slot map: a master keeps the slots of its ranges, both ends included") {
  const auto map = read("*3\r\n" + range(10'000, 16'383, node("10.0.0.2", 7001) + node("10.0.0.5", 7004), 2) +
                        range(0, 99, node("10.0.0.1", 7000)) + range(100, 4999, node("::1", 7002)));
  REQUIRE(map);
  CHECK(at(*map, 0) == "10.0.0.1:7000");
  CHECK(at(*map, 99) == "10.0.0.1:7000");
  CHECK(at(*map, 100) == "[::1]:7002");
  CHECK(at(*map, 4999) == "[::1]:7002");
  CHECK(at(*map, 5000) == "nobody");
  CHECK(at(*map, 9999) == "nobody");
  CHECK(at(*map, 10'000) == "10.0.0.2:7001");
  CHECK(at(*map, 16'383) == "10.0.0.2:7001");
}

TEST_CASE("slot map: a node without a host of its own is the one that was asked") {
  const auto map =
      read("*2\r\n" + range(0, 9, node("", 7000)) + "*3\r\n:10\r\n:19\r\n*2\r\n$-1\r\n:7001\r\n");
  REQUIRE(map);
  CHECK(at(*map, 5) == "10.0.0.9:7000");
  CHECK(at(*map, 15) == "10.0.0.9:7001");
}

TEST_CASE("slot map: a node whose name is not known keeps nothing") {
  const auto map =
      read("*2\r\n" + range(0, 9, node("?", 7000)) + range(10, 19, node("redis-b.internal", 7001)));
  REQUIRE(map);
  CHECK(at(*map, 5) == "nobody");
  CHECK(at(*map, 10) == "redis-b.internal:7001");
}

TEST_CASE("slot map: a node that has joined no Cluster names no slots") {
  const auto map = read("*0\r\n");
  REQUIRE(map);
  CHECK(at(*map, 0) == "nobody");
  CHECK(at(*map, 16'383) == "nobody");
}

TEST_CASE("slot map: every slot may be a range of its own") {
  std::string bytes = "*16384\r\n";
  for (int slot = 0; slot < 16'384; ++slot)
    bytes += range(slot, slot, node("10.0.0.1", 7000 + slot % 3) + node("10.0.0.2", 7000), 2);
  const auto map = read(bytes);
  REQUIRE(map);
  CHECK(at(*map, 0) == "10.0.0.1:7000");
  CHECK(at(*map, 16'382) == "10.0.0.1:" + std::to_string(7000 + 16'382 % 3));
}

TEST_CASE("slot map: what is no answer to CLUSTER SLOTS makes no map") {
  const std::string good = node("10.0.0.1", 7000);
  const std::vector<std::string> all = {("+OK\r\n"),
                                        ("$-1\r\n"),
                                        ("*1\r\n:1\r\n"),
                                        "*1\r\n*2\r\n:0\r\n:9\r\n",
                                        "*1\r\n" + range(9, 0, good),
                                        "*1\r\n" + range(-1, 9, good),
                                        "*1\r\n" + range(0, 16'384, good),
                                        "*2\r\n" + range(0, 9, good) + range(9, 12, good),
                                        "*1\r\n" + range(0, 9, node("10.0.0.1", 0)),
                                        "*1\r\n" + range(0, 9, node("10.0.0.1", 65'536)),
                                        "*1\r\n" + range(0, 9, node("a b", 7000)),
                                        "*1\r\n" + range(0, 9, node(std::string(256, 'a'), 7000)),
                                        ("*1\r\n*3\r\n:0\r\n:9\r\n+x\r\n"),
                                        ("*1\r\n*3\r\n:0\r\n:9\r\n*1\r\n+x\r\n"),
                                        ("*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n:1\r\n:7000\r\n"),
                                        ("*1\r\n*3\r\n:0\r\n+9\r\n*2\r\n+a\r\n:7000\r\n")};
  for (const std::string& bytes : all) {
    CAPTURE(bytes);
    CHECK_FALSE(read(bytes));
  }
}

}  // namespace
}  // namespace allowd::store
