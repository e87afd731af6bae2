from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from tests.ports import free_port
from toutates.net.listening import bind, listen
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def test_one_socket_has_its_port_for_itself() -> None:
    (first,) = bind(Address("127.0.0.1", 0), "--addr")
    address = Address(*first.getsockname())
    assert not first.getblocking()
    for sockets in (1, 2):
        first.listen()
        with pytest.raises(
            ConfigurationError, match=r"^--addr: cannot listen: Address already in use \(got '127.0.0.1:"
        ):
            bind(address, "--addr", sockets=sockets)
    first.close()


@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize("others", [1, 2])
def test_a_port_where_nobody_listens_yet_belongs_to_who_came_first(sockets: int, others: int) -> None:
    address = Address("127.0.0.1", free_port())
    with ExitStack() as claims:
        first = bind(address, "--addr", sockets=sockets, claims=claims)
        with pytest.raises(ConfigurationError) as caught:
            bind(address, "--addr", sockets=others, claims=claims)
        first[0].listen()
    with pytest.raises(ConfigurationError):
        bind(address, "--addr", sockets=others, claims=claims)
    assert str(caught.value).startswith(
        f"--addr: cannot listen: Address already in use (got '{address}'); choose an address"
    )
    close(first)
    with ExitStack() as claims:
        close(bind(address, "--addr", sockets=others, claims=claims))  # a bind that has failed does not keep it


@pytest.mark.parametrize(("host", "other"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
@pytest.mark.parametrize("sockets", [1, 2])
def test_all_addresses_of_a_port_include_each_of_them(host: str, other: str, sockets: int) -> None:
    port = free_port()
    with ExitStack() as claims:
        first = bind(Address(host, port), "--addr", sockets=sockets, claims=claims)
        with pytest.raises(ConfigurationError, match="Address already in use"):
            bind(Address(other, port), "--addr", sockets=sockets, claims=claims)
    close(first)


def test_servers_that_start_together_may_have_one_port_on_addresses_of_their_own() -> None:
    port = free_port()
    with ExitStack() as claims:
        for number in range(1, 4):
            close(bind(Address(f"127.0.0.{number}", port), "--addr", sockets=2, claims=claims))


def test_a_port_that_another_one_has_taken_before_it_is_listened_to() -> None:
    [late] = bind(Address("127.0.0.1", 0), "--addr")
    address = Address(*late.getsockname())
    [other] = bind(address, "--addr")
    other.listen()
    with pytest.raises(
        ConfigurationError, match=rf"^cannot listen: Address already in use \(got '{address}'\); choose"
    ):
        listen(late, 1)
    close([late, other])


def test_several_share_the_port_that_the_system_chose() -> None:
    sockets = bind(Address("127.0.0.1", 0), "--addr", sockets=3)
    assert len({one.getsockname() for one in sockets}) == 1
    assert all(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for one in sockets)
    close(sockets)


def test_a_port_that_others_would_share_is_refused_to_several() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        address = Address(*other.getsockname())
        with pytest.raises(ConfigurationError) as caught:
            bind(address, "--addr", sockets=2, otherwise=", or write 'off'")
    assert str(caught.value).endswith("; choose an address of this machine and a port that is free, or write 'off'")


def test_all_addresses_of_ipv6_take_ipv4_too() -> None:
    try:
        sockets = bind(Address("::", 0), "--addr")
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    sockets[0].listen()
    with socket.create_connection(("127.0.0.1", sockets[0].getsockname()[1])):
        pass
    close(sockets)


def test_a_port_can_be_shared_with_others_who_share_it() -> None:
    (first,) = bind(Address("127.0.0.1", 0), "--addr", shared=True)
    address = Address(*first.getsockname())
    first.listen()
    (second,) = bind(address, "--addr", shared=True)
    second.listen()
    close([first, second])
    with socket.create_server(("127.0.0.1", 0)) as alone, pytest.raises(ConfigurationError):
        bind(Address(*alone.getsockname()), "--addr", shared=True)
