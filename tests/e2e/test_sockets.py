# SPDX-License-Identifier: MIT
"""The sockets as files: who may connect, what stood there before, and what is left at the end."""

from __future__ import annotations

import grp
import os
import resource
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from daemon import Agent, Rack
from processes import wait_until
from rpc import Client, request

LIMITS = '[limits.api]\nrate = "10/h"\n'


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)


def a_group() -> grp.struct_group:
    """A group that a socket may be given to, other than its own if there is one."""
    if os.geteuid() == 0:
        return next(group for group in grp.getgrall() if group.gr_gid != os.getegid())
    others = [gid for gid in os.getgroups() if gid != os.getegid()]
    return grp.getgrgid((others or [os.getegid()])[0])


# Access


def test_by_default_the_group_may_connect_and_only_the_owner_may_administer(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    assert mode_of(agent.path) == 0o660
    assert mode_of(agent.admin_path) == 0o600


@pytest.mark.parametrize("mode", ["0600", "0666", "0777", "660"])
def test_the_socket_gets_the_configured_mode_whatever_the_umask(rack: Rack, mode: str) -> None:
    before = os.umask(0o077)
    try:
        agent = rack.start(LIMITS, agent=f'socket_mode = "{mode}"')
    finally:
        os.umask(before)
    assert mode_of(agent.path) == int(mode, 8)
    assert mode_of(agent.admin_path) == 0o600


def test_the_socket_gets_the_configured_group(rack: Rack) -> None:
    group = a_group()
    agent = rack.start(LIMITS, agent=f'socket_group = "{group.gr_name}"')
    assert agent.path.stat().st_gid == group.gr_gid
    assert agent.admin_path.stat().st_gid == os.getegid()


def test_an_unknown_group_stops_the_start_and_leaves_no_socket(rack: Rack) -> None:
    path = rack.new_path(".sock")
    config = rack.write_config(LIMITS, path=path, agent='socket_group = "no-such-group-here"')
    done = rack.run("--config", config)
    assert done.returncode != 0
    assert "no-such-group-here" in done.stderr
    assert not path.exists()


def test_the_admin_socket_may_be_elsewhere(rack: Rack) -> None:
    admin = rack.new_path(".control")
    agent = rack.start(LIMITS, agent=f'admin_socket = "{admin}"')
    assert is_socket(admin)
    assert not agent.admin_path.exists()
    agent.admin_path = admin
    assert agent.admin("ping") == "pong\n"


def test_the_admin_path_is_derived_from_the_sockets(rack: Rack) -> None:
    path = rack.new_path(".sock").with_suffix(".socket")
    rack.start(LIMITS, path=path)
    assert is_socket(Path(f"{path}.admin.sock"))


# What stands there already


def test_a_socket_left_by_a_crash_is_taken_over(rack: Rack) -> None:
    first = rack.start(LIMITS)
    first.kill()
    assert is_socket(first.path), "a crash leaves it behind"
    second = rack.start(LIMITS, path=first.path)
    assert second.ask("ping") == "pong"
    assert second.admin("ping") == "pong\n"
    second.stop()
    assert not first.path.exists()


def test_a_second_agent_on_a_live_socket_is_refused_and_the_first_goes_on(rack: Rack) -> None:
    first = rack.start(LIMITS)
    config = rack.write_config(LIMITS, path=first.path)
    done = rack.run("--config", config)
    assert done.returncode != 0
    assert str(first.path) in done.stderr
    assert "another allowd is running" in done.stderr
    assert first.ask("ping") == "pong"
    assert first.admin("ping") == "pong\n"


def test_a_socket_of_another_program_is_left_alone(rack: Rack) -> None:
    path = rack.new_path(".sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        inode = path.stat().st_ino
        done = rack.run("--config", rack.write_config(LIMITS, path=path))
        assert done.returncode != 0
        assert "listening on this socket already" in done.stderr
        assert path.stat().st_ino == inode


@pytest.mark.parametrize("which", ["socket", "admin_socket"])
@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_what_is_not_a_socket_is_never_touched(rack: Rack, which: str, kind: str) -> None:
    path = rack.new_path(".sock")
    other = rack.new_path(".other")
    other.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    before = path.lstat()
    free = rack.new_path(".sock")
    paths = {"socket": free, "admin_socket": free.with_suffix(".admin.sock")} | {which: path}
    config = rack.write_config(LIMITS, path=paths["socket"], agent=f'admin_socket = "{paths["admin_socket"]}"')
    done = rack.run("--config", config)
    assert done.returncode != 0
    assert f"{path}: exists and is not a socket" in done.stderr
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert other.read_text() == "precious"
    assert not free.exists(), "the other socket is not left behind"


def test_of_many_agents_started_at_once_on_a_leftover_exactly_one_stays(rack: Rack) -> None:
    leftover = rack.start(LIMITS)
    leftover.kill()
    config = rack.write_config(LIMITS, path=leftover.path)
    agents = [rack.start_command(["--config", str(config)], leftover.path, wait=False) for _ in range(6)]
    wait_until(lambda: sum(agent.process.poll() is None for agent in agents) == 1, "all but one have given up")
    (winner,) = (agent for agent in agents if agent.process.poll() is None)
    wait_until(winner.answers, "the one that is left answers")
    for agent in agents:
        if agent is not winner:
            rack.forget(agent)
            assert agent.process.returncode == 1
            assert "Sanitizer" not in agent.log()


def test_a_path_over_107_bytes_is_an_error_of_the_config(rack: Rack) -> None:
    for name in ("socket", "admin_socket"):
        path = "/tmp/" + "p" * 103
        config = rack.write_config(LIMITS, agent=f'{name} = "{path}"')
        for arguments in (["check"], []):
            done = rack.run(*arguments, "--config", config)
            assert done.returncode != 0
            assert f"{config}:2: agent.{name}: " in done.stderr
            assert "108" in done.stderr and "107" in done.stderr
    assert not Path("/tmp/" + "p" * 103).exists()
    assert not Path("/tmp/" + "p" * 102).exists(), "nor is it cut off"


def test_a_path_of_107_bytes_works(rack: Rack) -> None:
    stem = str(rack.directory) + "/"
    path = Path(stem + "p" * (107 - len(stem)))
    agent = rack.start(LIMITS, path=path, agent=f'admin_socket = "{rack.new_path(".admin.sock")}"')
    assert agent.ask("ping") == "pong"
    agent.stop()
    assert not path.exists()


def test_a_derived_admin_path_that_is_too_long_is_a_clear_error(rack: Rack) -> None:
    stem = str(rack.directory) + "/"
    path = Path(stem + "p" * (107 - len(stem)))
    done = rack.run("--config", rack.write_config(LIMITS, path=path))
    assert done.returncode != 0
    assert "107" in done.stderr and ".admin.sock" in done.stderr
    assert not path.exists()


def test_a_directory_that_does_not_exist_is_a_clear_error(rack: Rack) -> None:
    done = rack.run("--config", rack.write_config(LIMITS, path=rack.directory / "missing" / "allowd.sock"))
    assert done.returncode != 0
    assert str(rack.directory / "missing") in done.stderr
    assert "No such file or directory" in done.stderr


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_and_removes_both_sockets(rack: Rack, number: signal.Signals) -> None:
    agent = rack.start(LIMITS)
    with agent.connect() as client:
        assert client.ask("ping") == "pong"
        agent.signal(number)
        agent.wait()
        assert client.is_hung_up()
    assert not agent.path.exists()
    assert not agent.admin_path.exists()


def test_a_second_signal_does_not_disturb_the_end(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    for _ in range(5):
        agent.signal(signal.SIGTERM)
    agent.wait()


def test_a_socket_that_was_replaced_is_not_removed(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    for path in (agent.path, agent.admin_path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    inodes = agent.path.stat().st_ino, agent.admin_path.stat().st_ino
    agent.stop()
    assert (agent.path.stat().st_ino, agent.admin_path.stat().st_ino) == inodes


def test_a_socket_that_was_removed_does_not_disturb_the_end(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    agent.path.unlink()
    agent.stop()


def test_what_was_sent_before_the_signal_is_answered(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    count = 500
    with agent.connect() as client:
        client.ask("ping")
        client.send(b"".join(request("allow", "api", "end", msgid=n) for n in range(count)))
        agent.signal(signal.SIGTERM)
        replies = client.receive_many(count)
        assert sorted(replies) == list(range(count))
        errors = {reply.error.split(":")[0] for reply in replies.values() if reply.error}
        assert errors <= {"shutting_down"}
        assert client.is_hung_up()
    agent.wait()


def test_clients_that_hang_about_do_not_hold_up_the_end(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    clients = [agent.connect() for _ in range(20)]
    for client in clients[:10]:
        client.send(request("ping")[:-1])
    agent.admin("ping")
    agent.stop()
    for client in clients:
        assert client.is_hung_up()
        client.close()


def test_the_service_manager_is_told_of_start_and_end(rack: Rack) -> None:
    path = rack.new_path(".notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(10)
        agent = rack.start(LIMITS, environment={"NOTIFY_SOCKET": str(path)})
        assert b"READY=1" in manager.recv(4096).splitlines()
        agent.stop()
        assert b"STOPPING=1" in manager.recv(4096).splitlines()


# How many may connect


def has_answer(client: Client) -> bool:
    return bool(client.receive().result == "pong")


def test_past_max_connections_clients_wait_in_the_kernel_until_there_is_room(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent="max_connections = 3")
    wait_until(lambda: agent.metric("connections") == 0, "the start's own client has left")
    inside = [agent.connect() for _ in range(3)]
    for client in inside:
        assert client.ask("ping") == "pong"
    outside = [agent.connect() for _ in range(4)]
    for client in outside:
        client.post("ping")
    assert outside[0].stays_silent(0.5)
    assert inside[0].ask("ping") == "pong", "those inside are served"
    assert agent.metric("connections") == 3
    assert agent.metric("connections_max") == 3
    assert agent.metric("connections_full_total") >= 1
    inside[0].close()
    assert has_answer(outside[0])
    assert outside[1].stays_silent(0.3)
    for client in [*inside[1:], outside[0]]:
        client.close()
    for client in outside[1:]:
        assert has_answer(client), "as many as have left are let in"
        client.close()
    assert agent.ask("ping") == "pong", "and it goes on like that"


def test_clients_that_give_up_waiting_for_a_place_do_not_take_one(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent="max_connections = 1")
    wait_until(lambda: agent.metric("connections") == 0, "the start's own client has left")
    inside = agent.connect()
    assert inside.ask("ping") == "pong"
    for _ in range(30):
        agent.connect().close()
    waiting = agent.connect()
    waiting.post("ping")
    inside.close()
    assert has_answer(waiting)
    waiting.close()


def test_many_clients_on_few_places_are_all_served(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent="max_connections = 4")
    served = []

    def visit() -> None:
        for _ in range(10):
            with agent.connect() as client:
                served.append(client.ask("ping"))

    visitors = [threading.Thread(target=visit) for _ in range(16)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert served == ["pong"] * 160


def test_admin_works_when_the_application_socket_is_full(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent="max_connections = 1")
    wait_until(lambda: agent.metric("connections") == 0, "the start's own client has left")
    with agent.connect() as inside:
        assert inside.ask("ping") == "pong"
        with agent.connect():
            assert agent.admin("ping") == "pong\n"


def open_files_limit(agent: Agent) -> int:
    """How many descriptors the running agent may have."""
    for line in Path(f"/proc/{agent.pid}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    raise AssertionError("no limit is stated")


def test_max_connections_leaves_room_for_the_agents_own_descriptors(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent="max_connections = 1000000")
    fitting = open_files_limit(agent) - 64
    assert agent.metric("connections_max") == min(1_000_000, fitting)
    assert ("max_connections is cut" in agent.log()) == (fitting < 1_000_000)


def cpu_seconds(agent: Agent) -> float:
    """What the agent has used so far, user and system."""
    fields = Path(f"/proc/{agent.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_a_free_descriptor_those_inside_are_served_and_nothing_spins(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    inside = [agent.connect() for _ in range(5)]
    for client in inside:
        assert client.ask("ping") == "pong"
    most = open_files_limit(agent)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (agent.open_fds() + 3, most))
    outside = [agent.connect() for _ in range(20)]
    before = cpu_seconds(agent)
    time.sleep(1.0)
    assert cpu_seconds(agent) - before < 0.5, "it does not spin"
    for client in inside:
        assert client.ask("ping") == "pong"
    for client in outside:
        client.close()
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (most, most))
    wait_until(agent.answers, "it takes clients again")
    for client in inside:
        assert client.ask("ping") == "pong"
        client.close()
