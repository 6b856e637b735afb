// SPDX-License-Identifier: MIT
//
// allowctl: the agent from a shell.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "clients/allowctl/bench.h"
#include "clients/allowctl/output.h"
#include "clients/cpp/admin_client.h"
#include "clients/cpp/client.h"
#include "clients/cpp/discovery.h"
#include "protocol/quoted.h"

namespace allowd::allowctl {
namespace {

struct QueryOptions {
  std::string limit;
  std::string key;
  std::uint64_t cost = 1;
  std::string rate;
  std::uint64_t burst = 0;
  bool as_json = false;
};

int fail(const client::Problem& problem) {
  std::fprintf(stderr, "allowctl: %s\n", to_line(problem).c_str());
  return exit_code(problem);
}

int run_query(client::Client& client, bool is_peek, const QueryOptions& options) {
  client::Query query{
      .limit = options.limit, .key = options.key, .cost = options.cost, .rate = options.rate, .burst = {}};
  if (options.burst > 0) query.burst = options.burst;
  const client::Decision decision = is_peek ? client.peek(query) : client.allow(query);
  if (decision.problem) return fail(*decision.problem);
  std::printf("%s\n", options.as_json ? to_json(decision).c_str() : to_line(decision).c_str());
  return decision.allowed ? kAllowed : kDenied;
}

int run_report(client::Client& client, const std::string& method, bool as_json) {
  protocol::Value report;
  const auto problem = method == "info" ? client.info(report) : client.stats(report);
  if (problem) return fail(*problem);
  std::printf("%s", as_json ? (report.to_json() + "\n").c_str() : report.to_text().c_str());
  return 0;
}

int run_admin(const std::string& socket_path, const std::string& line, std::chrono::microseconds timeout) {
  std::string answer;
  if (const auto problem = client::run_admin_command(socket_path, line, timeout, answer))
    return fail(*problem);
  std::fwrite(answer.data(), 1, answer.size(), stdout);
  return 0;
}

void add_query_options(CLI::App& command, QueryOptions& options) {
  command.add_option("LIMIT", options.limit, "a limit's name")->required();
  command.add_option("KEY", options.key, "whom to count: a user, an address, anything")->required();
  command.add_option("--cost", options.cost, "how many permits")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  auto* rate =
      command.add_option("--rate", options.rate, "define the limit here, as in 3/min")->type_name("RATE");
  command.add_option("--burst", options.burst, "with --rate: how many at once (default: the rate's count)")
      ->type_name("N")
      ->needs(rate)
      ->check(CLI::PositiveNumber);
  command.add_flag("--json", options.as_json, "print the decision as JSON");
}

void add_bench_options(CLI::App& command, BenchOptions& options, double& seconds) {
  command.add_option("--limit", options.limit, "a limit's name")->type_name("NAME")->capture_default_str();
  auto* rate =
      command.add_option("--rate", options.rate, "define the limit here, as in 1000000/s")->type_name("RATE");
  command.add_option("--burst", options.burst, "with --rate: how many at once")->type_name("N")->needs(rate);
  command.add_option("-c,--connections", options.connections, "connections")
      ->type_name("N")
      ->check(CLI::Range(1, 10000));
  command.add_option("-d,--depth", options.depth, "queries in flight on each")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  command.add_option("-k,--keys", options.keys, "distinct keys")
      ->type_name("N")
      ->check(CLI::Range(1, 100'000'000));
  command.add_option("--cost", options.cost, "permits per query")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  auto* count = command.add_option("-n,--count", options.count, "queries in all")->type_name("N");
  command.add_option("-s,--seconds", seconds, "how long, unless --count")
      ->type_name("S")
      ->excludes(count)
      ->check(CLI::Range(0.001, 3600.0));
  command.add_flag("--json", options.as_json, "print the figures as JSON");
}

int run(int argc, char** argv) {
  CLI::App app{
      "allowctl: asks and inspects the allowd agent of this host.\n\n"
      "Examples:\n"
      "  allowctl allow login user-1 --rate 3/min     may user-1 log in once more? exit 0 yes, 1 no\n"
      "  allowctl peek api tenant-42                  the same for a configured limit, charging nothing\n"
      "  allowctl stats                               what the agent has decided\n"
      "  allowctl stats prom                          the same for Prometheus\n"
      "  allowctl top                                 which keys are asked about and refused most\n"
      "  allowctl bench --rate 1000000/s -c 8 -d 16   how fast it answers\n\n"
      "Exit codes: 0 allowed (or done), 1 denied, 2 usage, 3 no agent, 4 timed out, 5 the agent answered an "
      "error.\n"};
  app.set_version_flag("--version", std::string("allowctl ") + ALLOWD_VERSION);
  app.require_subcommand(1);
  app.fallthrough();

  std::string socket_path, admin_path;
  double timeout_seconds = 1;
  app.add_option("--socket", socket_path, "the agent's socket (default: $ALLOWD_SOCKET, else found)")
      ->type_name("PATH");
  app.add_option("--admin-socket", admin_path,
                 "its admin socket (default: $ALLOWD_ADMIN_SOCKET, else derived)")
      ->type_name("PATH");
  app.add_option("--timeout", timeout_seconds, "seconds to wait for an answer")
      ->type_name("S")
      ->check(CLI::Range(0.001, 3600.0));

  QueryOptions query;
  auto* allow = app.add_subcommand("allow", "May this key do one more? Charges it if so");
  add_query_options(*allow, query);
  auto* peek = app.add_subcommand("peek", "Would it be allowed? Charges nothing");
  add_query_options(*peek, query);

  auto* ping = app.add_subcommand("ping", "Is the agent there? Prints pong");
  bool as_json = false;
  auto* info = app.add_subcommand("info", "Version, store and limits");
  info->add_flag("--json", as_json, "as JSON");
  std::string stats_form;
  auto* stats =
      app.add_subcommand("stats", "Counters; `stats prom` asks the admin socket for Prometheus's format");
  stats->add_option("FORM", stats_form, "json or prom")->check(CLI::IsMember({"json", "prom"}));
  stats->add_flag("--json", as_json, "as JSON");

  unsigned top_rows = 10;
  auto* top = app.add_subcommand("top", "The keys asked about most, and refused most (admin socket)");
  top->add_option("N", top_rows, "how many of each")->check(CLI::Range(1, 100))->capture_default_str();
  auto* limits = app.add_subcommand("limits", "The configured limits (admin socket)");
  std::string key_limit, key_name;
  auto* key = app.add_subcommand("key", "What a key has left (admin socket)");
  key->add_option("LIMIT", key_limit)->required();
  key->add_option("KEY", key_name)->required();
  auto* reset = app.add_subcommand("reset", "Forgets all that a key has used (admin socket)");
  reset->add_option("LIMIT", key_limit)->required();
  reset->add_option("KEY", key_name)->required();
  auto* shards = app.add_subcommand("shards", "The servers that keep limits (admin socket)");
  auto* reload = app.add_subcommand("reload", "Loads the agent's configuration anew (admin socket)");

  BenchOptions bench_options;
  double bench_seconds = 3;
  auto* bench =
      app.add_subcommand("bench", "Asks as fast as the agent answers, and prints how fast that was");
  add_bench_options(*bench, bench_options, bench_seconds);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : kUsage;
  }

