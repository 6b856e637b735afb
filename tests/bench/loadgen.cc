// SPDX-License-Identifier: MIT
//
// Asks an agent, or the echo server in its place, `allow` in a closed loop and says how fast it answered.
// The options are in kUsage, the figures in README.md.
//
// Exit code  0 done; 1 the peer is not there, does not answer, breaks the protocol or answered with RPC
// errors;
//            2 wrong use. SIGTERM and SIGINT end the measurement early: the figures so far are printed.

#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "closed_loop.h"
#include "command_line.h"
#include "endpoint.h"
#include "msgpack_skipper.h"
#include "report.h"
#include "request_table.h"

namespace allowd::bench {
namespace {

constexpr const char* kUsage =
    "usage: loadgen --socket PATH [options]\n"
    "  --connections N    connections (1)\n"
    "  --depth D          requests in flight on each (1)\n"
    "  --keys K           distinct keys, walked in a fixed shuffled order (1000)\n"
    "  --zipf S           or drawn: the key of rank r in proportion to r^-S\n"
    "  --limit NAME       the limit to ask (bench)\n"
    "  --key-prefix S     what keys begin with (user:)\n"
    "  --seconds S        measure so long (2)\n"
    "  --count N          or measure so many requests, without warm-up\n"
    "  --warmup S         ask so long before measuring (0)\n"
    "  --insert N         ask N distinct keys once each; prints the latency histogram too\n"
    "  --write-each       write each request by itself, not all that a read made ready at once\n"
    "  --first-reply      print the first reply in hex\n"
    "  --json             print one line of JSON\n";

constexpr std::uint64_t kMostConnections = 10'000;
constexpr std::uint64_t kMostDepth = 16'384;
constexpr double kMostZipfExponent = 10;
constexpr std::size_t kMostNameBytes = 128;
constexpr std::size_t kMostPrefixBytes = 1000;

volatile std::sig_atomic_t stop_requested = 0;

std::string encoded_text(const std::string& text) {
  std::string head;
  if (text.size() < 32) {
    head = static_cast<char>(0xa0U | text.size());
  } else if (text.size() < 256) {
    head = {'\xd9', static_cast<char>(text.size())};
  } else {
    head = {'\xda', static_cast<char>(text.size() >> 8), static_cast<char>(text.size())};
  }
  return head + text;
}

// [0, msgid, "allow", [limit, key, 1]]; address() fills in the message id.
std::string encoded_request(const std::string& limit, const std::string& key) {
  using std::string_literals::operator""s;
  return "\x94\x00\xce\x00\x00\x00\x00"s + encoded_text("allow") + "\x93"s + encoded_text(limit) +
         encoded_text(key) + "\x01"s;
}

class MsgpackDialect {
 public:
  using Skipper = MsgpackSkipper;

  static void address(std::byte* request, std::uint32_t slot, TimePoint /*now*/) noexcept {
    const std::uint32_t msgid = MsgpackSkipper::kMsgidBase + slot;
    for (unsigned n = 0; n < 4; ++n) {
      request[MsgpackSkipper::kMsgidOffset + n] = static_cast<std::byte>(msgid >> (24 - 8 * n));
    }
  }

  // A run in which the agent answered without asking its store would flatter it: look for the word.
  void sample(std::span<const std::byte> reply) noexcept {
    const std::string_view text(reinterpret_cast<const char*>(reply.data()), reply.size());
    ++samples_;
    fallback_samples_ += text.find("fallback") != std::string_view::npos ? 1 : 0;
  }

  [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }
  [[nodiscard]] std::uint64_t fallback_samples() const noexcept { return fallback_samples_; }

