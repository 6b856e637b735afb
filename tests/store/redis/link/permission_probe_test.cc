// SPDX-License-Identifier: MIT
#include "agent/store/redis/link/permission_probe.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "agent/store/redis/codec/script.h"

namespace allowd::store {
namespace {

TEST_CASE("permission probe: it tries every command that the script calls, and no other") {
  const std::string_view script = decision_script();
  std::set<std::string_view> called;
  for (std::size_t at = script.find("call('"); at != std::string_view::npos;
       at = script.find("call('", at + 1)) {
    const std::string_view name = script.substr(at + 6);
    called.insert(name.substr(0, name.find('\'')));
  }
  CHECK(called.size() >= 5);
  CHECK(called.erase("TIME") == 1);  // with one setting alone, and then tried at each connect
  std::set<std::string_view> tried;
  for (const std::string_view command : commands_of_script()) tried.insert(command);
  CHECK(tried == called);
}

}  // namespace
}  // namespace allowd::store