  const auto to_micros = [](double seconds) {
    return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
  };
  client::Client client({.socket_path = socket_path, .timeout = to_micros(timeout_seconds)});
  if (admin_path.empty()) admin_path = client::find_admin_socket(client.socket_path());
  const auto admin = [&](const std::string& line) {
    return run_admin(admin_path, line, to_micros(timeout_seconds));
  };

  if (allow->parsed() || peek->parsed()) return run_query(client, peek->parsed(), query);
  if (info->parsed()) return run_report(client, "info", as_json);
  if (stats->parsed()) {
    return stats_form == "prom" ? admin("stats prom")
                                : run_report(client, "stats", as_json || stats_form == "json");
  }
  if (top->parsed()) return admin("top " + std::to_string(top_rows));
  if (limits->parsed()) return admin("limits");
  if (shards->parsed()) return admin("shards");
  if (reload->parsed()) return admin("reload");
  if (reset->parsed())
    return admin("reset " + protocol::quoted(key_limit) + " " + protocol::quoted(key_name));
  if (key->parsed()) return admin("key " + protocol::quoted(key_limit) + " " + protocol::quoted(key_name));
  if (bench->parsed()) {
    bench_options.duration = to_micros(bench_seconds);
    bench_options.timeout = to_micros(timeout_seconds);
    return run_bench(client.socket_path(), bench_options);
  }
  if (const auto problem = client.ping()) return fail(*problem);
  std::puts("pong");
  return ping->parsed() ? 0 : kUsage;
}

}  // namespace
}  // namespace allowd::allowctl

int main(int argc, char** argv) { return allowd::allowctl::run(argc, argv); }