 private:
  std::uint64_t samples_ = 0;
  std::uint64_t fallback_samples_ = 0;
};

struct Settings {
  Endpoint endpoint = Endpoint::unix_socket("");
  LoopPlan plan;
  std::uint64_t keys = 0;
  std::optional<double> zipf_exponent;
  std::string limit;
  std::string key_prefix;
  bool is_insert = false;
  bool shows_first_reply = false;
  bool as_json = false;
};

Settings read_settings(int argc, char** argv) {
  const CommandLine line(argc, argv,
                         {"--socket", "--connections", "--depth", "--keys", "--zipf", "--limit",
                          "--key-prefix", "--seconds", "--count", "--warmup", "--insert"},
                         {"--write-each", "--first-reply", "--json"});
  Settings settings;
  settings.endpoint = Endpoint::unix_socket(line.required_text("--socket"));
  settings.plan.connections = line.number("--connections", 1, 1, kMostConnections);
  settings.plan.depth = line.number("--depth", 1, 1, kMostDepth);
  settings.plan.warmup = line.seconds("--warmup", 0);
  settings.plan.duration = line.seconds("--seconds", 2);
  settings.plan.writes_each = line.has("--write-each");
  settings.keys = line.number("--keys", 1000, 1, RequestTable::kMaxKeys);
  settings.limit = line.text("--limit", "bench");
  settings.key_prefix = line.text("--key-prefix", "user:");
  settings.is_insert = line.has("--insert");
  settings.shows_first_reply = line.has("--first-reply");
  settings.as_json = line.has("--json");
  if (line.has("--count")) {
    settings.plan.count = line.number("--count", 0, 1, UINT64_MAX);
  }
  if (line.has("--zipf")) {
    settings.zipf_exponent = line.decimal("--zipf", 1, kMostZipfExponent);
  }
  if (settings.is_insert) {
    settings.keys = line.number("--insert", 0, 1, RequestTable::kMaxKeys);
    settings.plan.count = settings.keys;
  }
  if (settings.plan.count && (line.has("--warmup") || line.has("--seconds"))) {
    throw UsageError("--count and --insert go with neither --warmup nor --seconds");
  }
  if (settings.is_insert && (line.has("--count") || line.has("--keys") || line.has("--zipf"))) {
    throw UsageError("--insert goes with neither --count, --keys nor --zipf");
  }
  if (settings.limit.size() > kMostNameBytes || settings.key_prefix.size() > kMostPrefixBytes) {
    throw UsageError("--limit or --key-prefix is too long");
  }
  return settings;
}

// Asks the walk's first key on a connection of its own, so that a peer that does not speak is found at once.
std::vector<std::byte> first_reply(const Settings& settings, RequestTable& requests) {
  const UniqueFd fd = settings.endpoint.connect();
  std::vector<std::byte> request(requests.request_bytes());
  std::memcpy(request.data(), requests.next(), request.size());
  requests.restart();
  MsgpackDialect::address(request.data(), 0, TimePoint{});
  MsgpackSkipper skipper;
  std::vector<std::byte> reply = ask_once(fd.get(), request, skipper);
  if (skipper.slot() != 0) {
    throw PeerError("the first reply does not answer the first request: " + to_hex(reply));
  }
  return reply;
}

int run(const Settings& settings) {
  RequestTable requests(settings.key_prefix, settings.keys, settings.zipf_exponent,
                        [&](const std::string& key) { return encoded_request(settings.limit, key); });
  const std::vector<std::byte> reply = first_reply(settings, requests);
  MsgpackDialect dialect;
  ClosedLoop<MsgpackDialect> loop(settings.plan, requests, dialect, stop_requested);
  Report report{.plan = settings.plan,
                .keys = settings.keys,
                .figures = loop.run(settings.endpoint),
                .more = {{"samples", std::to_string(dialect.samples())},
                         {"fallback_samples", std::to_string(dialect.fallback_samples())}},
                .with_histogram = settings.is_insert};
  if (settings.shows_first_reply) {
    report.more.emplace_back("first_reply", "\"" + to_hex(reply) + "\"");
  }
  print_report(report, settings.as_json);
  if (report.figures.error_replies > 0) {
    throw PeerError("the peer answered with RPC errors; first reply: " + to_hex(reply));
  }
  return 0;
}

}  // namespace
}  // namespace allowd::bench

int main(int argc, char** argv) {
  using namespace allowd::bench;
  for (const int number : {SIGTERM, SIGINT}) {
    std::signal(number, [](int) { stop_requested = 1; });
  }
  try {
    return run(read_settings(argc, argv));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "loadgen: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loadgen: %s\n", error.what());
    return 1;
  }
}
