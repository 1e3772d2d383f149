"""From bare hosts to a kit that serves: two, three in a ring, four on a switch."""

from __future__ import annotations

import pytest

from tests.cluster.hosts import Lab
from tests.cluster.users import User

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]


def test_two_bare_hosts_become_a_kit_that_serves(two_hosts: Lab) -> None:
    user = User(two_hosts)
    done = user.init()
    assert done.code == 0, done.err
    assert 'topology = "tp2"' in user.kit.read_text()
    user.serves_and_stops("tp2")


@pytest.mark.full
def test_three_hosts_in_a_ring_meet_where_all_can(three_hosts_ring: Lab) -> None:
    user = User(three_hosts_ring)
    done = user.init()
    assert done.code == 0, done.err
    text = user.kit.read_text()
    assert 'topology = "tp3"' in text
    # No cable's subnet reaches all three, so the ranks meet on the network that does.
    assert f'fabric = "{three_hosts_ring.subnet}.1"' in text
    user.serves_and_stops("tp3")


@pytest.mark.full
@pytest.mark.cases(115)
def test_four_hosts_on_a_switch_are_one_kit_of_one_file(four_hosts_switch: Lab) -> None:
    user = User(four_hosts_switch)
    done = user.init()
    assert done.code == 0, done.err
    text = user.kit.read_text()
    assert 'topology = "tp4"' in text and "cabling: switch (tp4)" in text
    assert 'fabric = "10.66.30.4"' in text
    user.serves_and_stops("tp4")
