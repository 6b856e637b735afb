# SPDX-License-Identifier: MIT
from __future__ import annotations

import os

import pytest

from allowd.discovery import find_socket


@pytest.fixture
def places(tmp_path):
    """The three usual places, below a directory of the test's."""

    class Places:
        system = tmp_path / "run" / "allowd" / "allowd.sock"
        session = tmp_path / "session" / "allowd.sock"
        own = tmp_path / "tmp" / f"allowd-{os.getuid()}" / "allowd.sock"
        environ = {"XDG_RUNTIME_DIR": str(tmp_path / "session")}

        def find(self, **environ):
            return find_socket(
                {**self.environ, **environ},
                system_socket=str(self.system),
                shared_tmp=str(tmp_path / "tmp"),
            )

    for path in (Places.system, Places.session, Places.own):
        path.parent.mkdir(parents=True)
    return Places()


def test_the_variable_is_taken_at_its_word(places):
    places.system.touch()
    assert places.find(ALLOWD_SOCKET="/nowhere/at.sock") == ("/nowhere/at.sock", ["/nowhere/at.sock"])


def test_an_empty_variable_counts_as_unset(places):
    places.system.touch()
    assert places.find(ALLOWD_SOCKET="")[0] == str(places.system)


def test_the_first_that_exists_is_taken(places):
    places.own.touch()
    assert places.find()[0] == str(places.own)
    places.session.touch()
    assert places.find()[0] == str(places.session)
    places.system.touch()
    assert places.find()[0] == str(places.system)


def test_without_a_session_its_place_is_not_looked_at(places):
    places.session.touch()
    path, looked_at = places.find(XDG_RUNTIME_DIR="")
    assert path is None
    assert looked_at == [str(places.system), str(places.own)]


def test_when_nothing_exists_all_places_are_named(places):
    assert places.find() == (None, [str(places.system), str(places.session), str(places.own)])


def test_a_link_in_the_shared_tmp_is_not_followed(places, tmp_path):
    places.own.touch()
    places.own.parent.rename(tmp_path / "elsewhere")
    places.own.parent.symlink_to(tmp_path / "elsewhere")
    assert places.own.exists()
    assert places.find()[0] is None


def test_a_directory_of_somebody_else_in_the_shared_tmp_is_not_used(places, monkeypatch):
    places.own.touch()
    stranger = os.getuid() + 1
    places.own.parent.rename(places.own.parent.with_name(f"allowd-{stranger}"))
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    assert places.find()[0] is None
