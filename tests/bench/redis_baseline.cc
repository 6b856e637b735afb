// SPDX-License-Identifier: MIT
//
// What applications do without an agent: one EVALSHA of the usual token-bucket script per request, on C
// connections with one request in flight each. The client is the quickest there can be (requests encoded
// beforehand, replies only delimited), so that the agent is compared with Redis and not with a slow library.
// The options are in kUsage, the figures in README.md.
//
// Exit code  0 done; 1 Redis is not there, does not answer or answered with errors; 2 wrong use.
//            SIGTERM and SIGINT end the measurement early: the figures so far are printed.

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "closed_loop.h"
#include "command_line.h"
#include "endpoint.h"
#include "report.h"
#include "request_table.h"
#include "resp_skipper.h"

namespace allowd::bench {
namespace {

constexpr const char* kUsage =
    "usage: redis_baseline --redis HOST:PORT|PATH [options]\n"
    "  --connections N    connections, one request in flight on each (64)\n"
    "  --keys K           distinct keys, walked in a fixed shuffled order (10000)\n"
    "  --zipf S           or drawn: the key of rank r in proportion to r^-S\n"
    "  --key-prefix S     what keys begin with (baseline:)\n"
    "  --rate N           tokens per second, also a fraction (1000000)\n"
    "  --burst N          tokens in a full bucket (1000000)\n"
    "  --seconds S        measure so long (2)\n"
    "  --count N          or measure so many requests, without warm-up\n"
    "  --warmup S         ask so long before measuring (0)\n"
    "  --ping             send PING, not the script: what the round trip alone takes\n"
    "  --first-reply      print the first reply in hex\n"
    "  --json             print one line of JSON\n";

// The bucket as the field writes it: state in a hash, the caller's clock, floats, a TTL of twice the time to
// fill.
constexpr const char* kScript = R"lua(
local state = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local now = tonumber(ARGV[1])
local rate = tonumber(ARGV[2])
local burst = tonumber(ARGV[3])
local cost = tonumber(ARGV[4])
local tokens = tonumber(state[1]) or burst
local time = tonumber(state[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - time) * rate / 1000000)
local allowed = tokens >= cost
local wait = 0
if allowed then
  tokens = tokens - cost
else
  wait = math.ceil((cost - tokens) / rate * 1000)
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'time', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 2000))
return { allowed and 1 or 0, math.floor(tokens), wait }
)lua";

constexpr std::uint64_t kMostConnections = 10'000;
constexpr std::uint64_t kMostTokens = 1'000'000'000;
constexpr double kMostZipfExponent = 10;
constexpr std::size_t kMostPrefixBytes = 1000;
constexpr std::size_t kNowDigits = 16;  // microseconds since the epoch, until the year 2286

volatile std::sig_atomic_t stop_requested = 0;

void append_word(std::string& bytes, const std::string& word) {
  bytes.append("$").append(std::to_string(word.size())).append("\r\n").append(word).append("\r\n");
}

std::string command(const std::vector<std::string>& words) {
  std::string bytes;
  bytes.append("*").append(std::to_string(words.size())).append("\r\n");
  for (const std::string& word : words) {
    append_word(bytes, word);
  }
  return bytes;
}

class RespDialect {
 public:
  using Skipper = RespSkipper;

  // `now_offset`: where in a request the microseconds of "now" stand.
  explicit RespDialect(std::size_t now_offset)
      : now_offset_(now_offset), wall_minus_steady_(wall_now() - since_epoch(Clock::now())) {}

  void address(std::byte* request, std::uint32_t /*slot*/, TimePoint now) const noexcept {
    auto value = static_cast<std::uint64_t>((since_epoch(now) + wall_minus_steady_).count());
    for (std::size_t digit = kNowDigits; digit-- > 0; value /= 10) {
      request[now_offset_ + digit] = static_cast<std::byte>('0' + value % 10);
    }
  }

  void sample(std::span<const std::byte> /*reply*/) const noexcept {}

 private:
  using Microseconds = std::chrono::microseconds;

  static Microseconds since_epoch(TimePoint now) noexcept {
    return std::chrono::duration_cast<Microseconds>(now.time_since_epoch());
  }
  static Microseconds wall_now() {
    return std::chrono::duration_cast<Microseconds>(std::chrono::system_clock::now().time_since_epoch());
  }

  std::size_t now_offset_;
  Microseconds wall_minus_steady_;
};

struct Settings {
  Endpoint endpoint = Endpoint::unix_socket("");
  LoopPlan plan;
  std::uint64_t keys = 0;
  std::optional<double> zipf_exponent;
  std::string key_prefix;
  std::string rate;
  std::string burst;
  bool only_pings = false;
  bool shows_first_reply = false;
  bool as_json = false;
};

