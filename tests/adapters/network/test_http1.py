"""Reading responses out of bytes, however they are cut."""

import gzip

import pytest

from weakincentives.adapters.network import TransportError
from weakincentives.adapters.network.http1 import ResponseParser

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Id: 7\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n"
TRAILERS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH


def read(data: bytes, size: int) -> ResponseParser:
    incoming = ResponseParser()
    for start in range(0, len(data), size):
        incoming.feed(data[start : start + size])
    return incoming


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, TRAILERS, CONTINUED], ids=["length", "chunks", "trailers", "100"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_response_is_the_same_however_it_is_cut(data: bytes, size: int) -> None:
    incoming = read(data, size)
    assert (incoming.status, bytes(incoming.body), incoming.done, incoming.keep_alive) == (200, b"hello", True, True)


def test_header_names_are_lower_case() -> None:
    assert read(LENGTH, 1000).headers == {"content-length": "5", "x-id": "7"}


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    incoming = read(b"HTTP/1.1 200 OK\r\n\r\nhello", 1000)
    assert not incoming.done
    incoming.feed(b"")
    assert (bytes(incoming.body), incoming.done, incoming.keep_alive) == (b"hello", True, False)


def test_a_compressed_body_is_inflated() -> None:
    body = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert bytes(read(head + body, 4).body) == b"hello"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "closed before an answer"),
        (b"HTTP/1.1 200", "closed in the middle"),
        (LENGTH[:-2], "closed in the middle"),
        (CHUNKED[:-3], "closed in the middle"),
    ],
)
def test_a_connection_that_closes_early_is_a_failure(data: bytes, words: str) -> None:
    incoming = read(data, 1000)
    with pytest.raises(TransportError, match=words):
        incoming.feed(b"")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_what_is_not_http_is_a_failure(data: bytes) -> None:
    with pytest.raises(TransportError):
        read(data, 1000)


def test_a_server_that_says_close_is_not_asked_again() -> None:
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    incoming = read(closing, 1000)
    assert not incoming.keep_alive