Settings read_settings(int argc, char** argv) {
  const CommandLine line(argc, argv,
                         {"--redis", "--connections", "--keys", "--zipf", "--key-prefix", "--rate", "--burst",
                          "--seconds", "--count", "--warmup"},
                         {"--ping", "--first-reply", "--json"});
  Settings settings;
  settings.endpoint = Endpoint::parse(line.required_text("--redis"));
  settings.plan.connections = line.number("--connections", 64, 1, kMostConnections);
  settings.plan.warmup = line.seconds("--warmup", 0);
  settings.plan.duration = line.seconds("--seconds", 2);
  settings.keys = line.number("--keys", 10'000, 1, RequestTable::kMaxKeys);
  settings.key_prefix = line.text("--key-prefix", "baseline:");
  static_cast<void>(line.decimal("--rate", 1, static_cast<double>(kMostTokens)));
  settings.rate = line.text("--rate", "1000000");
  settings.burst = std::to_string(line.number("--burst", 1'000'000, 1, kMostTokens));
  settings.only_pings = line.has("--ping");
  settings.shows_first_reply = line.has("--first-reply");
  settings.as_json = line.has("--json");
  if (line.has("--zipf")) {
    settings.zipf_exponent = line.decimal("--zipf", 1, kMostZipfExponent);
  }
  if (line.has("--count")) {
    settings.plan.count = line.number("--count", 0, 1, UINT64_MAX);
  }
  if (settings.plan.count && (line.has("--warmup") || line.has("--seconds"))) {
    throw UsageError("--count goes with neither --warmup nor --seconds");
  }
  if (settings.key_prefix.size() > kMostPrefixBytes) {
    throw UsageError("--key-prefix is too long");
  }
  return settings;
}

std::string ask_redis(const UniqueFd& connection, const std::string& request) {
  RespSkipper skipper;
  const std::vector<std::byte> reply =
      ask_once(connection.get(), std::as_bytes(std::span(request.data(), request.size())), skipper);
  std::string text(reinterpret_cast<const char*>(reply.data()), reply.size());
  if (skipper.is_error()) {
    throw PeerError("Redis refused: " + text.substr(0, text.find('\r')));
  }
  return text;
}

// SCRIPT LOAD answers `$40\r\n<sha1>\r\n`.
std::string load_script(const UniqueFd& connection) {
  constexpr std::size_t kShaOffset = 5;
  constexpr std::size_t kShaDigits = 40;
  const std::string reply = ask_redis(connection, command({"SCRIPT", "LOAD", kScript}));
  if (reply.size() != kShaOffset + kShaDigits + 2) {
    throw PeerError("Redis answered SCRIPT LOAD with something else than a digest");
  }
  return reply.substr(kShaOffset, kShaDigits);
}

int run(const Settings& settings) {
  const UniqueFd connection = settings.endpoint.connect();
  const std::string sha = load_script(connection);
  const std::string blank_now(kNowDigits, '0');
  const auto encode = [&](const std::string& key) {
    // A PING's text is echoed, so the time may stand in it as well.
    return settings.only_pings
               ? command({"PING", blank_now})
               : command({"EVALSHA", sha, "1", key, blank_now, settings.rate, settings.burst, "1"});
  };
  RequestTable requests(settings.key_prefix, settings.keys, settings.zipf_exponent, encode);
  std::string after_now = "\r\n";
  if (!settings.only_pings) {
    append_word(after_now, settings.rate);
    append_word(after_now, settings.burst);
    append_word(after_now, "1");
  }
  RespDialect dialect(requests.request_bytes() - after_now.size() - kNowDigits);
  std::string first(requests.request_bytes(), '\0');
  std::memcpy(first.data(), requests.next(), first.size());
  requests.restart();
  dialect.address(reinterpret_cast<std::byte*>(first.data()), 0, Clock::now());
  const std::string reply = ask_redis(connection, first);

  ClosedLoop<RespDialect> loop(settings.plan, requests, dialect, stop_requested);
  Report report{.plan = settings.plan,
                .keys = settings.keys,
                .figures = loop.run(settings.endpoint),
                .more = {},
                .with_histogram = false};
  if (settings.shows_first_reply) {
    const auto bytes = std::as_bytes(std::span(reply.data(), reply.size()));
    report.more.emplace_back("first_reply", "\"" + to_hex(bytes) + "\"");
  }
  print_report(report, settings.as_json);
  if (report.figures.error_replies > 0) {
    throw PeerError("Redis answered with errors");
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
    std::fprintf(stderr, "redis_baseline: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redis_baseline: %s\n", error.what());
    return 1;
  }
}
